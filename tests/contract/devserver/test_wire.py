"""The dev server answers as ZooKeeper does: nodes, paths and data, permissions, transactions, containers."""

from __future__ import annotations

import pytest
from support.jute import (
    ADD_PERSISTENT,
    ADD_RECURSIVE,
    ADMIN,
    ALL,
    CONTAINER,
    CREATE,
    CREATOR,
    DATA,
    DELETE,
    EPHEMERAL,
    EPHEMERAL_SEQUENTIAL,
    OPEN,
    PERSISTENT,
    READ,
    SEQUENTIAL,
    TTL,
    TTL_SEQUENTIAL,
    WRITE,
    add_watch,
    auth,
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
    multi,
    put,
    remove_watches,
    set_acl,
    sync,
    ttl,
)
from support.transcripts import ALICE, Pair, Script, changed_in_3_9, compare, scripts, who_may
from support.wire import Talk, Wire
from support.zoo import eventually

pytestmark = pytest.mark.zookeeper


def look(wire: Wire, *paths: str) -> None:
    """Have all that is known of some nodes in the transcript."""
    for path in paths:
        wire.do(get(path), get_acl(path), children2(path))


def every_mode(talk: Talk) -> None:
    a = talk.a
    a.do(create("/d"))
    for make in (create, create2):
        for mode in (
            PERSISTENT,
            EPHEMERAL,
            SEQUENTIAL,
            EPHEMERAL_SEQUENTIAL,
            CONTAINER,
            TTL,
            TTL_SEQUENTIAL,
            7,
            -1,
            99,
        ):
            a.do(make(f"/d/{make.__name__}-{mode}-", b"x", mode))
    for mode in (CONTAINER, PERSISTENT, SEQUENTIAL, EPHEMERAL, TTL, 99):
        a.do(container(f"/d/container-{mode}-", b"x", mode))
    for mode in (TTL, TTL_SEQUENTIAL, PERSISTENT, EPHEMERAL, CONTAINER, 99):
        a.do(ttl(f"/d/ttl-{mode}-", 60_000, b"x", mode))
    for time_to_live in (0, -1, 2**40 - 1, 2**40, 2**62):
        a.do(ttl(f"/d/ttl-of-{time_to_live}", time_to_live))
    a.do(children2("/d"))
    look(a, "/d", "/d/create-0-", "/d/create-1-")
    a.do(ttl("/d/ttl-of-1", 1))  # last, as the server deletes it at its next sweep


def sequences(talk: Talk) -> None:
    a = talk.a
    a.do(create("/d"), create("/d/n-", mode=SEQUENTIAL), create("/d/plain"), create("/d/n-", mode=SEQUENTIAL))
    a.do(delete("/d/plain"), create("/d/m-", mode=EPHEMERAL_SEQUENTIAL), delete("/d/n-0000000000"))
    a.do(create("/d/", mode=SEQUENTIAL), create("/d/n-", mode=SEQUENTIAL), children2("/d"))
    a.do(multi(create("/d/a-", mode=SEQUENTIAL), create("/d/b-", mode=SEQUENTIAL)), create("/d/n-", mode=SEQUENTIAL))
    a.do(multi(create("/d/a-", mode=SEQUENTIAL), check("/gone")), create("/d/n-", mode=SEQUENTIAL), exists("/d"))
    a.do(delete("/d/n-0000000003"), create("/d/n-0000000009"), create("/d/n-", mode=SEQUENTIAL))
    a.do(create("/d/n-", mode=SEQUENTIAL), create("/d/n-", mode=SEQUENTIAL), exists("/d"))
    a.do(create2("/d/n-", mode=SEQUENTIAL))


def a_new_tree(talk: Talk) -> None:
    talk.a.do(children("/"), children2("/zookeeper"), get("/zookeeper/quota"), exists("/zookeeper/config"))
    talk.a.do(get_acl("/"), get_acl("/zookeeper/config"), get_acl("/zookeeper/quota"), create("/zookeeper/x"))
    talk.a.do(delete("/zookeeper/x"), delete("/zookeeper/quota"), delete("/zookeeper"), delete("/zookeeper/config"))


@scripts(every_mode, sequences, a_new_tree)
def test_znodes_of_every_kind_are_created_read_changed_and_deleted(pair: Pair, script: Script) -> None:
    """Nodes of every kind are made, read, changed and deleted, with the same errors, stats and transaction ids."""
    compare(pair, script)


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
def test_invalid_paths_are_refused_as_by_zookeeper(pair: Pair, path: str | None) -> None:
    """A path that is no path is refused by each operation as ZooKeeper refuses it; what only looks odd is a path."""
    requests = [create(path), create(path, mode=SEQUENTIAL), create2(path), container(path), exists(path), get(path)]
    requests += [put(path, b""), children(path), children2(path), get_acl(path), set_acl(path, OPEN), sync(path)]
    requests += [exists(path, True), get(path, True), children(path, True), delete(path), ephemerals(path)]
    requests += [remove_watches(path, DATA)]
    if path is not None:  # the real server stumbles over it, and its answers are accidents
        requests += [multi(create(path), check("/")), multi(check(path)), add_watch(path, ADD_PERSISTENT)]
    if path == PATHS["beyond the BMP"]:  # which it sends as no other program does, in CESU-8
        requests.remove(sync(path))

    def ask(talk: Talk) -> None:
        talk.a.do(create("/d"))
        for request in requests:
            talk.say(request[0])
            talk.join("a").ask(request)
            talk.a.fence()

    compare(pair, ask)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 1_048_400, 1_048_575, 1_048_576, 1_100_000, 3_000_000])
