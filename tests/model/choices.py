"""
The points where a schedule can take one of several ways, and what decides there: chance, or a list of deviations.

Each point has a name that survives small changes before it: what is decided, about whom, and for the how-manieth time.
So a schedule is described whole by where it deviates from the default, and may be run again, or with fewer deviations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that may go one way or another; the first option is what happens by default."""

    name: str
    options: tuple[str, ...]
    delays: tuple[float, ...] = ()  # seconds, where the options are delays
    weights: tuple[float, ...] = ()  # of the options but the first; equal if none are given


def _delays(name, *delays):
    return Choice(name, tuple(f"{delay:g} s" for delay in delays), delays)


REQUEST = Choice(
    "request",
    ("0.001 s", "0.02 s", "0.15 s", "lost, a break", "sent, and a break", "0.5 s late, after a break"),
    (0.001, 0.02, 0.15, 0.001, 0.001, 0.5),
    (4, 3, 1, 2, 2),
)
REPLY = Choice("reply", ("0.001 s", "0.02 s", "0.15 s", "lost, a break"), (0.001, 0.02, 0.15, 0.001), (4, 3, 2))
COMMIT = _delays("commit", 0.002, 0.03, 0.3, 1.0)
APPLY = _delays("apply", 0.001, 0.02, 0.3, 1.0)
FORWARD = _delays("forward", 0.001, 0.02, 0.1)
CLOSE = _delays("closing", 0.0, 0.1, 1.0)
"""The time from the moment at which a session counts as closing to its close in the log of transactions."""
RECONNECT = _delays("reconnect", 0.05, 0.5, 3.0)
HOST = Choice("host", ("the next", "the one after", "the last"))
EVENT = Choice("event", ("0.0001 s", "0.02 s", "the loop is busy for 0.3 s"), (0.0001, 0.02, 0.3))
TIMER = _delays("timer", 0.0, 0.03)
CALLER = _delays("caller", 0.0001, 0.05, 0.5)
PREEMPT = _delays("preempt", 0.0, 0.001, 0.05)
"""The time for which other threads run in the middle of code that several threads run."""
BACKLOG = Choice("backlog", ("connection first", "loop first"))
FAULT = Choice(
    "fault",
    (
        "none",
        "the connection breaks",
        "paused for 0.5 s",
        "paused for 2 s",
        "paused for 5 s",
        "suspended for 5 s",
        "isolated for 0.5 s",
        "isolated for 2 s",
        "isolated for 6 s",
        "its server is cut off for 2 s",
        "its server is cut off for 8 s",
        "its session is killed",
        "one of its nodes is deleted",
        "a caller gives up",
        "a twin of its node is made",
        "empty parents are reaped",
        "it crashes",
        "it closes its session",
        "another server becomes the leader",
    ),
    weights=(4, 3, 3, 3, 1, 3, 3, 2, 3, 3, 1, 2, 4, 1, 2, 0.3, 0.3, 1),
)
KEPT = Choice("kept", ("all", "none", "half"))
"""The proposals without a commit that survive a change of the leader."""


class Chooser(ABC):
    def __init__(self):
        self.deviations = {}
        self.calm = False  # nothing but the default from now on
        self._counts = Counter()

    def choose(self, choice, about):
        if self.calm:
            return 0
        point = (choice.name, about, self._counts[choice.name, about])
        self._counts[choice.name, about] += 1
        option = self._decide(choice, point)
        if option:
            self.deviations[point] = option
        return option

    @abstractmethod
    def _decide(self, choice, point): ...


class Chance(Chooser):
    def __init__(self, rng, rates):
        super().__init__()
        self._rng = rng
        self._rates = rates

    def _decide(self, choice, point):
        if self._rng.random() >= self._rates.get(choice.name, 0.0):
            return 0
        return self._rng.choices(range(1, len(choice.options)), choice.weights or None)[0]


class Replay(Chooser):
    def __init__(self, deviations):
        super().__init__()
        self._wanted = dict(deviations)
        self.seen = []  # the points, and their numbers of options

    def _decide(self, choice, point):
        option = self._wanted.get(point, 0)
        if not option:
            self.seen.append((point, len(choice.options)))
        return option


OPTIONS = {
    choice.name: choice.options
    for choice in (
        REQUEST,
        REPLY,
        COMMIT,
        APPLY,
        FORWARD,
        CLOSE,
        RECONNECT,
        HOST,
        EVENT,
        TIMER,
        CALLER,
        PREEMPT,
        BACKLOG,
        FAULT,
        KEPT,
    )
}


def described(point, option):
    name, about, count = point
    return f"{name} {about} #{count}: {OPTIONS[name][option]}"
