"""
Histories of an imaginary queue of readers, writers, plain locks and permits, which keeps its promises.

They test the checker: it may find nothing in them, while holders are paused, killed and expired, while writers become
readers, and while the limit of the permits is changed, cleared, or perhaps changed; and must find what is broken on
purpose.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.chaos.kinds import EXCLUSIVE, LOCK, READ, SEMAPHORE, WRITE, share

SESSION: Final = 4.0  # seconds
LEASE: Final = 0.4 * SESSION
KINDS: Final = (LOCK, READ, READ, READ, WRITE, SEMAPHORE, SEMAPHORE, SEMAPHORE)
FATES: Final = ("release", "release", "release", "downgrade", "read on", "reenter", "kill", "pause", "expire", "late")

Event = dict[str, Any]


def written(text: str) -> list[Event]:
    """
    Read a history as a test writes it: a line for each event, `time owner kind field=value ...`.

    `op` is 1 and `key` is "k" unless they are given; an owner is a process, or a process and a thread, `A/two`.
    """
    events: list[Event] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        t, owner, kind, *fields = line.split()
        process = owner.partition("/")[0]
        about = {name: _value(value) for name, _, value in (field.partition("=") for field in fields)}
        event = {"t": float(t), "p": process, "o": owner if "/" in owner else f"{owner}/main", "e": kind}
        if owner == "nemesis":
            events.append({**event, "p": "driver", "e": "nemesis", "what": kind, **about})
        else:
            events.append({"op": 1, "key": "k", **event, **about})
    return events


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(eq=False)
class Node:
    """A contender in the queue, and what its owner writes down of it."""

    process: str
    op: int
    kind: str
    limit: int
    start: float
    deadline: float
    token: int = 0
    due: bool = False


@dataclass
class Family:
    """One key, its queue, and its users; `events` are sorted by time."""

    seed: int
    holds: int = 40  # and those that come of what had been asked for by then
    owners: int = 6
    kinds: Sequence[str] = KINDS
    fates: Sequence[str] = FATES
    own_limits: Sequence[int] = (2,)
    limits_change: bool = True
    known: float = 0.9
    """How often the one who sets the limit learns whether that was done."""
    key: str = "k"
    events: list[Event] = field(default_factory=list)
    queue: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._heap: list[tuple[float, int, Callable[[float], object]]] = []
        self._numbers = itertools.count()
        self._ops = itertools.count(1)
        self._token = 1000
        self._limit = 0
        self._counter = 0
        self._granted = 0
        for number in range(self.owners):
            self._at(100 + self._short(), lambda t, name=f"P{number}": self._want(t, name))  # type: ignore[misc]
        if self.limits_change:
            self._at(100.5, self._change_limit)
        while self._heap:
            t, _, do = heapq.heappop(self._heap)
            do(t)
        self.events.sort(key=lambda event: float(event["t"]))

    # --- the clock and the pen ------------------------------------------------------------------------------------

    def _short(self) -> float:
        return self._chance.uniform(0.0005, 0.01)

    def _at(self, t: float, do: Callable[[float], object]) -> None:
        heapq.heappush(self._heap, (t, next(self._numbers), do))

    def _write(self, what: str, t: float, node: Node, **about: object) -> None:
        who = {"p": node.process, "o": f"{node.process}/main", "op": node.op, "key": self.key}
        self.events.append({"t": t, "e": what, **who, **about})

    def _harm(self, what: str, t: float, process: str) -> None:
        self.events.append({"t": t, "p": "driver", "e": "nemesis", "what": what, "target": process})

    # --- the queue ------------------------------------------------------------------------------------------------

    def _want(self, t: float, process: str) -> None:
        if self._granted >= self.holds:
            return
        timeout = self._chance.choice([0.0, 0.5, 5.0, 30.0])
        kind = self._chance.choice(list(self.kinds))
        limit = self._chance.choice(list(self.own_limits))
        node = Node(process, next(self._ops), kind, limit, t, t + timeout)
        about: dict[str, object] = {"limit": limit} if kind == SEMAPHORE else {}
        self._write("invoke", t, node, timeout=timeout, kind=kind, **about)
        self._at(t + self._short(), lambda t: self._enter(t, node))

    def _enter(self, t: float, node: Node) -> None:
        self._token += self._chance.randint(1, 9)
        node.token = self._token
        self.queue.append(node)
        self._judge(t)
        self._at(max(t, node.deadline) + self._short(), lambda t: self._give_up(t, node))

    def _give_up(self, t: float, node: Node) -> None:
        if node.due:
            return
        self._gone(t, node)
        interrupted = self._chance.random() < 0.3
        self._write("refused", t, node, error="Struck" if interrupted else "Busy", definite=not interrupted)
        self._again(t, node)

    def _again(self, t: float, node: Node) -> None:
        pause = self._chance.choice([0.0, 0.0, self._chance.uniform(0, 2)])
        self._at(t + self._short() + pause, lambda t: self._want(t, node.process))

    def _gone(self, t: float, node: Node) -> None:
        if node in self.queue:
            self.queue.remove(node)
            self._judge(t)

    def _judge(self, t: float) -> None:
        for place, node in enumerate(self.queue):
            if not node.due and self._may(node, self.queue[:place]):
                node.due = True
                fate = self._chance.choice(list(self.fates))
                self._at(t + self._short(), lambda t, node=node, fate=fate: self._grant(t, node, fate))  # type: ignore[misc]

    def _may(self, node: Node, ahead: Sequence[Node]) -> bool:
        if any(not share(other.kind, node.kind) for other in ahead):
            return False
        return node.kind != SEMAPHORE or len(ahead) < (self._limit or node.limit)

    def _change_limit(self, t: float) -> None:
        """Somebody sets the limit, or clears it; mostly it is known whether that was done."""
        if self._granted >= self.holds:
            return
        node = Node("O", next(self._ops), "", 0, t, math.inf)
        limit = self._chance.choice([0, 1, 2, 3, 4])
        self._write("set_limit", t, node, limit=limit or None)
        done, known = t + self._short(), self._chance.random() < self.known
        happens = known or self._chance.random() < 0.5
        if happens:
            self._at(done, lambda t: self._set_limit(t, limit))
        if known:
            self._write("limit_set", done + self._short(), node)
        else:
            self._write("limit_failed", done + self._short(), node, definite=False)
        self._at(done + self._chance.uniform(0.1, 3), self._change_limit)

    def _set_limit(self, t: float, limit: int) -> None:
        self._limit = limit
        self._judge(t)

    # --- a hold -----------------------------------------------------------------------------------------------------

    def _grant(self, t: float, node: Node, fate: str) -> None:
        self._granted += 1
        if fate == "late":
            # Paused before it could write the grant down, until its session was over.
            self._harm("pause", t, node.process)
            self._at(t + self._chance.uniform(LEASE + 0.1, SESSION), lambda t: self._gone(t, node))
            until, back = t + LEASE, t + SESSION + self._short()
            self._harm("resume", back, node.process)
            self._write("granted", back + 1e-3, node, token=node.token, until=until)
            self._write("lost", back + 2e-3, node, reason="the lease is over")
            self._give_back(back + 3e-3, node, "release_failed")
            return
        self._write("granted", t, node, token=node.token, until=t + self._chance.uniform(0.5, 1) * LEASE)
        for _ in range(self._chance.randint(0, 3)):
            t += self._short()
            self._work(t, node)
            self._write("valid", t + 1e-4, node, until=t + self._chance.uniform(0.5, 1) * LEASE)
        t += self._short()
        if fate in ("downgrade", "read on") and node.kind not in EXCLUSIVE:
            fate = "release"
        ends: dict[str, Callable[[float, Node], None]] = {
            "release": self._release,
            "downgrade": self._downgrade,
            "read on": self._read_on,
            "reenter": self._reenter,
            "kill": self._kill,
            "pause": self._pause,
            "expire": self._expire,
        }
        ends[fate](t, node)

    def _work(self, t: float, node: Node) -> None:
        """Write the counter, or read it; as what the owner is at that moment."""

        def do(t: float) -> None:
            if node.kind == READ:
                self._write("observed", t, node, value=self._counter)
            elif node.kind in EXCLUSIVE:
                self._counter += 1
                for kind, after in (("writing", 0.0), ("fenced", 1e-5)):
                    self._write(kind, t + after, node, token=node.token, value=self._counter, ok=True)

        self._at(t, do)

    def _give_back(self, t: float, node: Node, answer: str = "released") -> None:
        gone = t + self._short()
        self._write("release", t, node)
        self._write(answer, gone + self._short(), node)
        self._at(gone, lambda t: self._gone(t, node))
        self._again(gone + 0.02, node)

    def _release(self, t: float, node: Node) -> None:
        self._give_back(t, node)

    def _downgrade(self, t: float, node: Node) -> None:
        self._write("downgrade", t, node)
        done = t + self._short()
        self._at(done, lambda t: self._reads(t, node))
        self._write("downgraded", done + 1e-4, node)
        self._read_and_release(done + 2e-4, node)

    def _reads(self, t: float, node: Node) -> None:
        node.kind = READ if node.kind in EXCLUSIVE else node.kind
        self._judge(t)

    def _read_and_release(self, t: float, node: Node) -> None:
        t += self._chance.uniform(0, 0.5)
        self._work(t, node)
        self._write("valid", t + 1e-4, node, until=t + LEASE)
        self._give_back(t + self._short(), node)

    def _read_on(self, t: float, node: Node) -> None:
        """Take the lock to read as well, and release the write lock first."""
        inner = self._take_again(t, node, READ)
        self._write("release", t + 0.02, node)
        done = t + 0.02 + self._short()
        self._at(done, lambda t: self._reads(t, node))
        self._write("released", done + 1e-4, node)
        self._write("valid", done + 2e-4, inner, until=done + LEASE)
        t = done + self._chance.uniform(0.01, 0.5)
        self._write("release", t, inner)
        self._write("released", t + 0.02, inner)
        self._at(t + 0.01, lambda t: self._gone(t, node))
        self._again(t + 0.03, node)

    def _take_again(self, t: float, node: Node, kind: str) -> Node:
        inner = Node(node.process, next(self._ops), kind, node.limit, t, t, node.token, due=True)
        self._write("invoke", t, inner, timeout=0, kind=kind)
        self._write("granted", t + 0.01, inner, token=node.token, until=t + LEASE / 2, again=True)
        return inner

    def _reenter(self, t: float, node: Node) -> None:
        inner = self._take_again(t, node, node.kind)
        self._write("release", t + 0.02, inner)
        self._write("released", t + 0.03, inner)
        self._give_back(t + 0.04, node)

    def _kill(self, t: float, node: Node) -> None:
        self._harm("kill", t, node.process)
        self._at(t + self._chance.uniform(LEASE + 0.1, SESSION), lambda t: self._gone(t, node))
        self._at(t + 1, lambda t: self._want(t, node.process + "'"))

    def _pause(self, t: float, node: Node) -> None:
        length = self._chance.uniform(0.1, 2 * SESSION)
        self._harm("pause", t, node.process)
        self._harm("resume", t + length, node.process)
        if length > SESSION:
            self._at(t + SESSION, lambda t: self._gone(t, node))
        t += length + self._short()
        if length < LEASE / 2:
            self._write("valid", t, node, until=t + LEASE / 2)
        elif self._chance.random() < 0.7:
            self._write("lost", t, node, reason="the lease is over")
        self._give_back(t + self._short(), node, "released" if length < LEASE / 2 else "release_failed")

    def _expire(self, t: float, node: Node) -> None:
        self._harm("expire", t, node.process)
        gone = t + self._chance.uniform(0, 0.05)
        self._at(gone, lambda t: self._gone(t, node))
        told = gone + self._chance.uniform(0.001, 0.9)
        while (t := t + self._chance.uniform(0.01, 0.3)) < told:
            self._write("valid", t, node, until=t + LEASE)
        self._write("lost", told, node, reason="gone")
        self._give_back(told + self._short(), node, "release_failed")
