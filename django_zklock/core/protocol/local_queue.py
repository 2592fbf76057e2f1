"""
Limit the waiters of this process in the queue of one key.

At most `most_waiting` contenders of a process wait in ZooKeeper. The others wait in the local queue here, and enter in
the order in which they came. A waiter with too little time for a grant lets the others go first. Otherwise, under
overload, each would enter just before it gives up. With a thousand callers that wait half a second, that doubled the
work and halved the grants. `locks.lingering` says why its queue is another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from django_zklock.core import clock

MAX_WAITING = 32  # contenders of this process that wait in one directory, each with a znode
ENOUGH = 1.25  # times the last wait in ZooKeeper: with less remaining time, a waiter lets the others go first


class Admittable(Protocol):
    """A contender that may have to wait in the local queue."""

    @property
    def deadline(self) -> float | None:
        """When it gives up, on `clock.now()`."""

    def on_admitted(self) -> None:
        """Create the znode now: there is room in the directory."""


@dataclass(slots=True, eq=False)
class LocalQueue:
    """The contenders of this process that wait for one key. It exists as long as there are any."""

    _drop: Callable[[], object]  # called when no contender waits any more
    most_waiting: int = MAX_WAITING
    _admitted: dict[Admittable, float] = field(default_factory=dict)  # those that may be in ZooKeeper; since when
    _queue: OrderedDict[Admittable, None] = field(default_factory=OrderedDict)  # first come, first served
    _late: OrderedDict[Admittable, None] = field(default_factory=OrderedDict)  # from `_queue`: too little time
    _last_wait: float = 0.0  # seconds that the last granted contender had waited in ZooKeeper
    _admitting: bool = False

    @property
    def length(self) -> int:
        """How many contenders wait here."""
        return len(self._queue) + len(self._late)

    @property
    def waiting(self) -> int:
        """How many contenders of this process wait, here or in ZooKeeper."""
        return len(self._admitted) + self.length

    def admit(self, contender: Admittable) -> bool:
        """Admit a contender if there is room. Return whether it may create its znode now."""
        if contender in self._admitted:
            return True
        if len(self._admitted) < self.most_waiting:  # then nobody waits here
            self._admitted[contender] = clock.now()
            return True
        return False

    def has(self, contender: Admittable) -> bool:
        """Return whether a contender waits here; from any thread."""
        return contender in self._queue or contender in self._late

    def append(self, contender: Admittable) -> None:
        """Have a contender wait until it is admitted."""
        self._queue[contender] = None

    def admit_now(self, contender: Admittable) -> None:
        """Admit a contender that waits here, even if there is no room."""
        self._queue.pop(contender, None)
        self._late.pop(contender, None)
        self._admitted[contender] = clock.now()
        contender.on_admitted()

    def remove(self, contender: Admittable, *, granted: bool = False) -> None:
        """Remove a contender, which may have been `granted` the lock, and admit the next one."""
        admitted_at = self._admitted.pop(contender, None)
        if granted and admitted_at is not None:
            self._last_wait = clock.now() - admitted_at
        self._queue.pop(contender, None)
        self._late.pop(contender, None)
        if self._admitting:
            return  # the loop below is running, and has called this
        self._admitting = True
        try:
            while (self._queue or self._late) and len(self._admitted) < self.most_waiting:
                now = clock.now()
                admitted = self._pop_next(now)
                self._admitted[admitted] = now
                admitted.on_admitted()
        finally:
            self._admitting = False
        if not self._admitted:
            self._drop()

    def _pop_next(self, now: float) -> Admittable:
        first_late = next(iter(self._late), None)
        if first_late is None or not self._has_time(first_late, now):  # grants may be faster now
            while self._queue:
                contender, _ = self._queue.popitem(last=False)
                if self._has_time(contender, now):
                    return contender
                self._late[contender] = None
        return self._late.popitem(last=False)[0]

    def _has_time(self, contender: Admittable, now: float) -> bool:
        return contender.deadline is None or contender.deadline - now >= ENOUGH * self._last_wait
