"""The dev server answers as ZooKeeper does: sessions, watches, frames and four-letter words."""

from __future__ import annotations

import re
import time

import pytest
from support.ensemble import four_letter
from support.jute import (
    ADD_PERSISTENT,
    ADD_RECURSIVE,
    EPHEMERAL,
    add_watch,
    boolean,
    buffer,
    children,
    create,
    delete,
    ephemerals,
    exists,
    get,
    integer,
    put,
    set_watches,
)
from support.transcripts import SHORT, STILL, Pair, Script, compare, scripts, sort_events
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def resumed(talk: Talk) -> None:
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL))
    a.drop()
    again = talk.join("again", session=a.session, password=a.password)
    again.do(exists("/e"), ephemerals("/"))
    again.end()
    talk.b.do(exists("/e"))


def wrong_password(talk: Talk) -> None:
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL))
    for password in (b"x" * 16, b"", b"\0" * 16, a.password[:15], a.password + b"x"):
        talk.join("thief", session=a.session, password=password)
    a.do(exists("/e"))


def closed(talk: Talk) -> None:
    a = talk.a
    a.do(create("/e", b"", EPHEMERAL), create("/p"))
    a.end()
    talk.join("b", session=a.session, password=a.password)
    talk.c.do(exists("/e"), exists("/p"))


def expired(talk: Talk) -> None:
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


def kept_by_pings(talk: Talk) -> None:
    a = talk.join("a", timeout=SHORT)
    a.do(create("/e", b"", EPHEMERAL))
    end = time.monotonic() + 3 * SHORT / 1000
    while time.monotonic() < end:
        a.fence()
        time.sleep(SHORT / 8000)
    a.do(exists("/e"))


def from_the_future(talk: Talk) -> None:
    talk.join("a", zxid=2**62)
    a = talk.join("b")
    a.do(create("/e", b"", EPHEMERAL))
    talk.join("c", zxid=a.last_zxid, session=a.session, password=a.password).do(exists("/e"))
    talk.join("d", zxid=a.last_zxid + 1, session=a.session, password=a.password)
    talk.join("f", zxid=-1)


@scripts(resumed, wrong_password, closed, expired, kept_by_pings, from_the_future)
def test_a_session_moves_to_a_new_connection_and_expires_without_one(pair: Pair, script: Script) -> None:
    """A session is taken up with its password, lives as long as it is heard of, and its nodes go with it."""
    compare(pair, script)


@pytest.mark.parametrize("timeout", [-1, 0, 1, 199, 200, 201, 12_345, 19_999, 20_000, 20_001, 2**31 - 1])
def test_the_timeout_is_negotiated(pair: Pair, timeout: int) -> None:
    """The timeout that a client requests is cut to the server's limits."""
    compare(pair, lambda talk: talk.join("a", timeout=timeout).do(exists(STILL)))


# --- watches, of all kinds ---


def of_a_session_that_is_closed(talk: Talk) -> None:
    talk.a.do(create("/e1", b"", EPHEMERAL), create("/p"), create("/p/e2", b"", EPHEMERAL))
    talk.b.do(exists("/e1", True), get("/p/e2", True), children("/p", True), exists("/p", True))
    talk.a.end()
    talk.b.fence()
    sort_events(talk)
    talk.b.do(exists("/e1"), exists("/p/e2"), exists("/p"))


@scripts(of_a_session_that_is_closed)
def test_watches_fire_once_and_before_the_reply_that_shows_the_change(pair: Pair, script: Script) -> None:
    """Watches tell once, of the right change, before any reply that shows it."""
    compare(pair, script)


def changes_in_between(talk: Talk) -> None:
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


def with_five_kinds(talk: Talk) -> None:
    a, b = talk.a, talk.b
    b.do(create("/w"), create("/w/x"))
    a.do(add_watch("/w", ADD_RECURSIVE), add_watch("/w/x", ADD_PERSISTENT))
    seen = a.last_zxid
    a = talk.join("a", session=a.session, password=a.password)
    a.do(set_watches(seen, [], [], [], ["/w/x"], ["/w"]))
    b.do(put("/w/x", b""), create("/w/x/y"), create("/w/z"), delete("/w/z"))
    a.fence()
    a.do(set_watches(seen, ["/w"], ["/n"], ["/w"], ["/w/x"], ["/w"]))
    b.do(put("/w", b""), create("/n"), create("/w/n"))
    a.fence()


@scripts(changes_in_between, with_five_kinds)
def test_watches_are_set_again_after_a_reconnect(pair: Pair, script: Script) -> None:
    """`setWatches` tells at once what happened meanwhile, and watches the rest; a connection alone watches nothing."""
    compare(pair, script)


# --- frames that are none, and four-letter words ---


def test_frames_arrive_in_any_number_of_pieces(pair: Pair) -> None:
    """Frames are put together from however many pieces, and many may come in one."""

    def ask(talk: Talk) -> None:
        a = talk.a
        for byte in integer(4 + 4 + len(buffer(STILL)) + 1) + integer(50) + integer(3) + buffer(STILL) + boolean(False):
            a.write_raw(bytes([byte]))
            time.sleep(0.001)
        a.until(50)
        a.pipeline(*[exists(STILL)] * 200)

    compare(pair, ask)


# And what stands for one: the day, the version. ZooKeeper counts a request as answered at times before it
# counts it as begun, so "Outstanding" may be -1.
NUMBERS = re.compile(r"Zookeeper version: .*|expire at .*|0x[0-9a-f]+|-?[0-9][0-9.]*|(?<=lop=)\w+")


@pytest.mark.parametrize("word", ["ruok", "srvr", "stat", "cons", "dump", "isro", "mntr"])
def test_four_letter_words_are_answered_as_by_zookeeper(pair: Pair, word: str) -> None:
    """The answers have the form of ZooKeeper's: the same words in the same places, other numbers."""
    answers = {}
    for name, port in pair.items():
        with Talk(port) as talk:
            talk.a.do(create("/e", b"", EPHEMERAL), exists("/e", True))
            answers[name] = four_letter("127.0.0.1", port, word)
    shapes = {
        name: sorted({re.sub(NUMBERS, "#", line) for line in text.splitlines()}) for name, text in answers.items()
    }
    if word == "mntr":  # many of the real server's are about what a dev server does not have
        wanted = {"zk_version", "zk_server_state", "zk_znode_count", "zk_watch_count", "zk_ephemerals_count"}
        wanted |= {"zk_num_alive_connections", "zk_packets_received", "zk_packets_sent", "zk_outstanding_requests"}
        wanted |= {"zk_avg_latency", "zk_min_latency", "zk_max_latency", "zk_approximate_data_size"}
        names = {name: {line.partition("\t")[0] for line in text.splitlines()} for name, text in answers.items()}
        assert wanted <= names["real"]
        assert wanted <= names["dev"]
    else:
        assert shapes["dev"] == shapes["real"], answers
