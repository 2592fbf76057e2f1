"""
Locks inside locks, at random: the work of an owner, and the judge of the deadlocks that it was told.

If all owners take locks in the order of the keys, no two can wait for each other, so each `LockDeadlock` is false. If
they take them in any order, one is true only if the history allows a circle. The owner writes down what it wants before
it asks, and what it has left after that. An event that an abort has prevented makes the judge more generous.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from support.chaos.history import Recorder
from support.chaos.holds import Event
from support.chaos.kinds import WRITE
from support.chaos.random_work import DOWNGRADES, WORK, Wish
from support.chaos.subjects import Held, Lost, Refused, Subject

DEADLOCK = "LockDeadlock"
NESTS = 0.6  # of the steps under a lock
LONG, LONG_SHARE = 1.0, 0.2  # seconds at most, and of all steps; mostly it is `WORK`
SETS = 0.15  # of the requests are for two locks
TIMEOUTS = (0, 0.4, 0.6, 1, 3, None, None)  # seconds


class GaveWay(Exception):
    """The owner leaves all its blocks."""


class Nesting:
    """One owner's work. The wish {"hands_over": True} is a lock that is handed over from owner to owner."""

    def __init__(
        self,
        lock: Subject,
        recorder: Recorder,
        keys: Mapping[str, Sequence[Wish]],
        chance: random.Random,
        *,
        in_order: bool,
    ) -> None:
        self._lock = lock
        self._recorder = recorder
        self._keys = keys
        self._chance = chance
        self._in_order = in_order
        self._name = f"{os.getpid()}/{threading.current_thread().name}"

    def once(self, outer: tuple[str, ...] = ()) -> None:
        """Take one lock or two, work, and perhaps take others meanwhile."""
        keys = self._draw(outer)
        if not keys:
            return
        self._note("wants", outer, keys)
        try:
            with self._block(keys) as held:
                self._note("has", outer, keys)
                self._work(held, (*outer, *keys))
        except Refused as error:
            if str(error) == DEADLOCK:
                self._note_deadlock(error.__cause__)
                raise GaveWay from None  # the others wait for what this owner has
        except Lost:
            pass
        finally:
            self._note("left", outer, keys)

    def _note(self, what: str, outer: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self._recorder.write("nesting", o=self._name, what=what, depth=len(outer), keys=keys)

    def _note_deadlock(self, error: Any) -> None:
        circle = [(f"{link.holder.pid}/{link.holder.thread}", link.holds, link.waits_for) for link in error.circle]
        self._recorder.write("deadlock", o=self._name, circle=circle, text=str(error))

    def _draw(self, outer: tuple[str, ...]) -> tuple[str, ...]:
        most = max(outer, default="") if self._in_order else ""
        keys = [key for key in self._keys if key not in outer and key > most]
        return tuple(self._chance.sample(keys, min(len(keys), 2 if self._chance.random() < SETS else 1)))

    def _block(self, keys: tuple[str, ...]) -> AbstractContextManager[Any]:
        if len(keys) > 1:
            return self._lock.block_all(keys)
        wish, timeout = self._chance.choice(self._keys[keys[0]]), self._chance.choice(TIMEOUTS)
        if "hands_over" in wish:
            return self._lock.handed_over(keys[0], timeout)
        return self._lock.block(keys[0], timeout, dict(wish))

    def _work(self, held: Held | Mapping[str, Held], outer: tuple[str, ...]) -> None:
        for _ in range(self._chance.choice((1, 2, 3))):
            time.sleep(self._chance.uniform(0, LONG if self._chance.random() < LONG_SHARE else WORK))
            if isinstance(held, Held):
                if held.kind == WRITE and self._chance.random() < DOWNGRADES:
                    held.downgrade()
                held.check()
            if self._chance.random() < NESTS:
                self.once(outer)


@dataclass(slots=True, eq=False)
class Stay:
    """The time in which an owner wanted some locks, and had them."""

    depth: int
    keys: tuple[str, ...]
    start: float
    granted: float | None = None
    end: float = float("inf")

    def waits(self, at: float) -> bool:
        """Tell whether it may have waited then."""
        return self.start <= at <= (self.end if self.granted is None else self.granted)

    def holds(self, at: float) -> bool:
        """Tell whether it may have held a lock then; of two, it may have one while it waits for the other."""
        return self.start <= at <= self.end and (self.granted is not None or len(self.keys) > 1)


def false_deadlocks(history: Iterable[Event], *, within: float) -> list[Event]:
    """
    Return the deadlocks whose circle was there at no moment of the wait, in the last seconds before it was told.

    Each link of a circle is an owner with the lock that it has, and the one that it waits for.
    """
    stays: dict[str, list[Stay]] = defaultdict(list)
    deadlocks: list[tuple[Event, Stay]] = []
    for event in history:
        mine = stays[event["o"].partition("/")[2]]  # without the name of the process
        if event["e"] == "deadlock":
            deadlocks.append((event, mine[-1]))
        if event["e"] != "nesting":
            continue
        if event["what"] == "has":
            mine[-1].granted = event["t"]
            continue
        for stay in mine:
            if stay.depth >= event["depth"]:
                stay.end = min(stay.end, event["t"])
        if event["what"] == "wants":
            mine.append(Stay(event["depth"], tuple(event["keys"]), event["t"]))
    return [
        event for event, victim in deadlocks if not _is_possible(event, max(victim.start, event["t"] - within), stays)
    ]


def _is_possible(deadlock: Event, start: float, stays: Mapping[str, Sequence[Stay]]) -> bool:
    """A circle begins with the last of its waits. So it is enough to look at the beginning of each."""
    mine = {owner: [stay for stay in stays[owner] if stay.end >= start] for owner, _, _ in deadlock["circle"]}
    starts = [max(stay.start, start) for of_owner in mine.values() for stay in of_owner if stay.start <= deadlock["t"]]
    return any(
        all(
            any(held in stay.keys and stay.holds(at) for stay in mine[owner])
            and any(awaited in stay.keys and stay.waits(at) for stay in mine[owner])
            for owner, held, awaited in deadlock["circle"]
        )
        for at in starts
    )
