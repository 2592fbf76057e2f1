"""The dev server answers as ZooKeeper does: nodes, permissions, sessions, watches, and any requests in any order."""

import random
import re
import time

import pytest
from support.ensemble import four_letter
from support.jute import (
    ADMIN,
    ALL,
    CONTAINER,
    CREATE,
    CREATOR,
    DELETE,
    EPHEMERAL,
    EPHEMERAL_SEQUENTIAL,
    OPEN,
    PERSISTENT,
    READ,
    SEQUENTIAL,
    WRITE,
    auth,
    boolean,
    buffer,
    check,
    children,
    children2,
    container,
    create,
    create2,
    delete,
    ephemerals,
    exists,
    get,
    get_acl,
    integer,
    multi,
    put,
    set_acl,
    set_watches,
    sync,
)
from support.transcripts import ALICE, SHORT, STILL, changed_in_3_9, compare, sort_events, who_may
from support.wire import Talk
from support.zoo import eventually


def every_mode(talk):
    a = talk.a
    a.do(create("/d"))
    for make in (create, create2):
        for mode in (*range(PERSISTENT, CONTAINER + 1), 7, -1, 99):
            a.do(make(f"/d/{make.__name__}-{mode}-", b"x", mode))
    for mode in (CONTAINER, PERSISTENT, SEQUENTIAL, EPHEMERAL, 99):
        a.do(container(f"/d/container-{mode}-", b"x", mode))
    a.do(children2("/d"))
    for path in ("/d", "/d/create-0-", "/d/create-1-"):
        a.do(get(path), get_acl(path), children2(path))


def sequences(talk):
    a = talk.a
    a.do(create("/d"), create("/d/n-", mode=SEQUENTIAL), create("/d/plain"), create("/d/n-", mode=SEQUENTIAL))
    a.do(delete("/d/plain"), create("/d/m-", mode=EPHEMERAL_SEQUENTIAL), delete("/d/n-0000000000"))
    a.do(create("/d/", mode=SEQUENTIAL), create("/d/n-", mode=SEQUENTIAL), children2("/d"))
    a.do(multi(create("/d/a-", mode=SEQUENTIAL), create("/d/b-", mode=SEQUENTIAL)), create("/d/n-", mode=SEQUENTIAL))
    a.do(multi(create("/d/a-", mode=SEQUENTIAL), check("/gone")), create("/d/n-", mode=SEQUENTIAL), exists("/d"))
    a.do(delete("/d/n-0000000003"), create("/d/n-0000000009"), create("/d/n-", mode=SEQUENTIAL))
    a.do(create("/d/n-", mode=SEQUENTIAL), create("/d/n-", mode=SEQUENTIAL), exists("/d"))
    a.do(create2("/d/n-", mode=SEQUENTIAL))


def a_new_tree(talk):
    talk.a.do(children("/"), children2("/zookeeper"), get("/zookeeper/quota"), exists("/zookeeper/config"))
    talk.a.do(get_acl("/"), get_acl("/zookeeper/config"), get_acl("/zookeeper/quota"), create("/zookeeper/x"))
    talk.a.do(delete("/zookeeper/x"), delete("/zookeeper/quota"), delete("/zookeeper"), delete("/zookeeper/config"))


PATHS = {
    "empty": "",
    "null": None,
    "relative": "a",
    "slash at the end": "/d/a/",
    "two slashes": "/d/a//b",
    "dots": "/d/a/../b",
    "dot": "/d/a/./b",
    "dots at the end": "/d/a/..",
    "NUL": "/d/a\0",
    "control": "/d/a\x01",
    "control 2": "/d/a\x7f",
    "private": "/d/a\ue000",
    "specials": "/d/a\ufff1",
    "umlaut": "/d/ä",
    "beyond the BMP": "/d/\U0001f600",
    "three dots": "/d/...",
    "space": "/d/ ",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_invalid_paths_are_refused_as_by_zookeeper(pair, path):
    requests = [create(path), create(path, mode=SEQUENTIAL), create2(path), container(path), exists(path), get(path)]
    requests += [put(path, b""), children(path), children2(path), get_acl(path), set_acl(path, OPEN), sync(path)]
    requests += [exists(path, True), get(path, True), children(path, True), delete(path), ephemerals(path)]
    if path is not None:  # the real server stumbles over it, and its answers are accidents
        requests += [multi(create(path), check("/")), multi(check(path))]
    if path == PATHS["beyond the BMP"]:  # which it sends as no other program does, in CESU-8
        requests.remove(sync(path))

    def ask(talk):
        talk.a.do(create("/d"))
        for request in requests:
            talk.say(request[0])
            talk.join("a").ask(request)
            talk.a.fence()

    compare(pair, ask)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 1_048_400, 1_048_575, 1_048_576, 1_100_000, 3_000_000])
