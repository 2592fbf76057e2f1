"""
Histories as tests of the checker write them, and those of an imaginary queue that keeps its promises.

The checker may find nothing in the latter, and must find what a test breaks in them.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from support.chaos.kinds import EXCLUSIVE, READ, SEMAPHORE, share

Event = dict[str, Any]

LEASE: Final = 1.6  # seconds


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
    """A contender in the queue."""

    process: str
    op: int
    kind: str
    limit: int
    deadline: float
    token: int = 0
    granted: bool = False


class Family:
    """One key, its queue of readers, writers, locks and permits, and its users; `events` are sorted by time."""

    def __init__(self, seed: int, *, kinds: Sequence[str], holds: int = 40, owners: int = 6, limit: int = 2) -> None:
        self.events: list[Event] = []
        self._chance = random.Random(seed)
        self._kinds = kinds
        self._holds = holds  # after which nobody asks for the lock again
        self._limit = limit
        self._queue: list[Node] = []
        self._heap: list[tuple[float, int, Callable[[float], object]]] = []
        self._numbers = itertools.count()
        self._ops = itertools.count(1)
        self._token = 1000
        self._counter = 0
        for number in range(owners):
            self._ask_later(100, f"P{number}")
        while self._heap:
            t, _, do = heapq.heappop(self._heap)
            do(t)
        self.events.sort(key=lambda event: float(event["t"]))

    def _short(self) -> float:
        return self._chance.uniform(0.0005, 0.01)

    def _at(self, t: float, do: Callable[[float], object]) -> None:
        heapq.heappush(self._heap, (t, next(self._numbers), do))

    def _write(self, what: str, t: float, node: Node, **about: object) -> None:
        who = {"p": node.process, "o": f"{node.process}/main", "op": node.op, "key": "k"}
        self.events.append({"t": t, "e": what, **who, **about})

    def _ask_later(self, t: float, process: str) -> None:
        if self._holds > 0:
            self._at(t + self._short(), lambda t: self._ask(t, process))

    def _ask(self, t: float, process: str) -> None:
        timeout, kind = self._chance.choice([0.0, 0.5, 5.0, 30.0]), self._chance.choice(list(self._kinds))
        node = Node(process, next(self._ops), kind, self._limit, t + timeout)
        about = {"limit": self._limit} if kind == SEMAPHORE else {}
        self._write("invoke", t, node, timeout=timeout, kind=kind, **about)
        self._at(t + self._short(), lambda t: self._queue_up(t, node))

    def _queue_up(self, t: float, node: Node) -> None:
        self._token += self._chance.randint(1, 9)
        node.token = self._token
        self._queue.append(node)
        self._grant_all(t)
        self._at(max(t, node.deadline) + self._short(), lambda t: self._give_up(t, node))

    def _give_up(self, t: float, node: Node) -> None:
        if not node.granted:
            self._remove(t, node)
            self._write("refused", t, node, error="Busy", definite=True)
            self._ask_later(t, node.process)

    def _remove(self, t: float, node: Node) -> None:
        self._queue.remove(node)
        self._grant_all(t)

    def _grant_all(self, t: float) -> None:
        for index, node in enumerate(self._queue):
            if not node.granted and self._may(node, self._queue[:index]):
                node.granted = True
                self._at(t + self._short(), lambda t, node=node: self._hold(t, node))  # type: ignore[misc]

    def _may(self, node: Node, ahead: Sequence[Node]) -> bool:
        if any(not share(other.kind, node.kind) for other in ahead):
            return False
        return node.kind != SEMAPHORE or len(ahead) < node.limit

    def _hold(self, t: float, node: Node) -> None:
        """Work under the lock, and release it."""
        self._holds -= 1
        self._write("granted", t, node, token=node.token, until=t + self._chance.uniform(0.5, 1) * LEASE)
        for _ in range(self._chance.randint(0, 3)):
            t += self._short()
            self._at(t, lambda t: self._use_counter(t, node))
            self._write("valid", t + 1e-4, node, until=t + self._chance.uniform(0.5, 1) * LEASE)
        t += self._short()
        gone = t + self._short()
        self._write("release", t, node)
        self._write("released", gone + self._short(), node)
        self._at(gone, lambda t: self._remove(t, node))
        self._ask_later(gone + 0.02, node.process)

    def _use_counter(self, t: float, node: Node) -> None:
        """Write the counter, or read it."""
        if node.kind == READ:
            self._write("observed", t, node, value=self._counter)
        elif node.kind in EXCLUSIVE:
            self._counter += 1
            for kind, after in (("writing", 0.0), ("fenced", 1e-5)):
                self._write(kind, t + after, node, token=node.token, value=self._counter, ok=True)
