"""Thousands of hand-overs, while givers, adopters and the leader of the servers are killed."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos.handing import Journal
from support.ensemble import Ensemble
from support.zoo import TESTS, Zoo

from django_zklock import zk_lock

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(900)]

KEYS = tuple("abcdefghijkl")
HAND_OVERS = 2000
T = 4.0  # seconds, of a session
WITHIN = 2.0  # seconds for an adoption
BLOCKED = WITHIN + T + 6.0  # seconds until a lock has a new owner; it may be that nobody wants it for a moment
PROCESSES = 5
FAULTS = 4  # in a row
LEADERS = 3  # that are killed at least
LONGEST = 600.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(nodes=3) as ensemble:
        yield ensemble


def start(arena: Zoo, directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that hands over and adopts."""
    arguments = [sys.executable, "-m", "support.chaos.handing", str(directory), str(WITHIN), *KEYS]
    environment = arena.environment(arena.all_hosts, session_timeout=T)
    return subprocess.Popen(arguments, cwd=TESTS, env=environment, stderr=subprocess.DEVNULL)


def strike(processes: list[subprocess.Popen[bytes]], ensemble: Ensemble, arena: Zoo, directory: Path) -> str:
    """Kill one process, or the leader of the servers, and replace it."""
    if random.random() < 0.1:
        leader = ensemble.leader
        leader.kill()
        time.sleep(2.0)
        leader.start()
        leader.wait_ready()
        return "leader"
    index = random.randrange(PROCESSES)
    processes[index].kill()
    processes[index].wait()
    processes[index] = start(arena, directory)
    return "process"


def test_a_lock_that_is_handed_over_has_one_owner(arena: Zoo, ensemble: Ensemble, tmp_path: Path) -> None:
    """Its tokens never fall, and no lock is blocked for longer than the time to adopt and a session."""
    (tmp_path / "texts").mkdir()
    processes = [start(arena, tmp_path) for _ in range(PROCESSES)]
    struck: Counter[str] = Counter()
    quiet: list[float] = []  # when each time without faults began
    began = time.monotonic()
    journal = Journal()
    try:
        while journal.counts["given"] < HAND_OVERS or struck["leader"] < LEADERS:
            assert time.monotonic() < began + LONGEST
            for _ in range(FAULTS):
                time.sleep(random.uniform(0.3, 1.0))
                struck[strike(processes, ensemble, arena, tmp_path)] += 1
            quiet.append(time.monotonic())
            time.sleep(BLOCKED)
            journal = Journal.read(tmp_path.glob("*.journal"))
        (tmp_path / "stop").touch()
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    journal = Journal.read(tmp_path.glob("*.journal"))
    print(f"{dict(journal.counts)}, killed: {dict(struck)}, {time.monotonic() - began:.0f} s")
    assert journal.counts["adopted"] >= HAND_OVERS / 2
    longest = 0.0
    for key in KEYS:
        periods = journal.of(key)
        for before, after in itertools.pairwise(periods):
            assert before.end < after.begin, f"two owners of {key}: {before} and {after}"
            is_same = before.path[-10:] == after.path[-10:]
            assert before.token < after.token or (is_same and before.token == after.token), f"{before} and {after}"
        for since in quiet:
            owned = min(period.begin for period in periods if period.begin > since)
            longest = max(longest, owned - since)
    print(f"longest time without a new owner after the last fault: {longest:.2f} s")
    assert longest < BLOCKED
    with arena.configured(arena.all_hosts):
        for key in KEYS:  # where nobody has adopted the last text, this ends the hold
            with zk_lock(key, timeout=BLOCKED):
                pass
    assert arena.contenders() == []