def test_data_up_to_the_limit_of_a_frame_is_accepted(pair: Pair, size: int) -> None:
    """Up to a frame of jute.maxbuffer data are taken; a larger frame ends the connection, and the session lives on."""

    def ask(talk: Talk) -> None:
        a = talk.a
        a.do(create("/d", b""), create("/e", b"", EPHEMERAL), put("/d", b"x" * size))
        talk.join("a", session=a.session, password=a.password).do(exists("/d"), get("/d"), exists("/e"))

    compare(pair, ask)


# --- permissions and identities ---


@pytest.mark.parametrize("denied", [READ, WRITE, CREATE, DELETE, ADMIN])
@pytest.mark.parametrize("known", [False, True], ids=["anyone", "alice"])
def test_each_operation_needs_its_permission(pair: Pair, denied: int, known: bool) -> None:
    """Each operation asks for its permission, of the node or of its parent, and for no other."""
    entries = who_may((ALL & ~denied, *ALICE), (ALL & ~denied, "world", "anyone"))

    @changed_in_3_9
    def ask(talk: Talk) -> None:
        a = talk.a
        if known:
            a.do(auth("alice:secret"))
        a.do(create("/a", b"", entries=entries), create("/a/b"), get("/a", True), exists("/a", True), children("/a"))
        a.do(children2("/a", True), put("/a", b"1"), get_acl("/a"), sync("/a"), multi(check("/a", 0)))
        a.do(("getAllChildrenNumber", buffer("/a")), add_watch("/a", ADD_RECURSIVE), ephemerals("/a"))
        a.do(multi(create("/x"), put("/a", b"2")), multi(create("/a/c")), delete("/a/b"), multi(delete("/a/b")))
        a.do(multi(get("/a"), children("/a"), op="multiRead"), container("/a/d"), create2("/a/e", b"", SEQUENTIAL))
        a.do(create("/a/no/x"), delete("/a/no"), put("/a", b"", 77), create("/a/b"))
        a.do(set_acl("/a", entries), exists("/a"))
        a.fence()

    compare(pair, ask)


@changed_in_3_9
def digest(talk: Talk) -> None:
    a = talk.a
    a.do(create("/early", entries=CREATOR), create("/x", entries=()), auth("alice:secret"))
    a.do(create("/mine", entries=who_may(*CREATOR)))
    a.do(get_acl("/mine"), get("/mine"), ("whoAmI", b""))
    talk.b.do(get("/mine"), get_acl("/mine"), exists("/mine"), put("/mine", b""), auth("alice:wrong"), get("/mine"))
    talk.b.do(auth("alice:secret"), get("/mine"), get_acl("/mine"), ("whoAmI", b""))
    talk.b.do(create("/both", entries=who_may(*CREATOR)), set_acl("/both", who_may((ALL, "auth", "x"))), get("/both"))
    talk.c.do(auth("alice:wrong"), get("/both"), put("/both", b"x"), set_acl("/both", who_may((READ, *ALICE))))
    talk.b.do(get_acl("/both"), put("/both", b"x"), get("/both"))


@scripts(digest)
def test_digest_credentials_last_for_the_connection(pair: Pair, script: Script) -> None:
    """A digest is who one is, for all that the connection does from then on."""
    compare(pair, script)


# --- containers, and nodes with a time to live ---


def empty_containers(talk: Talk) -> None:
    a = talk.a
    a.do(container("/never"), container("/used"), create("/used/a"), create("/plain"), create("/plain/a"))
    a.do(container("/outer"), container("/outer/inner"), create("/outer/inner/a"), delete("/outer/inner/a"))
    a.do(delete("/plain/a"), exists("/used", True), exists("/never", True), children("/", True), delete("/used/a"))
    eventually(lambda: not (a.ask(children("/")) or {"used", "outer"} & {*a.listed}))  # "/never" saw sweeps
    a.fence()
    talk.lines[:] = sorted(line for line in talk.lines if "EVENT" in line)  # their order is the sweep's
    talk.join("b").do(exists("/never"), exists("/used"), exists("/plain"), exists("/outer"), children("/"))


def time_to_live(talk: Talk) -> None:
    talk.a.do(ttl("/t", 500), ttl("/parent", 500), create("/parent/a"), ttl("/long", 60_000), exists("/t", True))
    talk.a.wait_event()
    talk.a.do(exists("/t"), exists("/parent"), exists("/long"), children("/"))


@changed_in_3_9
def only_the_server_reaps(talk: Talk) -> None:
    talk.a.do(container("/c"), ("deleteContainer", buffer("/c")))
    # Whether "/m" is there after that depends on when the next sweep comes.
    talk.join("b").do(exists("/c"), multi(container("/m"), container("/m/a"), delete("/m/a")))


@scripts(empty_containers, time_to_live, only_the_server_reaps)
def test_empty_containers_and_znodes_past_their_ttl_are_deleted(pair: Pair, script: Script) -> None:
    """Containers that had children go when they are empty, nodes with a time to live when they are left alone."""
    compare(pair, script)
