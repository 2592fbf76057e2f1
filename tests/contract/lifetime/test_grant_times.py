"""The znode of a holder says when it got the lock, from its second second on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.faults import proxied
from support.proxy import SET_DATA
from support.zoo import Zoo, eventually

from django_zklock import inspection, zk_lock
from django_zklock.core import clock

pytestmark = [pytest.mark.zookeeper, pytest.mark.timed]

ACCURACY = timedelta(seconds=2)


def granted(key: str) -> datetime | None:
    """Return when its present holder got the lock, as its znode says."""
    lock = inspection.look_at(key)
    return None if lock is None or not lock.holders else lock.holders[0].granted


@contextmanager
def held_in_thread(key: str, **options: Any) -> Iterator[list[datetime]]:
    """Hold a lock in a thread during the block; yield a list that gets the time of the grant."""
    grants: list[datetime] = []
    done = threading.Event()

    def hold() -> None:
        with zk_lock(key, timeout=20, **options):
            grants.append(datetime.now(timezone.utc))
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield grants
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("options", [{}, {"linger": 1}, {"compat": "kazoo"}], ids=str)
def test_a_holder_that_had_waited_says_when_it_was_granted(zoo: Zoo, options: dict[str, Any]) -> None:
    """With `linger`, it may have got the lock inside its process; that keeps it for less time than `zoo` waits."""
    lock = zk_lock("k", timeout=20, **options)
    lock.acquire()
    with held_in_thread("k", **options) as grants:
        waited_since = datetime.now(timezone.utc)
        time.sleep(2.5)
        lock.release()
        eventually(lambda: grants and abs((granted("k") or waited_since) - grants[0]) < ACCURACY)


def test_a_short_hold_writes_nothing(zoo: Zoo) -> None:
    """The time of the grant costs one write, which only a hold of a second pays."""
    began = clock.now()
    with zk_lock("k"):
        eventually(lambda: granted("k"))
        assert clock.now() - began >= 1


def test_the_time_of_the_grant_survives_a_lost_connection(zoo: Zoo) -> None:
    """The connection that should have carried it ends."""
    with proxied(zoo) as proxy:
        lost = proxy.kill_before_op(SET_DATA)
        with zk_lock("k", abort_on="lost"):
            assert lost.wait(10)
            eventually(lambda: granted("k"))
