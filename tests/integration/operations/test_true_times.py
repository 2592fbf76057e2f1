"""How long a lock has been held, if its holder had to wait for it: all that an operator reads is right to 2 s."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from support.faults import BackgroundCall
from support.locking import MANAGE, as_json, zklock
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.contrib.metrics import connect, disconnect
from django_zklock.core import clock

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db, pytest.mark.timed]

ACCURACY = 2.0  # seconds
WAIT = 4.0  # seconds; an age that begins with the wait is too great by these


def listed(zoo: Zoo) -> Any:
    """Return the lock as this process sees it."""
    return as_json("list")["locks"][0]


def listed_elsewhere(zoo: Zoo) -> Any:
    """Return the lock as a process sees it that has just been started."""
    done = subprocess.run(
        [*MANAGE, "list", "--json"], env=zoo.environment(), capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)["locks"][0]


def shown(zoo: Zoo) -> Any:
    """Return the lock as its page and `show` have it."""
    return as_json("show", "k")


def release_after_wait(zoo: Zoo, path: str) -> None:
    time.sleep(WAIT)
    zoo.client.delete(path)


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    connect(registry)
    yield registry
    disconnect(registry)


def test_the_age_of_a_hold_after_a_wait_is_right_or_an_upper_bound(zoo: Zoo, registry: CollectorRegistry) -> None:
    """In its first second, and later; in this process, in a new one, and in the metrics."""
    lock = zk_lock("k", timeout=60)
    with zoo.hold_elsewhere("k") as path:
        release = BackgroundCall(lambda: release_after_wait(zoo, path))
        lock.acquire()
        granted_at = clock.now()
        release.result()
    try:
        for look in (listed, shown, listed, listed_elsewhere, listed_elsewhere, listed, shown):
            before = clock.now() - granted_at
            seen = look(zoo)
            after = clock.now() - granted_at
            assert before - ACCURACY < seen["held_for"]
            assert seen["held_at_most"] or seen["held_for"] < after + ACCURACY
        eventually(lambda: not listed(zoo)["held_at_most"])
        assert listed(zoo)["held_for"] < clock.now() - granted_at + ACCURACY
        assert "at most" not in zklock("list") + zklock("show", "k")
        metric = registry.get_sample_value("zklock_oldest_hold_seconds", {"lock": "k", "kind": "lock"})
        assert metric is not None
        assert abs(metric - (clock.now() - granted_at)) < ACCURACY
    finally:
        lock.release()


def test_the_age_of_a_hold_of_another_client_is_called_an_upper_bound(zoo: Zoo) -> None:
    """It does not say when it got the lock. `--longer-than` and the health of the locks do not count it."""
    with zoo.hold_elsewhere("k"):
        eventually(lambda: as_json("list")["locks"][0]["held_at_most"])
        assert "at most" in zklock("list")
        assert "at most" in zklock("show", "k")
        assert as_json("list", "--longer-than=1s")["locks"] == []
