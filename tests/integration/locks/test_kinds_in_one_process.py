"""All kinds of locks in one process: what they leave behind, and what a fork inherits."""

from __future__ import annotations

import contextlib
import gc

import pytest
from support.faults import client, connected, session
from support.zoo import Zoo, eventually

from django_zklock import ReadWriteLock, zk_lock, zk_locks
from django_zklock.locks.held import held_locks
from django_zklock.locks.protocol.registry import Registry

pytestmark = pytest.mark.zookeeper


def use_all_kinds(number: int) -> None:
    """Take every kind once or more, with bounds that are never reached."""
    rw = ReadWriteLock("rw", warn_after=300, max_hold=400)
    with rw.write() as hold:
        with rw.read():
            pass
        if number % 2:
            hold.downgrade()
    with rw.write():
        rw.read().acquire()
    rw.read().release()
    with zk_lock("permits", limit=2, warn_after=1000 - number, max_hold=2000 - number):
        pass
    with zk_lock("kazoos", compat="kazoo", max_hold=200):
        pass
    with zk_locks("a", "b", rw.read(), warn_after=100), zk_lock("short", min_hold=0.001):
        pass


def sizes() -> dict[str, int]:
    """Count what is kept for locks."""
    registry = session().attached(Registry)
    return {
        "guids": len(registry.guids),
        "departures": len(registry.deleting),
        "observers": len(session().observers),
        "watches": sum(map(len, (*client()._data_watchers.values(), *client()._child_watchers.values()))),
        "holds": len(held_locks._kept) + len(held_locks._weak) + len(held_locks._guards),
    }


@pytest.mark.chaos
def test_two_thousand_holds_of_all_kinds_leave_nothing(zoo: Zoo) -> None:
    """Neither timers, watches, observers, guids nor entries in any table, here; nor nodes in ZooKeeper."""
    connected()
    for number in range(150):
        use_all_kinds(number)
    gc.collect()
    at_rest = {**dict.fromkeys(sizes(), 0), "observers": 1}  # the registry
    with contextlib.suppress(AssertionError):
        eventually(lambda: sizes() == at_rest, 5)
    assert sizes() == at_rest
    eventually(lambda: sum(timer.pending for _, _, timer in session().loop._timers) < 10, 5, "timers are left")
    assert zoo.reading("rw") == []
