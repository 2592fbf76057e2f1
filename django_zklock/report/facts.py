"""The facts about all locks at one moment: the queues, who waits behind whom, the servers, and the past."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_zklock.report import lazy, past

if TYPE_CHECKING:
    from django_zklock.inspection import EnsembleReport, LockInfo, ScannedContender, Snapshot

    Held: TypeAlias = tuple[LockInfo, ScannedContender]

LEAST_SECONDS: Final = 10.0
"""Another client may block a waiter for so long: it does not say since when it holds the lock."""
SLACK: Final = 2.0
"""Seconds by which a hold may seem younger than a refusal since its grant: a look takes a moment, and clocks differ."""


class Facts:
    """The facts of one look, for the causes."""

    def __init__(self, snapshot: Snapshot, servers: EnsembleReport) -> None:
        self.snapshot = snapshot
        self.servers = servers
        self.graph = lazy.inspection.Graph(snapshot.waits, snapshot.locks)
        self.behind, self.locks = self.graph.behind, self.graph.locks
        self.knows_past = True
        """Whether the past could be read so far. Each question may wait for a database that is away."""
        self.unseen: list[str] = []
        """Sentences about what was not looked at, and why."""

    def past(self, name: str, *args: Any) -> Any:
        """Return a fact of the past; something empty if nothing is known of it."""
        value = past.ask(name, *args) if self.knows_past else ()
        if value is past.UNREADABLE:
            self.knows_past = False
            text = _("Losses, refusals and ended processes were not looked at: the tables of events cannot be read.")
            self.unseen.append(text)
        return value or ()

    # --- Who waits for whom -----------------------------------------------------------------------------------------

    @cached_property
    def holds(self) -> list[Held]:
        """The holders that are no part of a deadlock, and have a session."""
        others = [lock for lock in self.snapshot.locks if not lock.deadlocked]
        return [(lock, holder) for lock in others for holder in lock.holders if not holder.is_orphan]

    @cached_property
    def late(self) -> list[Held]:
        """The holds of our own work that have lasted for too long. No other lock is the cause of that."""
        own = [(lock, holder) for lock, holder in self.holds if holder.source not in {"operator", "other"}]
        in_use = [(lock, holder) for lock, holder in own if holder.idle_for is None and not holder.is_silent]
        return [pair for pair in in_use if self.is_hung(*pair)]

    @cached_property
    def hung(self) -> list[tuple[list[Held], list[Held]]]:
        """For each process that hangs: the late holds that keep callers from their work, and all its late holds."""
        processes: defaultdict[Any, list[Held]] = defaultdict(list)
        for lock, holder in self.late:  # pods may have equal names and pids, and leases of all clients one session
            processes[holder.session_id, holder.host, holder.pid].append((lock, holder))
        needed = [([pair for pair in late if self._is_needed(*pair)], late) for late in processes.values()]
        return [(stuck, late) for stuck, late in needed if stuck]

    @cached_property
    def refused(self) -> dict[str, float]:
        """By key, how many seconds ago a caller was refused last, or skipped its work. Nobody waits for these locks."""
        keys = tuple(lock.key for lock, _holder in self.late if not lock.waiting)
        return dict(self.past("refused", keys)) if keys else {}

    def _is_needed(self, lock: LockInfo, holder: ScannedContender) -> bool:
        """Return whether callers wait for a lock, or were refused since the holder got it."""
        return lock.waiting > 0 or self.refused.get(lock.key, math.inf) < holder.certain_duration + SLACK

    def is_hung(self, lock: LockInfo, holder: ScannedContender) -> bool:
        """Return whether a holder has the lock for too long, and no other lock is the cause of that."""
        return self._is_late(lock, holder) and not self.waits_elsewhere(lock, holder)

    def _is_late(self, lock: LockInfo, holder: ScannedContender) -> bool:
        if holder.lasts:  # others stand by, unless they hold other locks meanwhile
            return holder.is_silent or any(self._is_late(*pair) for pair in self._victims(lock))
        if holder.source == "other":
            return (lock.longest_wait or 0.0) >= min(holder.long_after, LEAST_SECONDS)
        return holder.is_long

    def waits_elsewhere(self, lock: LockInfo, holder: ScannedContender) -> bool:
        return self.graph.waits_elsewhere(lock.key, holder)

    def is_victim(self, lock: LockInfo) -> bool:
        """Return whether all holders of a lock wait for another one, which is the cause then."""
        return bool(lock.holders) and all(self.waits_elsewhere(lock, holder) for holder in lock.holders)

    def _victims(self, lock: LockInfo) -> list[Held]:
        """Return the holders of other locks that wait behind a lock, and that others wait for."""
        keys = [wait.holds for _depth, wait in self.behind([lock.key])[1]]
        locks = [self.locks[key] for key in keys if key in self.locks and self.locks[key].waiting]
        return [(other, holder) for other in locks for holder in other.holders if not holder.lasts]