def test_data_up_to_the_limit_of_a_frame_is_accepted(pair, size):
    def ask(talk):
        a = talk.a
        a.do(create("/d", b""), create("/e", b"", EPHEMERAL), put("/d", b"x" * size))
        talk.join("a", session=a.session, password=a.password).do(exists("/d"), get("/d"), exists("/e"))

    compare(pair, ask)


@pytest.mark.parametrize("denied", [READ, WRITE, CREATE, DELETE, ADMIN])
@pytest.mark.parametrize("known", [False, True], ids=["anyone", "alice"])
def test_each_operation_needs_its_permission(pair, denied, known):
    entries = who_may((ALL & ~denied, *ALICE), (ALL & ~denied, "world", "anyone"))

    @changed_in_3_9
    def ask(talk):
        a = talk.a
        if known:
            a.do(auth("alice:secret"))
        a.do(create("/a", b"", entries=entries), create("/a/b"), get("/a", True), exists("/a", True), children("/a"))
        a.do(children2("/a", True), put("/a", b"1"), get_acl("/a"), sync("/a"), multi(check("/a", 0)))
        a.do(ephemerals("/a"))
        a.do(multi(create("/x"), put("/a", b"2")), multi(create("/a/c")), delete("/a/b"), multi(delete("/a/b")))
        a.do(multi(get("/a"), children("/a"), op="multiRead"), container("/a/d"), create2("/a/e", b"", SEQUENTIAL))
        a.do(create("/a/no/x"), delete("/a/no"), put("/a", b"", 77), create("/a/b"))
        a.do(set_acl("/a", entries), exists("/a"))
        a.fence()

    compare(pair, ask)


@changed_in_3_9
def digest_for_a_connection(talk):
    a = talk.a
    a.do(create("/early", entries=CREATOR), create("/x", entries=()), auth("alice:secret"))
    a.do(create("/mine", entries=who_may(*CREATOR)))
    a.do(get_acl("/mine"), get("/mine"))
    talk.b.do(get("/mine"), get_acl("/mine"), exists("/mine"), put("/mine", b""), auth("alice:wrong"), get("/mine"))
    talk.b.do(auth("alice:secret"), get("/mine"), get_acl("/mine"))
    talk.b.do(create("/both", entries=who_may(*CREATOR)), set_acl("/both", who_may((ALL, "auth", "x"))), get("/both"))
    talk.c.do(auth("alice:wrong"), get("/both"), put("/both", b"x"), set_acl("/both", who_may((READ, *ALICE))))
    talk.b.do(get_acl("/both"), put("/both", b"x"), get("/both"))


def empty_containers(talk):
    a = talk.a
    a.do(container("/never"), container("/used"), create("/used/a"), create("/plain"), create("/plain/a"))
    a.do(container("/outer"), container("/outer/inner"), create("/outer/inner/a"), delete("/plain/a"))
    a.do(exists("/used", True), exists("/never", True), children("/", True))
    a.do(delete("/outer/inner/a"), delete("/used/a"))  # the last: a sweep may come at once
    eventually(lambda: not (a.ask(children("/")) or {"used", "outer"} & {*a.listed}))  # "/never" saw sweeps
    a.fence()
    talk.lines[:] = sorted(line for line in talk.lines if "EVENT" in line)  # their order is the sweep's
    talk.join("b").do(exists("/never"), exists("/used"), exists("/plain"), exists("/outer"), children("/"))


