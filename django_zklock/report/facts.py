"""What is known of all locks at one moment: the queues, who waits behind whom, the servers, and the past."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.utils.translation import gettext as _

from django_zklock.conf.options import LONG_HELD
from django_zklock.report import lazy, past

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_zklock.inspection import EnsembleReport, LockInfo, ScannedContender, Snapshot, Wait

    Held: TypeAlias = tuple[LockInfo, ScannedContender]

MAX_WAITERS: Final = 500
"""Waiters of a lock among which a holder is searched, before it is blamed for its hold."""


class Facts:
    """The facts of one look, for the causes. With `sure`, the past may wait until it is known who has ended."""

    def __init__(
        self, snapshot: Snapshot, servers: EnsembleReport, long_held: float = LONG_HELD, *, sure: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.servers = servers
        self.long_held = long_held
        self.locks = {lock.key: lock for lock in snapshot.locks}
        self._sure = sure
        self.unseen: list[str] = []
        """Sentences about what was not looked at, and why."""

    @property
    def answers(self) -> bool:
        """Whether ZooKeeper answers this process."""
        return self.snapshot.answers

    def past(self, name: str, *args: Any, default: Any = ()) -> Any:
        """Return a fact of the past, or the default if nothing is known of it."""
        text = _("Losses, refusals and ended processes were not looked at: the tables of events cannot be read.")
        if text in self.unseen:
            return default
        value = past.ask(f"facts.{name}", *args, default=past.UNREADABLE)
        if value is past.UNREADABLE:
            self.unseen.append(text)
        return default if value is past.UNREADABLE or value is None else value

    @cached_property
    def unfinished(self) -> list[Any]:
        """The recorded holds that are over, and have no end in the tables. See `contrib.events.unfinished`."""
        rows, unsure = self.past("unfinished", self.snapshot, self._sure, default=([], []))
        self.unseen += unsure
        return list(rows)

    # --- Who waits for whom -----------------------------------------------------------------------------------------

    @cached_property
    def holds(self) -> list[Held]:
        """The holders that are no part of a deadlock, and have a session."""
        others = [lock for lock in self.snapshot.locks if not lock.deadlocked]
        return [(lock, holder) for lock in others for holder in lock.holders if not holder.is_orphan]

    def is_victim(self, lock: LockInfo, holder: ScannedContender) -> bool:
        """Return whether a holder itself waits for another lock: then that one is the cause, and not this hold."""
        return self._waits_in(self._edges, lock, holder) or self._waits_in(self._all_edges, lock, holder)

    def _waits_in(self, edges: Iterable[Any], lock: LockInfo, holder: ScannedContender) -> bool:
        return any((lock.key, owner) in edges for owner in lazy.inspection.deadlocks.owners(holder)[:1])

    @cached_property
    def _edges(self) -> set[tuple[str, object]]:
        return {(wait.holds, wait.owner) for wait in self.snapshot.waits}

    @cached_property
    def _all_edges(self) -> set[tuple[str, object]]:
        """A page reads the first waiter of each lock. Before a holder is blamed, the others are read, too."""
        if not self.answers or all(lock.waiting <= len(lock.waiters) for lock in self.snapshot.locks):
            return self._edges
        more = lazy.inspection.snapshot(max_age=5.0, max_waiters=MAX_WAITERS)
        self._waits = more.waits or self.snapshot.waits
        return {(wait.holds, wait.owner) for wait in more.waits}

    @cached_property
    def _waits(self) -> tuple[Wait, ...]:
        return self.snapshot.waits

    def behind(self, keys: Iterable[str]) -> tuple[int, tuple[tuple[int, Wait], ...]]:
        """
        Return how many callers wait for these locks, or for locks whose holders wait for them; and those holders.

        A semaphore counts only if all its holders wait: any other one will release its permit.
        """
        waits: defaultdict[str, list[Wait]] = defaultdict(list)
        for wait in self._waits:
            waits[wait.waits_for].append(wait)
        stuck = Counter(wait.holds for wait in self._waits)
        reached, tree = dict.fromkeys(keys), []
        rest = [(1, wait) for key in reversed(reached) for wait in reversed(waits[key])]
        while rest:
            depth, wait = rest.pop()
            lock = self.locks.get(wait.holds)
            is_free = lock is not None and lock.kind == "semaphore" and stuck[wait.holds] < len(lock.holders)
            if wait.holds not in reached and not is_free:
                reached[wait.holds] = None
                tree.append((depth, wait))
                rest += [(depth + 1, next_one) for next_one in reversed(waits[wait.holds])]
        return sum(self.locks[key].waiting for key in reached if key in self.locks), tuple(tree)
