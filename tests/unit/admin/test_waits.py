"""The graph of waits has each wait that znodes tell of, names each deadlock and no other, and is cheap if forged."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lookinfo import HOLDER

from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.nodes import Child, Kind
from django_zklock.core.queue.order import Queue
from django_zklock.inspection import Graph, LockInfo, Wait
from django_zklock.inspection.waits import MAX_CYCLES, MAX_WAITS, find_waits


def owner(pid, kind="lock", waits_for=None):
    """Return the contender of an owner that has its pid as guid, and may wait for another lock."""
    wait = None if waits_for is None else WaitsFor(waits_for, str(pid), 1)
    names = {"name": f"n{pid}", "guid": "", "thread": "MainThread", "what": "work", "about": {}}
    return replace(HOLDER, session_id=pid, pid=pid, owner=1, kind=kind, wait=wait, **names)


def lock(key, *holders, waiters=()):
    return LockInfo(key=key, path=key, holders=holders, waiters=tuple(waiters), waiting=len(waiters))


def queues(**waiters):
    """Return the queues in which these owners wait, by key."""
    children = {
        key: [Child(str(pid), Kind.LOCK, str(pid), number) for number, pid in enumerate(pids)]
        for key, pids in waiters.items()
    }
    return {key: Queue(tuple(child)) for key, child in children.items()}


def wait(holds, waits_for):
    return Wait(who=holds + waits_for, holds=holds, waits_for=waits_for, owner=holds)


def cycles(*waits):
    return Graph(waits, ()).cycles


X, Y = lock("x", owner(1, waits_for="y")), lock("y", owner(2, waits_for="x"))


def test_an_owner_that_holds_one_lock_and_waits_for_another_is_found():
    (only,) = find_waits([X], queues(y=[1]), 0.0)
    assert (only.holds, only.waits_for, only.who) == ("x", "y", "web-1 pid 1 MainThread: work")


def test_a_wait_of_which_no_znode_tells_is_not_found():
    assert find_waits([lock("x", owner(1))], queues(y=[1]), 0.0) == ()


def test_a_wait_that_the_queue_does_not_confirm_is_not_found():
    assert find_waits([X], {}, 0.0) == ()


def test_a_second_try_for_the_same_lock_is_no_wait():
    assert find_waits([X], queues(x=[1]), 0.0) == ()


@pytest.mark.parametrize(
    ("fields", "waits", "deadlocks"),
    [({}, 2, 1), ({"until": 9000}, 2, 1), ({"until": 7000}, 1, 0), ({"may_end": 1}, 2, 0)],
    ids=["lasts", "lasts for a second", "is over", "of a lock that another thread may release"],
)
def test_a_wait_is_part_of_a_deadlock_as_long_as_it_lasts(fields, waits, deadlocks):
    holder = X.holders[0]
    locks = [lock("x", replace(holder, wait=holder.wait._replace(**fields))), Y]
    known = find_waits(locks, queues(x=[2], y=[1]), 8.0)
    assert (len(known), len(Graph(known, locks).cycles)) == (waits, deadlocks)


def test_each_cycle_is_found_once_and_in_order():
    circle = [wait("a", "b"), wait("b", "c"), wait("c", "a")]
    pair = [wait("p", "q"), wait("q", "p")]
    strays = [wait("in", "a"), wait("out", "further")]
    assert cycles(*strays, *reversed(circle), *pair) == (tuple(circle), tuple(pair))
    assert cycles(*strays) == ()


# --- the graph against a simulation that lets everybody go on who can ------------------------------------------------

KINDS = ("lock", "lock", "semaphore", "read-write")


@st.composite
def states(draw):
    """Return the queues by key, and the limits. Each entry of a queue is an owner and the kind of its contender."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4))
    keys = [f"{kind} {number}" for number, kind in enumerate(kinds)]
    limits = {key: draw(st.integers(1, 2)) for key in keys}
    calls = st.tuples(st.integers(1, 5), st.sampled_from(keys), st.sampled_from(["read", "write"]))
    asked = {key: [] for key in keys}
    waiting = set()
    for pid, key, mode in draw(st.lists(calls, min_size=12, max_size=20)):
        if pid not in waiting and pid not in dict(asked[key]):
            asked[key].append((pid, mode if key.startswith("read") else key.split()[0]))
            if pid not in holders_of(asked[key], limits[key]):
                waiting.add(pid)
    return asked, limits


def holders_of(queue, limit):
    """Return the owners at the front of a queue that hold the lock."""
    if not queue:
        return []
    first = queue[0][1]
    if first == "semaphore":
        return [pid for pid, _ in queue[:limit]]
    if first != "read":
        return [queue[0][0]]
    writer = next((index for index, (_, kind) in enumerate(queue) if kind == "write"), len(queue))
    return [pid for pid, _ in queue[:writer]]


def stuck_for_ever(asked, limits):
    """Let each owner that does not wait release all that it holds, until nobody can. Return the others that hold."""
    queues = {key: list(queue) for key, queue in asked.items()}
    while True:
        held = {key: holders_of(queue, limits[key]) for key, queue in queues.items()}
        waiting = {pid for key, queue in queues.items() for pid, _ in queue if pid not in held[key]}
        moving = {pid for pids in held.values() for pid in pids} - waiting
        if not moving:
            return {pid for pids in held.values() for pid in pids}
        queues = {key: [entry for entry in queue if entry[0] not in moving] for key, queue in queues.items()}


def read(asked, limits):
    """Return the graph of these queues as a scan reads them, and the owners in its deadlocks."""
    held = {key: holders_of(queue, limits[key]) for key, queue in asked.items()}
    awaited = {pid: key for key, queue in asked.items() for pid, _ in queue if pid not in held[key]}
    locks = []
    for key, queue in asked.items():
        holders = [owner(pid, kind, awaited.get(pid)) for pid, kind in queue if pid in held[key]]
        locks.append(lock(key, *holders, waiters=[owner(pid, kind) for pid, kind in queue if pid not in held[key]]))
    waiting = {key: [pid for pid, _ in queue if pid not in held[key]] for key, queue in asked.items()}
    waits = find_waits(locks, queues(**waiting), 0.0)
    return {int(wait.owner) for cycle in Graph(waits, locks).cycles for wait in cycle}


@settings(max_examples=200)
@given(states())
def test_a_deadlock_is_named_if_and_only_if_it_is_there(state):
    """Nobody in it can go on, and everybody else is in none."""
    named, stuck = read(*state), stuck_for_ever(*state)
    assert bool(named) is bool(stuck)
    assert named <= stuck


# --- waits that anybody may forge ------------------------------------------------------------------------------------


def test_forged_waits_are_capped_in_number_and_time():
    numbers = range(MAX_WAITS + 500)
    everybody = [lock(str(number), owner(number, waits_for=str(number - 1))) for number in numbers]
    began = time.process_time()
    waits = find_waits(everybody, queues(**{str(number - 1): [number] for number in numbers}), 0.0)
    assert len(waits) == MAX_WAITS
    assert len(Graph(waits, everybody).cycles) <= MAX_CYCLES
    assert time.process_time() - began < 5
