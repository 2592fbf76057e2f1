"""The facts about all locks at one moment: the queues, who waits behind whom, the servers, and the past."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_zklock import conf
from django_zklock.conf.options import LONG_HELD
from django_zklock.report import lazy, past

if TYPE_CHECKING:
    from django_zklock.inspection import EnsembleReport, LockInfo, ScannedContender, Snapshot

    Held: TypeAlias = tuple[LockInfo, ScannedContender]

LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is. Another client may block a waiter for so long."""


class Facts:
    """
    The facts of one look, for the causes.

    With `sure`, the past may wait until it is known who has ended.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        servers: EnsembleReport,
        long_held: float = LONG_HELD,
    ) -> None:
        self.snapshot = snapshot
        self.servers = servers
        self.long_held = long_held
        self.graph = lazy.inspection.Graph(snapshot.waits, snapshot.locks)
        self.behind, self.locks = self.graph.behind, self.graph.locks
        self.knows_past = True
        """Whether the past could be read so far. Each question may wait for a database that is away."""
        self.unseen: list[str] = []
        """Sentences about what was not looked at, and why."""

    def past(self, name: str, *args: Any, default: Any = ()) -> Any:
        """Return a fact of the past, or the default if nothing is known of it."""
        if not self.knows_past:
            return default
        value = past.ask(name, *args, default=past.UNREADABLE)
        if value is past.UNREADABLE:
            self.knows_past = False
            text = _("Losses, refusals and ended processes were not looked at: the tables of events cannot be read.")
            self.unseen.append(text)
        return default if value is past.UNREADABLE or value is None else value

    # --- Who waits for whom -----------------------------------------------------------------------------------------

    @cached_property
    def holds(self) -> list[Held]:
        """The holders that are no part of a deadlock, and have a session."""
        others = [lock for lock in self.snapshot.locks if not lock.deadlocked]
        return [(lock, holder) for lock in others for holder in lock.holders if not holder.is_orphan]

    @cached_property
    def hung(self) -> dict[Any, tuple[list[Held], list[Held]]]:
        """By process, the holds of our own work that others wait for too long, and all its holds that may be blamed."""
        processes: defaultdict[Any, tuple[list[Held], list[Held]]] = defaultdict(lambda: ([], []))
        for lock, holder in self.holds:
            if holder.source in {"operator", "other"} or holder.is_silent:
                continue
            stuck, held = processes[holder.host, holder.pid]
            if lock.waiting and holder.idle_for is None and self.is_hung(lock, holder):
                stuck.append((lock, holder))
            if not holder.lasts or (lock, holder) in stuck[-1:]:
                held.append((lock, holder))
        return {
            process: (stuck, [pair for pair in held if not self.waits_elsewhere(*pair)])
            for process, (stuck, held) in processes.items()
            if stuck
        }

    def is_hung(self, lock: LockInfo, holder: ScannedContender) -> bool:
        """Return whether a holder has the lock for too long, and no other lock is the cause of that."""
        return self._is_late(lock, holder) and not self.waits_elsewhere(lock, holder)

    def _is_late(self, lock: LockInfo, holder: ScannedContender) -> bool:
        if holder.lasts:  # others stand by, unless they hold other locks meanwhile
            return holder.is_silent or any(self._is_late(*pair) for pair in self._victims(lock))
        if holder.source == "other":  # it does not say since when it holds the lock
            return (lock.longest_wait or 0.0) >= min(self.long_held, LEAST_SECONDS)
        return holder.certain_duration >= self.long_for(lock)

    def long_for(self, lock: LockInfo) -> float:
        """Return the seconds from which on a hold is too long: the `warn_after` of the lock, if the settings have one."""
        declared: float | None = conf.current().options_of_key(lock.key).get("warn_after")
        return self.long_held if declared is None else declared

    def waits_elsewhere(self, lock: LockInfo, holder: ScannedContender) -> bool:
        return self.graph.waits_elsewhere(lock.key, holder)

    def _victims(self, lock: LockInfo) -> list[Held]:
        """Return the holders of other locks that wait behind a lock, and that others wait for."""
        keys = [wait.holds for _depth, wait in self.behind([lock.key])[1]]
        locks = [self.locks[key] for key in keys if key in self.locks and self.locks[key].waiting]
        return [(other, holder) for other in locks for holder in other.holders if not holder.lasts]

