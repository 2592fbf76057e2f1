"""The dev server answers as ZooKeeper does: sessions, taken up, closed and expired."""

from __future__ import annotations

import time

import pytest
from support.jute import EPHEMERAL, children, create, ephemerals, exists, get
from support.transcripts import SHORT, STILL, Pair, Script, compare, scripts, sort_events
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def taken_up(talk: Talk) -> None:
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


@scripts(taken_up, wrong_password, closed, expired, kept_by_pings, from_the_future)
def test_sessions(pair: Pair, script: Script) -> None:
    """A session is taken up with its password, lives as long as it is heard of, and its nodes go with it."""
    compare(pair, script)


@pytest.mark.parametrize("timeout", [-1, 0, 1, 199, 200, 201, 12_345, 19_999, 20_000, 20_001, 2**31 - 1])
def test_the_timeout_is_negotiated(pair: Pair, timeout: int) -> None:
    """What a client asks for is cut to the server's limits."""
    compare(pair, lambda talk: talk.join("a", timeout=timeout).do(exists(STILL)))
