"""The dev server answers as ZooKeeper does: watches, of all kinds."""

from __future__ import annotations

import pytest
from support.jute import (
    ADD_PERSISTENT,
    ADD_RECURSIVE,
    EPHEMERAL,
    add_watch,
    children,
    create,
    delete,
    exists,
    get,
    put,
    set_watches,
)
from support.transcripts import Pair, Script, compare, scripts, sort_events
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def of_a_session_that_is_closed(talk: Talk) -> None:
    talk.a.do(create("/e1", b"", EPHEMERAL), create("/p"), create("/p/e2", b"", EPHEMERAL))
    talk.b.do(exists("/e1", True), get("/p/e2", True), children("/p", True), exists("/p", True))
    talk.a.end()
    talk.b.fence()
    sort_events(talk)
    talk.b.do(exists("/e1"), exists("/p/e2"), exists("/p"))


@scripts(of_a_session_that_is_closed)
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
def test_watches_after_a_reconnect(pair: Pair, script: Script) -> None:
    """`setWatches` tells at once what happened meanwhile, and watches the rest; a connection alone watches nothing."""
    compare(pair, script)
