"""Owners that wait for each other's locks: one of them gets LockDeadlock, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from support.faults import BackgroundCall, connected, expire, proxied, session
from support.primitives import end_session
from support.proxy import GET_CHILDREN, GET_DATA, MULTI, SYNC, Proxy
from support.zoo import Zoo, eventually, next_line, settle

from django_zklock import zk_lock, zk_locks, zk_read, zk_semaphore, zk_write
from django_zklock.core.protocol import deadlock
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import Payload
from django_zklock.exceptions import LockDeadlock, LockLost, LockTimeout
from django_zklock.signals import lock_deadlocked

pytestmark = pytest.mark.zookeeper

Locks: TypeAlias = "contextlib.AbstractContextManager[object]"
Outcome: TypeAlias = "LockDeadlock | None"
SOON = 0.3  # seconds of DEADLOCK_TIMEOUT in tests that do not measure it


@pytest.fixture(autouse=True)
def soon(zoo: Zoo) -> Iterator[None]:
    with zoo.configured(DEADLOCK_TIMEOUT=SOON):
        yield


def nested(outer: Locks, inner: Locks, ready: Callable[[], object] = int) -> Outcome:
    """Acquire locks inside others, once all owners have the first ones. Return the deadlock, if any."""
    with outer:
        ready()
        try:
            with inner:
                return None
        except LockDeadlock as error:
            return error


def outcomes(*pairs: tuple[Locks, Locks]) -> list[Outcome]:
    """Run one thread for each pair of locks, which acquires one inside the other."""
    ready = partial(threading.Barrier(len(pairs)).wait, 10)
    calls = [BackgroundCall(partial(nested, outer, inner, ready)) for outer, inner in pairs]
    return [call.result() for call in calls]


def only_victim(outcomes: Sequence[Outcome]) -> LockDeadlock:
    """Return the one deadlock."""
    (victim,) = [outcome for outcome in outcomes if outcome is not None]
    return victim


def ring(count: int) -> list[tuple[str, str]]:
    """Return the keys by which so many owners form a circle."""
    return [(f"ring/{index}", f"ring/{(index + 1) % count}") for index in range(count)]


def assert_is_ring(victim: LockDeadlock, count: int) -> None:
    """See that the error names each owner once, what it holds and what it waits for, in the order of the circle."""
    holds = [link.holds for link in victim.circle]
    assert sorted(holds) == [f"ring/{index}" for index in range(count)]
    assert [link.waits_for for link in victim.circle] == [*holds[1:], holds[0]]
    assert (victim.lock, str(victim.ahead)) == (holds[1], str(victim.circle[1].holder))


# --- kinds of owners ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5])
def test_one_thread_of_a_circle_is_the_victim(zoo: Zoo, count: int) -> None:
    """After about a second, by default."""
    with zoo.configured():
        victim = only_victim(outcomes(*[(zk_lock(outer), zk_lock(inner)) for outer, inner in ring(count)]))
    assert_is_ring(victim, count)
    zoo.assert_empty()


@pytest.mark.parametrize("count", [2, 3])
def test_one_coroutine_of_a_circle_is_the_victim(zoo: Zoo, count: int) -> None:
    async def run(outer: str, inner: str, ready: asyncio.Event) -> Outcome:
        async with zk_lock(outer):
            held.append(outer)
            if len(held) == count:
                ready.set()
            await ready.wait()
            try:
                async with zk_lock(inner):
                    return None
            except LockDeadlock as error:
                return error

    async def main() -> list[Outcome]:
        ready = asyncio.Event()
        return await asyncio.gather(*(run(outer, inner, ready) for outer, inner in ring(count)))

    held: list[str] = []
    assert_is_ring(only_victim(asyncio.run(main())), count)
    zoo.assert_empty()


NESTED = """
import sys
from django_zklock.exceptions import LockDeadlock
from django.test.utils import override_settings
from django.conf import settings
with override_settings(ZKLOCK={**settings.ZKLOCK, "DEADLOCK_TIMEOUT": 0.3}), zk_lock(sys.argv[1]):
    print("held")
    input()
    try:
        with zk_lock(sys.argv[2]):
            print("acquired")
    except LockDeadlock as error:
        print(len(error.circle))
