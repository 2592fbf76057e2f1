"""
Knows what was seen lately, so that many who ask at the same time cost one look; and what was seen last, for when
ZooKeeper is away.

It belongs to the session and runs on its protocol's thread, so it needs no lock, and a forked child has none of it.
What is shown is made of what was read by those who asked, on their own threads: with thousands of contenders that
takes longer than a heartbeat may be late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from django_zklock.inspection.describe import describe
from django_zklock.inspection.found import Found
from django_zklock.inspection.turns import SeenTurns
from django_zklock.inspection.values import LockInfo, Wait
from django_zklock.inspection.waits import cycles, waits
from django_zklock.inspection.walk import Extent, Walk
from django_zklock.zk import clock
from django_zklock.zk.session import Session

MOST_SHELVES: Final = 8  # extents that are kept apart
LATE: Final = 0.1  # seconds after its patience in which a walk still tells what it has found

Described = tuple[tuple[LockInfo, ...], tuple[Wait, ...], tuple[tuple[Wait, ...], ...]]


@dataclass(slots=True, eq=False)
class Sight:
    """What was found, described when it is first asked for; two threads that ask at once may both do it."""

    found: Found
    since: Mapping[tuple[str, str], float]
    _described: Described | None = field(default=None, repr=False)  # replaced whole

    def describe(self) -> Described:
        """Return the locks, the waits and the circles."""
        if self._described is None:
            locks = describe(self.found, self.since)
            across = waits(locks)
            self._described = locks, across, cycles(across, locks)
        return self._described


@dataclass(frozen=True, slots=True)
class Reply:
    """What somebody who asked is told."""

    sight: Sight | None
    """None if nothing was ever seen."""
    problem: str


class _Asker:
    def __init__(self, answer: Callable[[Reply], object]) -> None:
        self._answer: Callable[[Reply], object] | None = answer

    @property
    def waits(self) -> bool:
        return self._answer is not None

    def tell(self, reply: Reply) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(reply)


class _Shelf:
    """One extent: the last reply, and the walk that is under way with those who wait for it or for the next."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.made_at = 0.0  # on clock.now()
        self.patience = 0.0  # of the walk that is or was under way
        self.good: Sight | None = None
        self.walk: Walk | None = None
        self.askers: list[_Asker] = []
        self.next: list[tuple[float, _Asker]] = []  # with their patience


class Desk:
    """All that this process knows of the queues of others."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns = SeenTurns()
        self._shelves: dict[Extent, _Shelf] = {}
        self._good: Sight | None = None  # the last that was whole, of whatever extent

    def ask(self, extent: Extent, patience: float, max_age: float, answer: Callable[[Reply], object]) -> None:
        """
        Have a reply given to `answer`, once, in little more than `patience` seconds.

        It is of a look that ended, or if one is under way, that began, at most `max_age` seconds ago.
        """
        shelf = self._shelf(extent)
        now = clock.now()
        if shelf.reply is not None and shelf.walk is None and now - shelf.made_at < max_age:
            enough = not shelf.reply.problem or patience <= shelf.patience  # who was in a hurry may have seen little
            if enough:
                answer(shelf.reply)
                return
        asker = _Asker(answer)
        self._session.loop.call_later(patience + LATE, lambda: asker.tell(self._late(shelf)))
        if shelf.walk is None:
            self._begin(shelf, extent, patience, [asker])
        elif now - shelf.walk.began < max_age and patience <= shelf.patience:
            shelf.askers.append(asker)
        else:
            shelf.next.append((patience, asker))

    def look(self, key: str, patience: float, max_waiters: int, answer: Callable[[Reply], object]) -> None:
        """Have one lock looked at anew."""

        def done(found: Found) -> None:
            answer(Reply(Sight(found, self._turns.take(found, complete=False)), found.problem))

        Walk(self._session, Extent(None, max_waiters, key), patience, done).begin()

    def _shelf(self, extent: Extent) -> _Shelf:
        shelf = self._shelves.pop(extent, None) or _Shelf()
        self._shelves[extent] = shelf  # the one used last is the last
        for old in [each for each, shelf in self._shelves.items() if shelf.walk is None][:-MOST_SHELVES]:
            del self._shelves[old]
        return shelf

    def _begin(self, shelf: _Shelf, extent: Extent, patience: float, askers: list[_Asker]) -> None:
        def done(found: Found) -> None:
            self._on_found(shelf, extent, found)

        shelf.askers = askers
        shelf.patience = patience
        shelf.walk = Walk(self._session, extent, patience, done)
        shelf.walk.begin()

    def _on_found(self, shelf: _Shelf, extent: Extent, found: Found) -> None:
        sight = Sight(found, self._turns.take(found, complete=found.complete))
        if found.listed:
            shelf.good = self._good = sight
        last = sight if found.listed else shelf.good or self._good
        shelf.reply = Reply(last or sight, found.problem)
        shelf.made_at = clock.now()
        shelf.walk = None
        askers, shelf.askers = shelf.askers, []
        for asker in askers:
            asker.tell(shelf.reply)
        following, shelf.next = [each for each in shelf.next if each[1].waits], []
        if following:
            self._begin(shelf, extent, max(each[0] for each in following), [each[1] for each in following])

    def _late(self, shelf: _Shelf) -> Reply:
        return Reply(shelf.good or self._good, self._session.explain())