def containers_in_a_multi(talk):
    # Whether "/m" is there after that depends on when the next sweep comes.
    talk.a.do(multi(container("/m"), container("/m/a"), delete("/m/a")))


def resumed(talk):
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL))
    a.drop()
    again = talk.join("again", session=a.session, password=a.password)
    again.do(exists("/e"), ephemerals("/"))
    again.end()
    talk.b.do(exists("/e"))


def wrong_password(talk):
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL))
    for password in (b"x" * 16, b"", b"\0" * 16, a.password[:15], a.password + b"x"):
        talk.join("thief", session=a.session, password=password)
    a.do(exists("/e"))


def closed(talk):
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL), create("/p"))
    a.end()
    talk.join("b", session=a.session, password=a.password)
    talk.c.do(exists("/e"), exists("/p"))


def expired(talk):
    a = talk.join("a", timeout=SHORT)
    a.do(create("/p"), create("/p/e1", b"", EPHEMERAL), create("/p/e2", b"", EPHEMERAL))
    b = talk.b
    b.do(exists("/p/e1", True), get("/p/e2", True), children("/p", True), exists("/p/gone", True))
    b.wait_event()
    b.fence()
    sort_events(talk)
    b.do(exists("/p/e1"), exists("/p"))
    a.do(exists("/p"))
    talk.join("a", session=a.session, password=a.password)


def kept_by_pings(talk):
    a = talk.join("a", timeout=3 * SHORT)
    a.do(create("/e", b"", EPHEMERAL))
    end = time.monotonic() + 3.5 * SHORT / 1000
    while time.monotonic() < end:
        a.fence()
        time.sleep(SHORT / 8000)
    a.do(exists("/e"))


def from_the_future(talk):
    talk.join("a", zxid=2**62)
    a = talk.join("b")
    a.do(create("/e", b"", EPHEMERAL))
    talk.join("c", zxid=a.last_zxid, session=a.session, password=a.password).do(exists("/e"))
    talk.join("d", zxid=a.last_zxid + 1, session=a.session, password=a.password)
    talk.join("f", zxid=-1)


@pytest.mark.parametrize("timeout", [-1, 0, 1, 199, 200, 201, 12_345, 19_999, 20_000, 20_001, 2**31 - 1])
def test_the_timeout_is_negotiated(pair, timeout):
    compare(pair, lambda talk: talk.join("a", timeout=timeout).drop())


def watches_of_a_session_that_is_closed(talk):
    talk.a.do(create("/e1", b"", EPHEMERAL), create("/p"), create("/p/e2", b"", EPHEMERAL))
    talk.b.do(exists("/e1", True), get("/p/e2", True), children("/p", True), exists("/p", True))
    talk.a.end()
    talk.b.fence()
    sort_events(talk)
    talk.b.do(exists("/e1"), exists("/p/e2"), exists("/p"))


def watches_after_changes_in_between(talk):
    a, b = talk.a, talk.b
    for name in ("kept", "changed", "deleted", "parent", "quiet"):
        b.do(create(f"/{name}"))
    a.do(*[get(f"/{name}", True) for name in ("kept", "changed", "deleted", "quiet")], exists("/none", True))
    seen = a.last_zxid
    a.drop()
    b.do(put("/changed", b""), delete("/deleted"), create("/parent/c"), create("/none"))
    a = talk.join("a", session=a.session, password=a.password, zxid=seen)
    data = ["/kept", "/changed", "/deleted", "/quiet", "/gone"]
    a.do(set_watches(seen, data, ["/none", "/nothing", "/quiet", "/deleted"], ["/parent", "/kept", "/deleted"]))
    a.fence()
    b.do(put("/kept", b""), create("/nothing"), create("/kept/c"), put("/changed", b""), delete("/quiet"))
    a.fence()


ZNODES = (every_mode, sequences, a_new_tree, empty_containers, containers_in_a_multi)
SESSIONS = (digest_for_a_connection, resumed, wrong_password, closed, expired, kept_by_pings, from_the_future)
WATCHES = (watches_of_a_session_that_is_closed, watches_after_changes_in_between)


@pytest.mark.parametrize("script", [*ZNODES, *SESSIONS, *WATCHES], ids=lambda script: script.__name__)
def test_znodes_sessions_and_watches_are_as_in_zookeeper(pair, script):
    compare(pair, script)


