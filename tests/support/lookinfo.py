"""A calm look, and a holder as a look describes it, for tests of what pages and reports make of them."""

from datetime import UTC, datetime

from django_zklock.inspection import ConnectionInfo, ScannedContender, Snapshot

NOW = datetime(2026, 11, 20, tzinfo=UTC)
HOLDER = ScannedContender(
    name="n1",
    path="/zklock/k/n1",
    guid="g1",
    token=5,
    session_id=7,
    came=NOW,
    age=90.0,
    holds=True,
    granted=NOW,
    client="zklock",
    host="web-1",
    pid=7,
    thread="",
    what="shop.charge",
    about={"task": "shop.charge", "id": "a/b?c"},
    template="k",
    operator=None,
    waits_behind="",
)
NOTHING = Snapshot(
    taken_at=NOW,
    locks=(),
    problem="",
    connection=ConnectionInfo(state="connected", server="", session_id=0, timeout=10.0, hosts=()),
)
