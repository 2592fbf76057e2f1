"""A simulation of one leader: writes queue up and are committed in batches. Times are seconds."""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from django_zklock.zk.lease import LEASE_SHARE
from django_zklock.zk.session import BEAT_SHARE

MOST_IN_BATCH = 1000  # writes that a server syncs to disk together, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """How fast a leader commits: a batch takes `batch`, and the time of each write in it."""

    batch: float
    heartbeat: float
    lock_write: float


class Simulation:
    """
    The writes of many application servers, at one leader.

    Each holder sends a heartbeat in every sixth of the session timeout, unless the last one has no reply yet. Locks are
    wanted at random moments, for random paths, and held for random times. A lock that is held is granted to the next
    one that wants it when the delete of the holder is committed.
    """

    def __init__(self, leader: Leader, *, timeout: float, held: float, seed: int) -> None:
        self.acquisitions: list[float] = []  # how long each took
        self.heartbeats: list[float] = []
        self.due = 0  # heartbeats
        self.suspect = 0  # heartbeats that had no reply when the next one was due
        self.lost = 0  # heartbeats that had no reply when the lease ended
        self._leader = leader
        self._interval = timeout * BEAT_SHARE
        self._lease_left = timeout * (LEASE_SHARE - BEAT_SHARE)  # when a heartbeat is sent
        self._held = held
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0  # of the event, so that events at the same time happen in order
        self._queue: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()  # at the leader
        self._busy = False
        self._waiting: dict[int, deque[float]] = {}  # since when they want a path; the first one has it
        self._unanswered: dict[int, float] = {}  # holder -> when its heartbeat was sent

    @property
    def suspect_share(self) -> float:
        """The share of heartbeats that were due while the last one had no reply: by default, work is stopped."""
        return self.suspect / max(1, self.due)

    @property
    def lost_share(self) -> float:
        """The share of heartbeats that came too late for the lease."""
        return self.lost / max(1, self.due - self.suspect)

    def run(self, *, holders: int, paths: int, grants: float, fresh: float, seconds: float) -> None:
        """Simulate. `fresh` is the share of grants that find no directory."""
        for holder in range(holders):
            self._at(self._random.random() * self._interval, self._beat, holder)
        if grants:
            self._at(self._random.expovariate(grants), self._want, grants, paths, fresh)
        while self._events and self._events[0][0] <= seconds:
            self._now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        self.lost += sum(seconds - sent > self._lease_left for sent in self._unanswered.values())

    def _at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, call, arguments))

    # --- the leader ---------------------------------------------------------------------------------------------

    def _write(self, cost: float, committed: Callable[..., None], *arguments: Any) -> None:
        self._queue.append((cost, committed, arguments))
        if not self._busy:
            self._next_batch()

    def _next_batch(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_IN_BATCH))]
        self._busy = True
        self._at(self._now + self._leader.batch + sum(cost for cost, _, _ in batch), self._commit, batch)

    def _commit(self, batch: list[tuple[float, Callable[..., None], tuple[Any, ...]]]) -> None:
        for _, committed, arguments in batch:
            committed(*arguments)
        self._busy = False
        if self._queue:
            self._next_batch()

    # --- heartbeats ---------------------------------------------------------------------------------------------

    def _beat(self, holder: int) -> None:
        self.due += 1
        if holder in self._unanswered:
            self.suspect += 1
        else:
            self._unanswered[holder] = self._now
            self._write(self._leader.heartbeat, self._on_beat, holder)
        self._at(self._now + self._interval, self._beat, holder)

    def _on_beat(self, holder: int) -> None:
        took = self._now - self._unanswered.pop(holder)
        self.heartbeats.append(took)
        self.lost += took > self._lease_left

    # --- locks --------------------------------------------------------------------------------------------------

    def _want(self, grants: float, paths: int, fresh: float) -> None:
        path = self._random.randrange(paths)
        cost = self._leader.lock_write
        if path not in self._waiting and self._random.random() < fresh:
            # The create fails, then the directory is created, then the create succeeds.
            self._write(cost, self._write, cost, self._write, cost, self._enter, path, self._now)
        else:
            self._write(cost, self._enter, path, self._now)
        self._at(self._now + self._random.expovariate(grants), self._want, grants, paths, fresh)

    def _enter(self, path: int, since: float) -> None:
        queue = self._waiting.setdefault(path, deque())
        queue.append(since)
        if len(queue) == 1:
            self._grant(path, since)

    def _grant(self, path: int, since: float) -> None:
        self.acquisitions.append(self._now - since)
        held = self._random.expovariate(1 / self._held) if self._held else 0.0
        self._at(self._now + held, self._write, self._leader.lock_write, self._leave, path)

    def _leave(self, path: int) -> None:
        queue = self._waiting[path]
        queue.popleft()
        if queue:
            self._grant(path, queue[0])
        else:
            del self._waiting[path]