def test_frames_arrive_in_any_number_of_pieces(pair):
    def ask(talk):
        a = talk.a
        for byte in integer(4 + 4 + len(buffer(STILL)) + 1) + integer(50) + integer(3) + buffer(STILL) + boolean(False):
            a.write_raw(bytes([byte]))
            time.sleep(0.001)
        a.until(50)
        a.pipeline(*[exists(STILL)] * 200)

    compare(pair, ask)


# And what stands for one: the version. ZooKeeper counts a request as answered at times before it
# counts it as begun, so "Outstanding" may be -1.
NUMBERS = re.compile(r"Zookeeper version: .*|0x[0-9a-f]+|-?[0-9][0-9.]*")


@pytest.mark.parametrize("word", ["ruok", "srvr"])
def test_four_letter_words_are_answered_as_by_zookeeper(pair, word):
    answers = {}
    for name, port in pair.items():
        with Talk(port) as talk:
            talk.a.do(create("/e", b"", EPHEMERAL), exists("/e", True))
            answers[name] = four_letter("127.0.0.1", port, word)
    shapes = {
        name: sorted({re.sub(NUMBERS, "#", line) for line in text.splitlines()}) for name, text in answers.items()
    }
    assert shapes["dev"] == shapes["real"], answers


NAMES = ["/d/a", "/d/b", "/d/a/x", "/d/a/y", "/d/a/x/z", "/d/b/x"]
ACLS = [OPEN, OPEN, OPEN, who_may((ALL, *ALICE), (READ, "world", "anyone")), who_may((ALL & ~READ, "world", "anyone"))]


def anything(chance):
    """A request on one of a few nodes, of which some are there."""
    path = chance.choice(NAMES)
    version = chance.choice([-1, -1, -1, 0, 1, 2])
    watch = chance.random() < 0.5
    mode = chance.choice([PERSISTENT, PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL])
    writes = [
        lambda: create(path, chance.choice([b"", None, b"data"]), mode),
        lambda: create2(path, b"2", mode),
        lambda: delete(path, version),
        lambda: put(path, chance.choice([b"", None, b"longer data"]), version),
    ]
    reads = [
        lambda: exists(path, watch),
        lambda: get(path, watch),
        lambda: children(path, watch),
        lambda: children2(path, watch),
        lambda: ephemerals(path),
        lambda: sync(path),
        lambda: set_acl(path, chance.choice(ACLS), version),
        lambda: get_acl(path),
    ]
    if chance.random() < 0.15:
        writes.append(lambda: check(path, version))
        parts = [chance.choice(writes)() for _ in range(chance.randrange(4))]
        return multi(*parts, *[check(chance.choice(NAMES))] * (chance.random() < 0.2))
    return chance.choice([*writes, *writes, *reads])()


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_requests_is_answered_as_by_zookeeper(pair, seed):
    @changed_in_3_9
    def ask(talk):
        chance = random.Random(seed)
        talk.a.do(create("/d"))
        talk.b.do(auth("alice:secret"))
        for _ in range(250):
            name = chance.choice("abc")
            wire = getattr(talk, name)
            chosen = chance.random()
            if chosen < 0.02:
                again = talk.join(name, session=wire.session, password=wire.password, zxid=wire.last_zxid)
                paths = [chance.sample(NAMES, 3) for _ in range(3)]
                again.ask(set_watches(wire.last_zxid - chance.randrange(10), *paths))
            elif chosen < 0.03:
                before = len(talk.lines)
                wire.end()
                for other in set("abc") - {name}:
                    getattr(talk, other).fence()
                talk.lines[before:] = sorted(talk.lines[before:])  # its ephemerals go in no order
                talk.join(name)
            elif chosen < 0.1:
                # Without setACL: the real server judges what comes right behind it by the old ACL, if it is quick.
                requests = [anything(chance) for _ in range(5)]
                wire.pipeline(*[request for request in requests if request[0] != "setACL"])
            else:
                wire.ask(anything(chance))
            for other in "abc":
                getattr(talk, other).fence()

    compare(pair, ask)
