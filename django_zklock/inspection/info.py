"""The values that inspection returns. Each text in them is capped and has printable characters only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.queue.markers import SetLimit
from django_zklock.queue.operator_hold import OperatorHold


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """The connection of this process."""

    state: str
    """ "connecting", "connected", "suspended" or "lost"."""
    server: str
    """The server that it is connected to, as "address:port"; empty without a connection."""
    session_id: int
    """0 if there is no session."""
    timeout: float
    """The session timeout, in seconds, as negotiated."""
    hosts: tuple[str, ...]
    """All servers of the ensemble, as "host:port"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedContender(ContenderInfo):
    """A holder or waiter, with its place in the queue."""

    age: float
    """Seconds since it came."""
    held_since: datetime | None
    """When it got the lock, or a little earlier; None for a waiter, or an operator hold that is over."""
    waits_behind: str
    """The name of the contender that must end first; empty for a holder."""
    may_hold: bool = False
    """Whether it may hold a permit by an earlier limit. That is not certain, so it is among the waiters."""

    @property
    def idle_for(self) -> float | None:
        """Seconds for which its process has kept the lock for its next user; None if the lock is in use."""
        if self.idle_since is None:
            return None
        return max(0.0, self.age - (self.idle_since - self.came).total_seconds())


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached properties: a page asks for them many times
class LockInfo:
    """A lock that is held or waited for."""

    key: str
    path: str
    """The path of its directory."""
    kind: str
    """ "lock"; "read-write" with readers or writers; "semaphore" if a contender wants a permit, or a limit is set."""
    holders: tuple[ScannedContender, ...]
    """Several if they read or have permits. None while the lock is handed over, or if there is a problem."""
    waiters: tuple[ScannedContender, ...]
    """In their order; no more than were requested."""
    waiting: int
    """The number of all waiters."""
    longest_wait: float | None
    """Seconds that the first waiter has waited; None without a waiter."""
    problem: str
    """Why the holders are unknown; empty if all is well."""
    limit: int | None = None
    """The permits of a semaphore: the limit that was set for all, else the highest limit in the code of a contender."""
    limit_set: SetLimit | None = None
    """The limit that was set for all, or None."""
    own_limits: tuple[int, ...] = ()
    """The limits in the code of the contenders, sorted, if they differ and none was set for all. That is a mistake."""
    expired_holds: tuple[ScannedContender, ...] = ()
    """Operator holds and minimum holds whose time is over by ZooKeeper's clock. They neither hold the lock nor wait.

    The next client of django-zklock that wants the lock ends them.
    """

    @property
    def contended(self) -> bool:
        """Whether there are waiters."""
        return self.waiting > 0

    @cached_property
    def held_for(self) -> float | None:
        """Seconds for which its first holder has held it; None without a holder, or if the lock is idle."""
        if not self.holders or self.idle_for is not None:
            return None
        holder = self.holders[0]
        since = holder.held_since or holder.came
        return max(0.0, holder.age - (since - holder.came).total_seconds())

    @cached_property
    def idle_for(self) -> float | None:
        """Seconds for which a process has kept it for its next user (`linger`); None if it is in use."""
        return self.holders[0].idle_for if self.holders else None

    @property
    def operator(self) -> OperatorHold | None:
        """The operator hold, if an operator holds the lock."""
        return next((holder.operator for holder in self.holders if holder.operator is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An owner that holds one lock and waits for another."""

    who: str
    """Host, process, thread and work."""
    holds: str
    """The key of the lock that it holds."""
    waits_for: str
    """The key of the lock that it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All locks, or some of them. Their queues are not read at one moment, but while the scan lasts."""

    taken_at: datetime
    """By ZooKeeper's clock, if that is known."""
    age: float = 0.0
    """Seconds since then."""
    locks: tuple[LockInfo, ...]
    """Sorted by key; if there are too many, those with the most waiters."""
    total: int = 0
    """The number of all locks."""
    problem: str
    """Why it is old or incomplete; empty if all is well."""
    skipped: tuple[str, ...] = ()
    """Sentences about znodes that were skipped, such as those whose names are not the key of a lock."""
    connection: ConnectionInfo
    """The present one, even if the snapshot is old."""
    waits: tuple[Wait, ...] = ()
    """The owners that hold one lock and wait for another, among the contenders that were read."""
    cycles: tuple[tuple[Wait, ...], ...] = ()
    """Deadlocks: each owner waits for the lock that the next one holds, and the last for that of the first."""
