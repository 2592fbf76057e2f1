"""Thousands of hand-overs, while givers, adopters and the leader of the servers are killed."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos.handing import Journal
from support.ensemble import Ensemble
from support.zoo import TESTS, Zoo, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(900)]

KEYS = tuple("abcdefghijkl")
HAND_OVERS = 2000
T = 4.0  # seconds, of a session
WITHIN = 2.0  # seconds for an adoption
ROOM = 3.0  # seconds; a busy machine, the ticks of the servers, and the start of a process
PROCESSES = 5
OUTAGE = 12.0  # seconds from the kill of a leader until all sessions are connected again, at most
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


def test_a_lock_that_is_handed_over_has_one_owner(arena: Zoo, ensemble: Ensemble, tmp_path: Path) -> None:
    """Its token stays, and no lock is blocked for longer than the time to adopt and a session, whoever is killed."""
    (tmp_path / "texts").mkdir()
    chance = random.Random()
    processes = [start(arena, tmp_path) for _ in range(PROCESSES)]
    outages: list[tuple[float, float]] = []
    kills: list[float] = []
    began = time.monotonic()
    journal = Journal()
    try:
        while journal.counts["given"] < HAND_OVERS and time.monotonic() < began + LONGEST:
            time.sleep(chance.uniform(0.5, 2.5))
            if chance.random() < 0.08 or (not outages and len(kills) > 5):
                leader = ensemble.leader
                outages.append((time.monotonic(), time.monotonic() + OUTAGE))
                leader.kill()
                time.sleep(2.0)
                leader.start()
                leader.wait_ready()
            else:
                index = chance.randrange(PROCESSES)
                processes[index].kill()
                processes[index].wait()
                kills.append(time.monotonic())
                processes[index] = start(arena, tmp_path)
            journal = Journal.read(tmp_path.glob("*.journal"))
        (tmp_path / "stop").touch()
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    journal = Journal.read(tmp_path.glob("*.journal"))
    print(f"{dict(journal.counts)}, {len(kills)} kills, {len(outages)} leaders, {time.monotonic() - began:.0f} s")
    assert journal.counts["given"] >= HAND_OVERS
    assert journal.counts["adopted"] >= HAND_OVERS / 2
    assert len(kills) > 10
    assert outages
    longest = 0.0
    for key in KEYS:
        for before, after in itertools.pairwise(journal.of(key)):
            assert before.end < after.begin, f"two owners of {key}: {before} and {after}"
            assert before.token <= after.token, f"tokens of {key}: {before} and {after}"
            is_same_lock = before.path[-10:] == after.path[-10:]
            assert is_same_lock or before.token < after.token, f"tokens of {key}: {before} and {after}"
            # A contender of a process that was killed later may have been the next one, too.
            free = max([before.end, *(kill for kill in kills if kill < after.begin)])
            excused = sum(max(0.0, min(after.begin, end) - max(free, begin)) for begin, end in outages)
            longest = max(longest, after.begin - free - excused)
    print(f"longest time without an owner, from the last kill on: {longest:.2f} s")
    assert longest < WITHIN + T + ROOM
    eventually(lambda: not arena.contenders(), WITHIN + T + ROOM)
