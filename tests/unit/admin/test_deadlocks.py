"""Waits across locks, and cycles among them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from django_zklock.inspection import LockInfo, ScannedContender, Wait
from django_zklock.inspection.deadlocks import MAX_CYCLES, MAX_WAITS, find_cycles, find_waits
from unit.admin.test_dashboard import HOLDER


def somebody(pid: int, *, session: int = 0, owner: int = 1) -> ScannedContender:
    names = {"name": f"n{pid}", "guid": "", "thread": "MainThread", "what": "work", "about": {}}
    return replace(HOLDER, holds=False, granted=None, session_id=session or pid, pid=pid, owner=owner, **names)  # type: ignore[arg-type]


def lock(key: str, holder: ScannedContender, *waiters: ScannedContender) -> LockInfo:
    return LockInfo(key=key, path=key, holders=(holder,), waiters=waiters, waiting=len(waiters))


def wait(holds: str, waits_for: str) -> Wait:
    return Wait(who=holds + waits_for, holds=holds, waits_for=waits_for)


def test_an_owner_that_holds_one_lock_and_waits_for_another_is_found() -> None:
    (waits,) = find_waits([lock("x", somebody(1), somebody(3)), lock("y", somebody(2), somebody(1))])
    assert (waits.holds, waits.waits_for) == ("x", "y")
    assert waits.who == "web-1 pid 1 MainThread: work"


def test_a_holder_waits_by_the_contender_that_its_znode_names() -> None:
    holder, waiter = replace(somebody(1), holds=True, waits_as="G"), replace(somebody(2), guid="G")
    (waits,) = find_waits([lock("x", holder), lock("y", somebody(3), waiter, replace(somebody(4), guid="H"))])
    assert (waits.holds, waits.waits_for) == ("x", "y")


@pytest.mark.parametrize(
    ("contender", "other"),
    [
        (somebody(1), somebody(2)),
        (somebody(1), somebody(1, session=2)),
        (somebody(1), somebody(1, owner=2)),
        (somebody(1, owner=0), somebody(1, owner=0)),
    ],
)
def test_contenders_with_different_or_unknown_owners_are_not_joined(
    contender: ScannedContender, other: ScannedContender
) -> None:
    assert find_waits([lock("x", contender), lock("y", somebody(9), other)]) == ()


def test_a_second_try_for_the_same_lock_is_not_a_wait() -> None:
    assert find_waits([lock("x", somebody(1), somebody(1))]) == ()


def test_each_cycle_is_found_once_and_in_order() -> None:
    circle = [wait("a", "b"), wait("b", "c"), wait("c", "a")]
    pair = [wait("p", "q"), wait("q", "p")]
    strays = [wait("in", "a"), wait("c", "out"), wait("out", "further"), wait("b", "p")]
    cycles = find_cycles([*strays, *reversed(circle), *pair])
    assert cycles == (tuple(circle), tuple(pair))
    assert find_cycles(strays) == ()
    assert find_cycles([]) == ()


def shared(key: str, kind: str, holders: Sequence[int], waiter: ScannedContender) -> LockInfo:
    """A lock with several holders, which have readers' znodes or permits."""
    contenders = tuple(replace(somebody(pid), kind=kind) for pid in holders)
    return replace(lock(key, contenders[0], waiter), holders=contenders)


PERMIT, WRITER = replace(somebody(9), kind="semaphore"), replace(somebody(9), kind="write")


@pytest.mark.parametrize(
    ("kind", "holders", "waiter", "cycles"),
    [
        ("semaphore", [1], PERMIT, 1),
        ("semaphore", [1, 2], PERMIT, 1),
        ("semaphore", [1, 3], PERMIT, 0),
        ("semaphore", [3, 1, 2], PERMIT, 0),
        ("semaphore", [1, 3], somebody(9), 1),  # an exclusive waiter waits for all of them
        ("read", [1, 3], WRITER, 1),
    ],
)
def test_a_semaphore_is_in_a_cycle_only_if_all_its_holders_wait(
    kind: str, holders: list[int], waiter: ScannedContender, cycles: int
) -> None:
    """Any other holder will release its permit. A writer waits for all readers."""
    locks = [shared("pool", kind, holders, waiter), lock("a", somebody(9), somebody(1), somebody(2))]
    assert len(find_cycles(find_waits(locks), locks)) == cycles


def test_a_free_permit_also_resolves_the_waits_behind_it() -> None:
    first = shared("first", "semaphore", [1, 3], replace(somebody(2), kind="semaphore"))
    second = shared("second", "semaphore", [2], replace(somebody(1), kind="semaphore"))
    assert find_cycles(find_waits([first, second]), [first, second]) == ()


def test_forged_waits_are_capped_in_number_and_time() -> None:
    """Anybody may write payloads that seem to wait for everything, or form an endless chain."""
    everybody = [lock(str(number), somebody(1), *[somebody(1)] * 50) for number in range(500)]
    began = time.process_time()
    waits = find_waits(everybody)
    assert len(waits) == MAX_WAITS
    assert len(find_cycles(waits)) <= MAX_CYCLES
    chain = [wait(f"{number:05}", f"{number + 1:05}") for number in range(MAX_WAITS)]
    assert find_cycles(chain) == ()
    pairs = [
        forged
        for number in range(500)
        for forged in (wait(f"a{number}", f"b{number}"), wait(f"b{number}", f"a{number}"))
    ]
    assert len(find_cycles(pairs)) == MAX_CYCLES
    assert time.process_time() - began < 5
