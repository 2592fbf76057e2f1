"""Five processes lead in turn. Each leader is killed, stopped, paused, disconnected or cut off."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.chaos.report import Figures
from support.leaders import Candidate, Candidates, assert_one_at_a_time
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper]

T = 3.0  # seconds, the session timeout
TICK = 0.5  # seconds, of the test's servers
ROOM = 1.0  # seconds for a busy machine: a process starts on it, too
NAMES = ("one", "two", "three", "four", "five")
SECONDS = 60.0


@pytest.fixture
def candidates(arena: Zoo, tmp_path: Path) -> Iterator[Candidates]:
    with Candidates(arena, tmp_path, NAMES, session_timeout=T) as candidates:
        yield candidates


def killed(leader: Candidate) -> Callable[[], object]:
    """Kill it; return a function that starts it again."""
    leader.kill()
    return leader.start


def stopped(leader: Candidate) -> Callable[[], object]:
    """Ask it to end, by a signal; return a function that starts it again."""
    leader.process.send_signal(signal.SIGTERM)

    def start() -> None:
        assert leader.process.wait(10) == 0
        leader.start()

    return start


def paused(leader: Candidate) -> Callable[[], object]:
    """Pause it; return a function that resumes it."""
    leader.pause()
    return leader.resume


def cut_off(leader: Candidate) -> Callable[[], object]:
    """Cut it off from ZooKeeper; return a function that heals that."""
    leader.proxy.hang = True
    return leader.proxy.heal


def refused(leader: Candidate) -> Callable[[], object]:
    """Cut its connection, and refuse a new one for a while."""
    leader.proxy.refuse = True
    leader.proxy.cut_all()
    return leader.proxy.heal


@pytest.mark.timeout(300)
def test_there_are_never_two_leaders_while_leaders_fail(candidates: Candidates, figure: Figures) -> None:
    """
    None trusts its lead while another one does, by its own clock; and the next one leads in time.

    At once after an orderly end, within the session timeout and two ticks after any other.
    """
    zoo = candidates.zoo
    with zoo.configured():
        begin = candidates.wait_term(0.0, 30).begin
        struck: Counter[str] = Counter()
        gaps: dict[str, list[float]] = {}
        for strike in itertools.cycle([killed, stopped, paused, cut_off, refused]):
            if time.monotonic() - begin > SECONDS:
                break
            eventually(lambda: len(candidates.queue()) == len(NAMES), 30, "not all are in the queue")
            leader = eventually(candidates.queue)[0]
            eventually(lambda leader=leader: leader.terms())  # type: ignore[misc]
            at = time.monotonic()
            undo = strike(leader)
            following = candidates.wait_term(at, 15)
            gaps.setdefault(strike.__name__, []).append(following.begin - at)
            undo()
            struck[strike.__name__] += 1
            alive = [candidate.process.poll() for candidate in candidates.all.values()]
            assert alive == [None] * len(NAMES), "a candidate has ended"
        eventually(lambda: len(candidates.queue()) == len(NAMES), 30, "not all are in the queue")
        for candidate in candidates.all.values():
            assert candidate.stop() == 0
        zoo.assert_empty()
        terms = candidates.terms()
    figure("strikes", ", ".join(f"{count} {name}" for name, count in struck.items()))
    figure("leads", len(terms))
    for name, seconds in gaps.items():
        figure.spread(f"next leader after one was {name}", seconds)
    assert_one_at_a_time(terms)
    assert max(gaps["stopped"]) < ROOM
    assert max(itertools.chain.from_iterable(gaps.values())) <= T + 2 * TICK + ROOM
    assert min(struck.values()) >= 2
