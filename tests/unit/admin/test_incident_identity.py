"""The identity of an incident, by which it is acknowledged: each process has the same, and no other incident has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_zklock.inspection import EnsembleReport, LockInfo, ServerReport
from django_zklock.inspection.ensemble import _findings
from django_zklock.report.verdict import CAUSES, look
from unit.admin.test_dashboard import HOLDER, NOTHING

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SERVER = ServerReport(address="zk1:2181", role="leader", version="3.9.3", zxid=5 << 32 | 7)
DOWN = ServerReport(address="zk3:2181", problem="does not answer: Connection refused")


def identity_in(*servers: ServerReport, problem: str = "", locks: tuple[LockInfo, ...] = ()) -> str:
    """Return the identity of the one incident of these servers and locks."""
    state = replace(NOTHING.connection, state="lost" if problem else "connecting")  # nothing is acknowledged
    snapshot = replace(NOTHING, problem=problem, connection=state, locks=locks, total=len(locks))
    report = EnsembleReport(servers, tuple(_findings([servers] * 5, 10.0, answer=(0 if problem else 1, ""))))
    (incident,) = look(snapshot, report).incidents
    return incident.identity


def split(*addresses: str, epoch: int = 5, counter: int = 7) -> str:
    zxids = [(epoch + number) << 32 | counter for number in range(len(addresses))]
    servers = [
        replace(SERVER, address=address, zxid=zxid, latency=counter / 1000)
        for address, zxid in zip(addresses, zxids, strict=True)
    ]
    return identity_in(*servers)


def test_a_deadlock_of_several_hosts_has_one_identity_whichever_host_comes_first() -> None:
    deadlocks = [CAUSES["deadlock"](host=host, keys=("a", "b")) for host in ("web-1", "web-2")]
    assert len({deadlock.identity for deadlock in deadlocks}) == 1


def test_a_split_is_that_of_its_servers_and_their_epochs() -> None:
    """Transactions and replies go on meanwhile. Each process may name the servers in another order."""
    first = split("zk1:2181", "zk2:2181")
    assert split("zk1:2181", "zk2:2181", counter=900) == first
    assert len({first, split("zk2:2181", "zk3:2181"), split("zk1:2181", "zk2:2181", epoch=6)}) == 3
    servers = [replace(SERVER, address=f"zk{number}:2181", zxid=number << 32) for number in (1, 2)]
    assert identity_in(*servers) == identity_in(*reversed(servers))


def test_a_lost_quorum_is_that_of_the_servers_that_are_down() -> None:
    runs = ServerReport(address="zk1:2181", problem="runs, and is in no quorum")
    others = [replace(DOWN, address=f"zk{number}:2181") for number in (2, 3)]
    lost = identity_in(runs, *others, problem="no answer within 1.5 s")
    assert identity_in(runs, *reversed(others), problem="no answer within 2.5 s") == lost
    assert identity_in(replace(DOWN, address="zk1:2181"), *others, problem="no answer") != lost


def test_an_unknown_znode_is_one_incident_and_the_next_one_another() -> None:
    def unreadable(name: str, waiting: int = 0) -> str:
        return identity_in(SERVER, locks=(LockInfo(key="k", path="/k", problem=f"holds {name!r}", waiting=waiting),))

    assert unreadable("a", 7) == unreadable("a")
    assert unreadable("b") != unreadable("a")


def of(**fields: Any) -> str:
    holders = tuple((key, replace(HOLDER, token=token)) for key, token in fields.pop("tokens", ()))
    return CAUSES[fields.pop("cause")](**fields, holders=holders).identity


@pytest.mark.parametrize(
    ("first", "same", "others"),
    [
        (
            {"cause": "host", "host": "web-1", "tokens": [("a", 5), ("b", 7)]},
            {"cause": "host", "host": "web-1", "tokens": [("c", 9), ("b", 7), ("a", 5)], "keys": ("c",)},
            [{"cause": "host", "host": "web-1", "tokens": [("a", 8)]}, {"cause": "host", "host": "web-2"}],
        ),
        (
            {"cause": "hung", "keys": ("a",), "tokens": [("a", 5)]},
            {"cause": "hung", "keys": ("a",), "tokens": [("a", 5)], "age": 90.0, "blocked": 7},
            [{"cause": "hung", "keys": ("a",), "tokens": [("a", 6)]}, {"cause": "foreign", "keys": ("a",)}],
        ),
        (
            {"cause": "silent", "keys": ("a",), "tokens": [("a", 5)], "since": NOON},
            {"cause": "silent", "keys": ("a",), "tokens": [("a", 5)], "since": NOON, "age": 90.0},
            [{"cause": "silent", "keys": ("a",), "tokens": [("a", 5)], "since": NOON + timedelta(hours=1)}],
        ),
        (
            {"cause": "flapping", "host": "web-1", "since": NOON, "values": {"count": 3}},
            {"cause": "flapping", "host": "web-1", "since": NOON, "values": {"count": 9}},
            [{"cause": "flapping", "host": "web-1", "since": "later"}, {"cause": "ended", "host": "web-1"}],
        ),
        (
            {"cause": "hot", "keys": ("a",), "since": NOON, "values": {"refused": 30}},
            {"cause": "hot", "keys": ("a",), "since": NOON, "values": {"refused": 99}, "blocked": 3},
            [{"cause": "hot", "keys": ("a",), "since": "later"}, {"cause": "hot", "keys": ("b",), "since": NOON}],
        ),
        (
            {"cause": "wearing", "keys": ("a",), "detail": "About 9,000 acquisitions are left."},
            {"cause": "wearing", "keys": ("a",), "detail": "About 8,999 acquisitions are left."},
            [{"cause": "counter", "keys": ("a",)}, {"cause": "wearing", "keys": ("b",)}],
        ),
    ],
)
def test_an_incident_is_itself(first: dict[str, Any], same: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """It stays the same while it lasts. What comes later, or elsewhere, is another one."""
    assert of(**same) == of(**first)
    assert of(**first) not in [of(**other) for other in others]
