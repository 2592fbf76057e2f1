"""
The values that inspection returns, and their JSON. Each text is capped and has printable characters only.

The JSON is the same for the admin and for `manage.py zklock`. Tokens in it are strings, as they have 64 bits and
JavaScript's numbers have 53. Sessions are hexadecimal strings. What is absent is null, times are in ISO 8601, and spans
of time are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.functional import cached_property

from django_zklock import conf
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.queue.markers import SetLimit
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.queue.release_request import ReleaseRequest

HOLDER_UNREAD: Final = "The znode of its holder was not read."
UNLISTED: Final = "Its directory cannot be listed:"  # the beginning of the problem of such a queue
NO_KEY: Final = "is not the key of a lock."  # the end of a sentence about a znode that was skipped
OVER: Final = "Each look deletes up to 100 of them."  # the end of that about holds that are over
LONG_HELD: Final = 60.0  # seconds from which on a hold is long, if no `warn_after` says otherwise
GRANT_WRITTEN_AFTER: Final = 2.0  # seconds; by then a holder has written when it got the lock


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
    """The servers in `URL`, as "host:port"."""
    refused: bool = False
    """Whether a server refuses this process, or its settings are wrong. To start servers is no remedy."""

    @property
    def session(self) -> str:
        """The session; empty if there is none."""
        return session_hex(self.session_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedContender(ContenderInfo):
    """A holder or waiter, with its place in the queue."""

    age: float
    """Seconds since it came."""
    holds: bool
    """Whether it holds the lock; False for a waiter, and for an operator hold that is over."""
    waits_behind: str
    """The name of the contender that must end first; empty for a holder."""

    @property
    def session(self) -> str:
        """Its session; empty if its znode has none."""
        return session_hex(self.session_id)

    @property
    def held_since(self) -> datetime | None:
        """When it got the lock, or when it came if that is not known; None for a waiter."""
        return self.since if self.holds else None

    @property
    def held_at_most(self) -> bool:
        """Whether `duration` is an upper bound: it holds the lock, and its client did not write since when."""
        return self.holds and self.granted is None and self.age > GRANT_WRITTEN_AFTER

    @property
    def since(self) -> datetime:
        """When it got the lock; for a waiter, when it came."""
        return (self.granted if self.holds else None) or self.came

    @property
    def duration(self) -> float:
        """Seconds since `since`."""
        return max(0.0, self.age - (self.since - self.came).total_seconds())

    @property
    def certain_duration(self) -> float:
        """Seconds for which it has certainly held the lock."""
        return 0.0 if self.held_at_most else self.duration

    @property
    def long_after(self) -> float:
        """Seconds after which a hold is long: its `warn_after`, else that in `DEFAULTS` of this process, else 60."""
        return self.warn_after or conf.current().defaults.get("warn_after") or LONG_HELD

    @property
    def is_long(self) -> bool:
        """Whether it has certainly held the lock for so long."""
        return self.certain_duration >= self.long_after

    @property
    def ends(self) -> datetime | None:
        """When it loses the lock by itself (`max_hold`); None if it does not, if it waits, or if that is not known."""
        certain = self.held_since is not None and self.max_hold and not self.held_at_most
        return self.since + timedelta(seconds=self.max_hold) if certain else None

    @property
    def silent_for(self) -> float:
        """Seconds for which a sign of life of its work is overdue; 0 if it is not, or if its work gives none."""
        if self.renewal_due is None or not self.holds:
            return 0.0
        return max(0.0, self.age - (self.renewal_due - self.came).total_seconds())

    @property
    def is_silent(self) -> bool:
        """Whether it is meant to last, and a sign of life of its work is overdue."""
        return bool(self.lasts) and self.silent_for > 0

    @property
    def source(self) -> str:
        """The kind of its program: "celery", "view", "operator", "other" client or "code"."""
        if self.operator is not None:
            return "operator"
        if self.client != "zklock":
            return "other"
        return "celery" if "task" in self.about else "view" if "request" in self.about else "code"

    @property
    def can_be_asked(self) -> bool:
        """Whether its client handles release requests."""
        return self.session_id != 0 and self.client != "kazoo"

    @property
    def idle_for(self) -> float | None:
        """Seconds for which its process has kept the lock for its next user; None if the lock is in use."""
        if self.idle_since is None:
            return None
        return max(0.0, self.age - (self.idle_since - self.came).total_seconds())


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached properties: a page asks for them many times
class LockInfo:
    """A lock. With the defaults it is free."""

    key: str
    path: str
    """The path of its directory."""
    kind: str = "lock"
    """ "lock"; "read-write" with readers or writers; "semaphore" if a contender wants a permit, or a limit is set."""
    holders: tuple[ScannedContender, ...] = ()
    """
    Several if they read or have permits. None while the lock passes to the first waiter, or if there is a problem.

    After a change of the limit, these are at most the holders: one that came before may wait (`holders_at_most`).
    """
    waiters: tuple[ScannedContender, ...] = ()
    """In their order; no more than were requested."""
    waiting: int = 0
    """The number of all waiters."""
    longest_wait: float | None = None
    """Seconds that the first waiter has waited; None without a waiter."""
    problem: str = ""
    """Why the holders are unknown; empty if all is well."""
    limit: int | None = None
    """The permits of a semaphore: the limit that was set for all, else the highest limit in the code of a contender."""
    limit_set: SetLimit | None = None
    """The limit that was set for all, or None."""
    own_limits: tuple[int, ...] = ()
    """The limits in the code of the contenders, sorted, if they differ and none was set for all. That is a mistake."""
    expired_holds: tuple[ScannedContender, ...] = ()
    """Operator holds and minimum holds whose time is over by ZooKeeper's clock. They neither hold the lock nor wait.

    Each snapshot has some of them deleted.
    """

    deadlocked: bool = False
    """Whether it is part of a deadlock. Only a snapshot of all locks can say so."""

    @property
    def holders_at_most(self) -> bool:
        """Whether the limit was lowered or cleared, so that some of the holders may wait: nobody else can know."""
        return self.limit is not None and self.kind == "semaphore" and len(self.holders) > self.limit

    @property
    def is_unread(self) -> bool:
        """Whether its holders are unknown because the time was too short, or this client may not read them."""
        return self.problem.startswith((HOLDER_UNREAD, UNLISTED))

    @cached_property
    def held_for(self) -> float | None:
        """Seconds for which its first holder has held it; None without a holder, or if the lock is idle."""
        if not self.holders or self.idle_for is not None:
            return None
        return self.holders[0].duration

    @property
    def is_unreadable(self) -> bool:
        """Whether nobody gets it: a znode of another program is in its queue, or its counter is used up."""
        return bool(self.problem) and not self.is_unread

    @property
    def trouble(self) -> tuple[bool, bool, float, float]:
        """A value to sort by: deadlocks, unreadable queues, long waits and long holds are greater, in this order."""
        return self.deadlocked, bool(self.problem), self.longest_wait or 0.0, self.held_for or 0.0

    @property
    def lasts(self) -> str:
        """The kind of its first hold if that is meant to last: "leader", "run" or "lease"; else empty."""
        return self.holders[0].lasts if self.holders else ""

    @cached_property
    def idle_for(self) -> float | None:
        """Seconds for which a process has kept it for its next user (`linger`); None if it is in use."""
        return self.holders[0].idle_for if self.holders else None

    @property
    def operator(self) -> OperatorHold | None:
        """Its operator hold: of an operator, a minimum hold, or of a reserved key."""
        return next((holder.operator for holder in self.holders if holder.operator is not None), None)

    @property
    def states(self) -> tuple[str, ...]:
        """All states that it is in, as in `report.formatting.STATE_LABELS`; the worst first."""
        hold = self.operator
        is_long = self.held_for is not None and self.holders[0].is_long
        states = {
            "deadlocked": self.deadlocked,
            "unread": self.is_unread,
            "unreadable": self.is_unreadable,
            "passing": not self.holders and self.waiting > 0,
            "operator": hold is not None and not hold.task_id,
            "reserved": hold is not None and bool(hold.task_id),
            "kept": self.idle_for is not None,
            "long": is_long and not self.lasts,
            "lasting": is_long and bool(self.lasts),
            "contended": self.waiting > 0,
            "held": self.held_for is not None,
        }
        return tuple([state for state, is_in in states.items() if is_in]) or ("free",)

    @property
    def state(self) -> str:
        """The worst of its states."""
        return self.states[0]


@dataclass(frozen=True, slots=True)
class Wait:
    """An owner that holds one lock and waits for another."""

    who: str
    """Host, process, thread and work."""
    holds: str
    """The key of the lock that it holds."""
    waits_for: str
    """The key of the lock that it waits for."""
    owner: str = field(default="", repr=False)
    """The guid of the contender by which it waits: two greenlets may have the same `who`."""
    may_end: bool = False
    """Whether another thread may release the lock that it holds, so that it is in no deadlock."""


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
    silent: bool = False
    """Whether no reply came for most of the time, though the connection may still count as alive."""
    skipped: tuple[str, ...] = ()
    """Sentences about znodes that were skipped: holds that are over, or names that are not the key of a lock."""
    connection: ConnectionInfo
    """The present one, even if the snapshot is old."""
    waits: tuple[Wait, ...] = ()
    """The owners that hold one lock and wait for another, among the contenders that were read."""
    cycles: tuple[tuple[Wait, ...], ...] = ()
    """Deadlocks: each owner waits for the lock that the next one holds, and the last for that of the first."""

    @property
    def answers(self) -> bool:
        """Whether ZooKeeper answers this process."""
        return self.state == "connected"

    @property
    def state(self) -> str:
        """The state of the connection. It is suspended, too, while no reply comes, before the client has noticed."""
        is_silent = self.silent and self.connection.state == "connected"
        return "suspended" if is_silent else self.connection.state

    @property
    def complete(self) -> bool:
        """Whether each lock was read now. A hold that is over, or a znode whose name is no key, is not a lock."""
        read = sum(not lock.is_unread for lock in self.locks)
        return not self.problem and read == self.total and all(text.endswith((NO_KEY, OVER)) for text in self.skipped)

    @property
    def deadlocked(self) -> frozenset[str]:
        """The keys of the locks in a deadlock."""
        return frozenset(wait.holds for cycle in self.cycles for wait in cycle)


# --- JSON -----------------------------------------------------------------------------------------------------------

NAMES: Final[dict[type, tuple[str, ...]]] = {
    Snapshot: ("taken_at", "age", "problem", "skipped", "total", "connection", "cycles", "locks"),
    ConnectionInfo: ("state", "server", "session", "timeout", "hosts"),
    Wait: ("who", "holds", "waits_for"),
    LockInfo: (
        *("key", "path", "kind", "state", "limit", "limit_set", "own_limits", "holders", "expired_holds", "waiters"),
        *("waiting", "held_for", "idle_for", "longest_wait", "problem"),
    ),
    ScannedContender: (
        *("name", "path", "guid", "kind", "token", "session", "came", "client", "host", "pid", "thread", "what"),
        *("about", "template", "operator", "release_request", "limit", "max_hold", "warn_after", "session_timeout"),
        *("idle_since", "lasts", "held_since", "held_at_most", "age", "waits_behind"),
    ),
    OperatorHold: ("by", "reason", "since", "until", "token"),
    ReleaseRequest: ("by", "reason", "at"),
    SetLimit: ("limit", "by", "reason", "when"),
}
"""The names of each value in JSON, in their order."""
_OR_ABSENT: Final = {"max_hold", "warn_after", "session_timeout", "pid"}
"""Names of numbers that are absent if they are 0. A text is absent if it is empty."""


def to_json(value: Any, names: tuple[str, ...] | None = None) -> Any:
    """Return a value for JSON: one of inspection, or these attributes of any other."""
    names = names or NAMES.get(type(value))
    if names is not None:
        return {name: to_json(_field(value, name)) for name in names}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return [to_json(item) for item in value] if isinstance(value, tuple) else value


def _field(value: Any, name: str) -> object:
    field = getattr(value, name)
    if name == "token":
        return str(field)
    is_absent = field == "" or (name in _OR_ABSENT and not field)
    return None if is_absent else field
