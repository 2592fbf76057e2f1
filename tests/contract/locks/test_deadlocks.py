"""Owners that wait for each other's locks: one of them gets LockDeadlock, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
from support.faults import BackgroundCall
from support.zoo import Zoo

from django_zklock import Lock, zk_lock, zk_locks
from django_zklock.exceptions import LockDeadlock

pytestmark = pytest.mark.zookeeper

Outcome: TypeAlias = "LockDeadlock | None"


def nested(outer: Lock, inner: Lock, ready: threading.Barrier) -> Outcome:
    """Acquire one lock inside another, once all owners have the first one. Return the deadlock, if any."""
    with outer:
        ready.wait(10)
        try:
            with inner:
                return None
        except LockDeadlock as error:
            return error


def outcomes(pairs: Sequence[tuple[Lock, Lock]]) -> list[Outcome]:
    """Run one thread for each pair of locks, which acquires one inside the other."""
    ready = threading.Barrier(len(pairs))
    calls = [BackgroundCall(lambda pair=pair: nested(*pair, ready)) for pair in pairs]
    return [call.result() for call in calls]


def only_victim(outcomes: Sequence[Outcome]) -> LockDeadlock:
    """Return the one deadlock."""
    (victim,) = [outcome for outcome in outcomes if outcome is not None]
    return victim


def ring(count: int, **options: Any) -> list[tuple[Lock, Lock]]:
    """Return pairs of locks by which so many owners form a circle."""
    return [
        (zk_lock(f"ring/{index}", **options), zk_lock(f"ring/{(index + 1) % count}", **options))
        for index in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_one_thread_of_a_circle_is_the_victim(zoo: Zoo, count: int) -> None:
    """Its error names each owner once, what that holds, and what it waits for, in the order of the circle."""
    victim = only_victim(outcomes(ring(count)))
    holds = [link.holds for link in victim.circle]
    assert sorted(holds) == [f"ring/{index}" for index in range(count)]
    assert [link.waits_for for link in victim.circle] == [*holds[1:], holds[0]]
    assert victim.lock == victim.circle[0].waits_for
    zoo.assert_empty()