"""


@pytest.mark.parametrize("count", [2, 5])
def test_one_of_several_processes_is_the_victim(zoo: Zoo, count: int) -> None:
    """The last owner is a thread of this process."""
    *others, (outer, inner) = ring(count)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(zoo.running(NESTED, *keys)) for keys in others]

        def begin() -> None:
            for process in processes:
                assert next_line(process) == "held"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()

        own = nested(zk_lock(outer), zk_lock(inner), begin)
        printed = [next_line(process) for process in processes]
    assert sorted([*printed, str(len(own.circle)) if own else "acquired"]) == [str(count), *["acquired"] * (count - 1)]


# --- kinds of locks -------------------------------------------------------------------------------------------------


CIRCLES: dict[str, Callable[[], tuple[tuple[Locks, Locks], ...]]] = {
    "a writer waits for a reader": lambda: ((zk_read("a"), zk_write("b")), (zk_read("b"), zk_write("a"))),
    "a reader waits for a writer": lambda: ((zk_write("a"), zk_read("b")), (zk_write("b"), zk_read("a"))),
    "several locks inside one": lambda: ((zk_lock("a"), zk_locks("b", "c")), (zk_lock("c"), zk_lock("a"))),
    "a lock that lingers": lambda: (
        (zk_lock("a", linger=30), zk_lock("b")),
        (zk_lock("b"), zk_lock("a", linger=30)),
    ),
    "locks that linger": lambda: (
        (zk_lock("a", linger=30), zk_lock("b", linger=30)),
        (zk_lock("b", linger=30), zk_lock("a", linger=30)),
    ),
    "a key in kazoo's grammar": lambda: (
        (zk_lock("a", compat="kazoo"), zk_lock("b")),
        (zk_lock("b"), zk_lock("a", compat="kazoo")),
    ),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_one_owner_of_a_circle_of_any_kind_is_the_victim(zoo: Zoo, name: str) -> None:
    assert len(only_victim(outcomes(*CIRCLES[name]())).circle) == 2


@pytest.mark.parametrize(("keys", "awaited"), [("ab", "b"), ("abc", "b"), ("abc", "c")])
def test_locks_that_zk_locks_has_so_far_are_part_of_a_circle(zoo: Zoo, keys: str, awaited: str) -> None:
    """Its caller waits for the next one."""
    with contextlib.ExitStack() as stack:

        def wait_for_both() -> None:
            calls.append(BackgroundCall(partial(nested, contextlib.nullcontext(), zk_locks(*keys))))
            zoo.wait_contenders("a", 1)
            zoo.wait_contenders(awaited, 2)

        calls: list[BackgroundCall[Outcome]] = []
        own = nested(zk_lock(awaited), zk_lock("a"), wait_for_both)
        other = calls[0].result()
    assert {link.holds for link in only_victim([own, other]).circle} == {"a", awaited}


def test_a_lock_that_was_acquired_twice_is_held_until_the_last_release(zoo: Zoo) -> None:
    outer = contextlib.ExitStack()
    again = zk_lock("a")

    def leave_inner_block() -> None:
        with again:
            pass
        ready.wait(10)

    ready = threading.Barrier(2)
    other = BackgroundCall(partial(nested, zk_lock("b"), zk_lock("a"), partial(ready.wait, 10)))
    with outer:
        own = nested(again, zk_lock("b"), leave_inner_block)
    only_victim([own, other.result()])


def test_a_reader_waits_for_a_reader_behind_a_writer(zoo: Zoo) -> None:
    """No reader passes a waiting writer, so the circle goes through a writer that holds nothing."""

    def queue_behind_writer() -> None:
        zoo.wait_contenders("b", 2)
        writers.append(BackgroundCall(partial(nested, contextlib.nullcontext(), zk_write("a"))))
        zoo.wait_contenders("a", 2)

    writers: list[BackgroundCall[Outcome]] = []
    ready = threading.Event()
    other = BackgroundCall(partial(nested, zk_read("a"), zk_lock("b"), partial(ready.wait, 10)))
    zoo.wait_contenders("a", 1)
    with zk_lock("b"):
        ready.set()
        queue_behind_writer()
        own = nested(contextlib.nullcontext(), zk_read("a"))
    victim = only_victim([own, other.result()])
    assert sorted(link.holds for link in victim.circle) == ["a", "b"]
    assert writers[0].result() is None


def test_a_circle_of_permits_is_not_ended(zoo: Zoo) -> None:
    """Another holder may release its permit. So both wait until their timeouts; the page shows it."""
    locks = {key: [zk_semaphore(key, limit=1, timeout=1.5) for _ in range(2)] for key in "ab"}
    calls: list[BackgroundCall[Outcome]] = []
    ready = partial(threading.Barrier(2).wait, 10)
    for outer, inner in ("ab", "ba"):
        calls.append(BackgroundCall(partial(nested, locks[outer].pop(), locks[inner].pop(), ready)))
    errors = []
    for call in calls:
        call.join(10)
        errors.append(call._error)
    assert any(isinstance(error, LockTimeout) for error in errors)


def test_waiters_in_the_local_queue_get_a_znode_for_it(zoo: Zoo) -> None:
    """Many waiters of this process may be ahead of it, and do not have to leave first."""
    connected().attached(Registry).most_waiting = 1
    ready = threading.Event()
    other = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b"), partial(ready.wait, 10)))
    zoo.wait_contenders("a", 1)
    with zk_lock("b"):
        bystander = BackgroundCall(partial(nested, contextlib.nullcontext(), zk_lock("a")))
        zoo.wait_contenders("a", 2)
        ready.set()
        own = nested(contextlib.nullcontext(), zk_lock("a"))
    only_victim([own, other.result()])
    assert bystander.result() is None
