"""The dev server answers as ZooKeeper does: watches, of all kinds."""

from __future__ import annotations

import pytest
from support.jute import (
    ADD_PERSISTENT,
    ADD_RECURSIVE,
    ANY,
    CHILDREN,
    DATA,
    EPHEMERAL,
    add_watch,
    buffer,
    check,
    children,
    create,
    delete,
    exists,
    get,
    integer,
    multi,
    put,
    remove_watches,
    set_watches,
)
from support.transcripts import Pair, Script, changed_in_3_9, compare, scripts, sort_events
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def of_a_session_that_is_closed(talk: Talk) -> None:
    talk.a.do(create("/e1", b"", EPHEMERAL), create("/p"), create("/p/e2", b"", EPHEMERAL))
    talk.b.do(exists("/e1", True), get("/p/e2", True), children("/p", True), exists("/p", True))
    talk.a.end()
    talk.b.fence()
    sort_events(talk)
    talk.b.do(exists("/e1"), exists("/p/e2"), exists("/p"))


def of_a_failed_change(talk: Talk) -> None:
    talk.a.do(create("/w"), get("/w", True), children("/w", True))
    talk.b.do(put("/w", b"", 7), create("/w"), delete("/w", 7), multi(put("/w", b""), check("/no")), create("/w/no/x"))
    talk.a.fence()
    talk.b.do(put("/w", b""))
    talk.a.fence()


@scripts(of_a_session_that_is_closed, of_a_failed_change)
def test_watches(pair: Pair, script: Script) -> None:
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


def without_set_watches(talk: Talk) -> None:
    a = talk.a
    a.do(create("/w"), get("/w", True))
    a = talk.join("a", session=a.session, password=a.password)
    talk.b.do(put("/w", b""))
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


def from_the_beginning_of_time(talk: Talk) -> None:
    talk.b.do(create("/w"), create("/w/c"), delete("/w/c"))
    talk.a.do(set_watches(0, ["/w", "/no"], ["/w", "/no"], ["/w", "/no"]), set_watches(2**62, ["/w"], ["/w"], ["/w"]))
    talk.a.fence()


@scripts(changes_in_between, without_set_watches, with_five_kinds, from_the_beginning_of_time)
def test_watches_after_a_reconnect(pair: Pair, script: Script) -> None:
    """`setWatches` tells at once what happened meanwhile, and watches the rest; a connection alone watches nothing."""
    compare(pair, script)


@changed_in_3_9
def of_others(talk: Talk) -> None:
    talk.b.do(create("/w"), get("/w", True))
    talk.a.do(remove_watches("/w", ANY), ("checkWatches", buffer("/w") + integer(ANY)), put("/w", b""))
    talk.b.fence()


@changed_in_3_9
def of_what_never_was(talk: Talk) -> None:
    talk.a.do(exists("/w", True), remove_watches("/w", DATA), create("/w"), remove_watches("/w", CHILDREN))
    talk.a.do(add_watch("/w", ADD_PERSISTENT), remove_watches("/w", DATA), put("/w", b""), remove_watches("/w", ANY))
    talk.a.do(put("/w", b""), add_watch("/w", ADD_RECURSIVE), remove_watches("/w", CHILDREN), create("/w/x"))
    talk.a.do(remove_watches("/w", ANY), create("/w/y"))


@scripts(of_others, of_what_never_was)
def test_removing_watches(pair: Pair, script: Script) -> None:
    """What is removed tells nothing any more, and one that is not there cannot be removed."""
    compare(pair, script)


@changed_in_3_9
def together(talk: Talk) -> None:
    a, b = talk.a, talk.b
    b.do(create("/w"))
    a.do(add_watch("/w", ADD_PERSISTENT), add_watch("/w", ADD_RECURSIVE), get("/w", True), children("/w", True))
    b.do(put("/w", b""), create("/w/c"), delete("/w/c"), put("/w", b""))
    a.fence()
    a.do(add_watch("/w", ADD_PERSISTENT))
    b.do(create("/w/c"), put("/w", b""), delete("/w/c"))
    a.fence()
    a.do(add_watch("/", ADD_RECURSIVE), get("/w", True))
    b.do(put("/w", b""), delete("/w"))
    a.fence()


def unknown_modes(talk: Talk) -> None:
    talk.a.do(add_watch("/w", 2))
    talk.join("b").do(add_watch("/w", -1))
    talk.join("c").do(add_watch("w", ADD_PERSISTENT), create("/w"))


@scripts(together, unknown_modes)
def test_watches_that_stay(pair: Pair, script: Script) -> None:
    """`addWatch` tells of every change, of one node or of all below it."""
    compare(pair, script)
