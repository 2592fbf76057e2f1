"""What can be seen of the locks, as values; every text in them is capped, and prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django_zklock.queue.limits import SetLimit
from django_zklock.queue.operators import OperatorHold
from django_zklock.queue.revocations import ReleaseRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The connection of this process, by which it was looked."""

    state: str
    """ "connecting", "connected", "suspended" or "lost"."""
    server: str
    """The one server it is connected to, as "address:port"; empty if it is to none."""
    session_id: int
    """0 if there is no session."""
    timeout: float
    """Seconds, as negotiated."""
    hosts: tuple[str, ...]
    """All servers that it may connect to, as "host:port"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderInfo:
    """
    One who holds a lock or waits for it.

    What a node cannot tell is empty or 0: only clients of django-zklock say what they run.
    """

    name: str
    """Of its node; no two contenders have had the same."""
    path: str
    guid: str
    token: int
    """The node's czxid: for a holder, its fencing token."""
    session_id: int
    """The session whose end deletes the node; 0 if no session's does."""
    came: datetime
    """When it came, by ZooKeeper's clock."""
    age: float
    """Seconds since it came."""
    held_since: datetime | None
    """When it got the lock, or a little earlier; None for who waits, or is over."""
    client: str
    """ "zklock", "kazoo", "Curator" or "unknown"."""
    host: str
    pid: int
    thread: str
    what: str
    """The work; for another client, what it wrote."""
    about: Mapping[str, str] = field(hash=False)
    """The same item by item: of a task "task", "id", "queue", "retries"; of a view "request"."""
    template: str
    """The name of the lock, with its fields unfilled."""
    operator: OperatorHold | None
    """The hold of a person, if it is one."""
    waits_behind: str
    """The name of the contender whose end it waits for; empty for a holder."""
    kind: str = "lock"
    """What it wants: the "lock", to "read" or "write", or a permit of a "semaphore"; who wrote first and only reads now
    is one who reads."""
    release_request: ReleaseRequest | None = None
    """The last release request to it, or None."""
    limit: int | None = None
    """Of who wants a permit, how many there are, as its code says; None if it does not tell."""
    may_hold: bool = False
    """Whether nobody can tell if it waits, or has kept a permit when the limit was changed; it is among the waiters."""
    owner: int = 0
    """The number of its thread, greenlet or asyncio task, unique in its session; 0 if it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """One lock that somebody holds or waits for."""

    key: str
    path: str
    """Of its directory."""
    kind: str
    """ "lock"; "read-write" if somebody takes a side; "semaphore" if somebody wants a permit, or a limit is set."""
    holders: tuple[ContenderInfo, ...]
    """Who holds it; several if they read or have permits. Empty while it is handed over, or if there is a problem."""
    waiters: tuple[ContenderInfo, ...]
    """Who waits, first come first; no more than were asked for."""
    waiting: int
    """How many wait in all."""
    longest_wait: float | None
    """Seconds that the first of those who wait has waited; None if nobody waits, or it has just left."""
    problem: str
    """Why nobody can tell whose turn it is, or who holds it; empty if all is well."""
    limit: int | None = None
    """Of a semaphore, how many permits there are: as was set for all, or else the most that one in it knows of."""
    limit_set: SetLimit | None = None
    """Who has set the limit for all, and why; None if nobody has, or who it was is not known."""
    own_limits: tuple[int, ...] = ()
    """The limits of those in it, from the lowest on, if they are not the same and none was set for all: a mistake."""
    over: tuple[ContenderInfo, ...] = ()
    """Operators' holds, or what was left of others, whose time is over by ZooKeeper's clock: they neither hold the lock
    nor wait, and the next client of django-zklock that wants it ends them."""

    @property
    def contended(self) -> bool:
        """Whether anybody waits."""
        return self.waiting > 0

    @property
    def held_for(self) -> float | None:
        """Seconds that it has been held, by its first holder; None if nobody holds it."""
        if not self.holders:
            return None
        holder = self.holders[0]
        since = holder.held_since or holder.came
        return max(0.0, holder.age - (since - holder.came).total_seconds())

    @property
    def operator(self) -> OperatorHold | None:
        """The hold of the person who keeps it, if one does."""
        return next((holder.operator for holder in self.holders if holder.operator is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Somebody who holds one lock and waits for another."""

    who: str
    """Host, process, thread and work."""
    holds: str
    """The key of the one it holds."""
    waits_for: str
    """The key of the one it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All locks, or the first of them. The queues are read side by side, so it is no picture of one moment."""

    taken_at: datetime
    """By ZooKeeper's clock, where it is known."""
    age: float
    """Seconds since then."""
    locks: tuple[LockInfo, ...]
    """By key; if there are too many, those with the most waiters."""
    total: int
    """How many there are."""
    problem: str
    """Why this is old, or not all; empty if all is well."""
    notes: tuple[str, ...]
    """What is odd below the root and was passed over, without being a problem."""
    connection: Connection
    """As it is now, even if the snapshot is old."""
    waits: tuple[Wait, ...]
    """Who holds one lock and waits for another, among those that were looked at."""
    cycles: tuple[tuple[Wait, ...], ...]
    """Those of whom each waits for what the next one holds, round in a circle: they wait for ever."""
