"""Rings of owners in several processes: those that never close are no deadlock, and those that close always end."""

import contextlib
import random
import time

import pytest
from support.proxy import Proxy
from support.zoo import next_line

PROCESSES = 3
OWNERS = 6  # of a ring that never closes
OPEN = """
import sys
from support.rings import OpenRing
ring = OpenRing(int(sys.argv[1]), float(sys.argv[3]))
ring.run(*map(int, sys.argv[2].split(",")))
print(ring.deadlocks, ring.steps)
"""
CLOSED = """
import sys
from support.rings import ClosedRing
ring = ClosedRing(int(sys.argv[1]))
ring.run(*map(int, sys.argv[2].split(",")), go=lambda: (print("ready"), input()))
print(ring.victims, ring.acquired)
"""
SOON = {"SITE_ZKLOCK": '{"DEADLOCK_TIMEOUT": 0.15}'}

pytestmark = [pytest.mark.timeout(0)]  # it ends by the clock


def shares(size):
    """Return the owners of each process."""
    return [",".join(map(str, range(first, size, PROCESSES))) for first in range(min(size, PROCESSES))]


def test_a_ring_whose_locks_other_threads_release_is_no_deadlock(zoo, request):
    seconds = request.config.getoption("--soak-seconds")
    chance = random.Random(7)
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(zoo.all_hosts)) for _ in range(PROCESSES)]
        processes = [
            stack.enter_context(zoo.running(OPEN, str(OWNERS), owners, str(seconds), hosts=proxy.address, **SOON))
            for owners, proxy in zip(shares(OWNERS), proxies, strict=True)
        ]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            proxy = chance.choice(proxies)
            proxy.hang = True
            time.sleep(chance.uniform(0.1, 1.5))
            proxy.hang = False
            time.sleep(chance.uniform(0.5, 3.0))
        printed = [next_line(process).split() for process in processes]
    assert [deadlocks for deadlocks, _ in printed] == ["0"] * PROCESSES
    assert sum(int(steps) for _, steps in printed) > seconds


@pytest.mark.parametrize("size", [2, 3, 5, 20, 150])
def test_a_ring_of_any_size_ends(zoo, size):
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(zoo.running(CLOSED, str(size), owners)) for owners in shares(size)]
        for process in processes:
            assert next_line(process) == "ready"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        began = time.monotonic()
        printed = [next_line(process).split() for process in processes]
        took = time.monotonic() - began
        assert all(printed), "a process has failed, as after a loss on a machine that is too busy"
    victims, acquired = (sum(int(numbers[index]) for numbers in printed) for index in range(2))
    assert victims >= 1
    assert victims + acquired == size
    assert took < 30
