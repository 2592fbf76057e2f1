"""
Locks of all kinds on one key as a state machine: readers, writers, exclusive locks and permits.

For permits alone it is the model `AcquiredPermits` of the Jepsen suite of Hazelcast, with a limit that may change; for
plain locks alone, a reentrant mutex with fences. Each hold is known by its number, so that nobody's release is taken
for another's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from support.chaos.kinds import EXCLUSIVE, LOCK, READ, SEMAPHORE, share
from support.chaos.operations import Op


@dataclass(frozen=True, slots=True)
class Levels:
    """How often a hold was taken as what, and not given back."""

    hold: int
    excluding: int = 0
    reading: int = 0
    permits: int = 0

    @property
    def kind(self) -> str:
        return LOCK if self.excluding else SEMAPHORE if self.permits else READ

    def more(self, kind: str, by: int = 1) -> Levels:
        if kind in EXCLUSIVE:
            return replace(self, excluding=self.excluding + by)
        if kind == SEMAPHORE:
            return replace(self, permits=self.permits + by)
        return replace(self, reading=self.reading + by)

    def __bool__(self) -> bool:
        return bool(self.excluding or self.reading or self.permits)


@dataclass(frozen=True, slots=True)
class SharedLockModel:
    """
    All kinds of locks in one queue.

    A new hold has a greater fence than all before that it could not have shared the lock with. Contenders for permits
    are taken to bring the same limit along: of different ones, each only counts those that came before it.
    """

    ends_ease: ClassVar[bool] = True
    """Whatever is given up allows others more, and forbids nobody anything: the search may use this."""

    held: frozenset[Levels] = frozenset()
    limit: int = 0
    """Permits, as set for all; 0: each contender brings its own limit."""
    fences: tuple[tuple[str, int], ...] = ()
    """The greatest so far, by kind."""

    def step(self, op: Op) -> SharedLockModel | None:
        if op.kind == "limit":
            return replace(self, limit=op.limit)
        mine = next((levels for levels in self.held if levels.hold == op.hold), None)
        others = self.held - {mine} if mine is not None else self.held
        if op.kind == "acquire":
            return self._take(op, mine, others)
        if mine is None:
            return None
        if op.kind == "downgrade":
            left = replace(mine, excluding=0, reading=mine.reading + mine.excluding) if mine.excluding else None
        elif op.kind == "lose":
            left = Levels(op.hold)
        else:
            left = self._give_back(op, mine)
        if left is None:
            return None
        return replace(self, held=others | {left} if left else others)

    def _take(self, op: Op, mine: Levels | None, others: frozenset[Levels]) -> SharedLockModel | None:
        if mine is not None:
            # The levels of one hold; nobody who only reads is let write.
            if not mine.excluding and mine.kind != op.mode:
                return None
            return replace(self, held=others | {mine.more(op.mode)})
        if any(not share(levels.kind, op.mode) for levels in others):
            return None
        if op.mode == SEMAPHORE and len(others) >= (self.limit or op.limit or math.inf):
            return None
        family = LOCK if op.mode in EXCLUSIVE else op.mode
        fences = dict(self.fences)
        if 0 < op.fence <= max((fence for kind, fence in fences.items() if not share(kind, op.mode)), default=0):
            return None
        fences[family] = max(op.fence, fences.get(family, 0))
        held = others | {Levels(op.hold).more(op.mode)}
        return replace(self, held=held, fences=tuple(sorted(fences.items())))

    def _give_back(self, op: Op, mine: Levels) -> Levels | None:
        for kind in (op.mode, READ):  # the level of one who gave up writing is one to read
            left = mine.more(kind, -1)
            if min(left.excluding, left.reading, left.permits) >= 0:
                return left
        return None
