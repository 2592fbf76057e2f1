"""
The options that calls take, with their types and their meaning.

A new option is added here, to `LockOptions`, and to the table of readers in `conf.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict

Seconds: TypeAlias = "float | timedelta"
"""A number of seconds, or a timedelta."""

Atomic: TypeAlias = "bool | str | list[str] | tuple[str, ...]"
"""A transaction on the default database, on one, or on several."""

AbortOn: TypeAlias = Literal["suspended", "lost", "never"]
Compat: TypeAlias = Literal["kazoo"]
KindOfLock: TypeAlias = Literal["lock", "read", "write"]
TaskPolicy: TypeAlias = Literal["wait", "retry", "coalesce", "skip", "raise"]
FunctionPolicy: TypeAlias = Literal["raise", "skip"]
OnConflict: TypeAlias = Literal[TaskPolicy, FunctionPolicy]
OnLost: TypeAlias = Literal["fail", "retry"]
ReleaseOn: TypeAlias = Literal["commit", "exit"]


class NameArguments(TypedDict, total=False):
    """The fields of a lock's name, and the description of the work that other processes see."""

    fields: Mapping[str, object] | None
    """Values for the fields of the name."""
    what: str
    """The work that the lock is for. Others in the queue see it."""
    about: Mapping[str, str] | None
    """This work as a dict of short texts, for programs that read the queue. Never put the arguments of a call here."""


class LeaderOptions(TypedDict, total=False):
    """The options of every lock, a leader's included."""

    abort_on: AbortOn
    """When the work is aborted: if the connection is suspended (default), if the lock is lost, or never."""
    grace: Seconds
    """How long a suspended connection may last before the abort, never longer than the lease. Default 0."""
    compat: Compat | None
    """The client whose processes share the queue: the znodes get names as from that client. Not for semaphores."""
    max_hold: Seconds | None
    """Seconds of holding after which the lock is lost and the work is aborted. Default None: no limit."""
    warn_after: Seconds | None
    """Seconds of holding after which a warning is logged and `lock_held_long` is sent. Default None: no warning."""


class SideOptions(LeaderOptions, total=False):
    """The options of a lock, and of each side of a read-write lock."""

    timeout: Seconds | None
    """Seconds that `with` waits for the lock. 0 does not wait, None waits without limit. Default 5."""
    reentrant: bool
    """Whether the owner may acquire it again (default). If not, that raises `LockBusy` at once."""
    atomic: Atomic
    """
    The databases on which the block is a transaction inside the lock; True means the default database.

    It is committed before the release, if the lock is still held. Not in async code.
    """
    release_on: ReleaseOn
    """
    When a lock is released that was acquired inside an open transaction: after that has ended, or when the block exits.

    If this is not given, acquiring the lock there raises `LockInTransaction`.
    """
    min_hold: Seconds
    """
    Seconds from the grant in which no other contender gets the lock, even if the work is done earlier. Default 0.

    For jobs that several hosts start at about the same time.
    """
    linger: Seconds
    """
    Seconds for which this process keeps the lock after a release, for its own next owners. Default 0.

    They get it without a request to ZooKeeper. A waiter in another process gets it at the first release after `linger`
    seconds, and at once if no owner here uses it. Only for exclusive locks.
    """
    max_waiters: int | None
    """
    How many callers may wait for the lock. One more raises `LockBusy` at once. Default None: no limit.

    The waiters in ZooKeeper's queue count, and all waiters of this process.
    """


class KindOptions(SideOptions, total=False):
    """The options of a lock of any kind."""

    kind: KindOfLock
    """An exclusive lock (default), or a side of a read-write lock. All kinds of one key share a queue."""
    limit: int | None
    """How many owners of a semaphore hold it at a time; `operations.set_limit` overrides it. None: no semaphore."""


class LeaderArguments(LeaderOptions, NameArguments, total=False):
    """The arguments of `zk_leader`."""


class SideArguments(SideOptions, NameArguments, total=False):
    """The arguments of `zk_read`, `zk_write`, `zk_semaphore` and `ReadWriteLock`."""


class LockArguments(KindOptions, NameArguments, total=False):
    """The arguments of `zk_lock`, `zk_locks`, `Lock` and `MultiLock`."""


class TaskOptions(TypedDict, total=False):
    """The options of `zk_locked` that only Celery tasks use."""

    max_conflicts: int | None
    """How often a busy task is sent again before the error is raised. Default None: no limit."""
    skip_value: Any
    """The result of a skipped task, any value that JSON can represent. Without it, the task ends as REVOKED."""
    on_lost: OnLost
    """Whether a task that lost its lock fails (default), or is sent again. That does not count as its own retry."""
    unique: Literal["until_start", "until_done"] | None
    """Until when the task is not sent again with the same key. Default None: it may be sent at any time."""
    on_duplicate: Literal["return", "raise"] | None
    """Whether a later caller gets the AsyncResult of the first task (default), or `AlreadyQueued` is raised."""
    unique_for: Seconds | None
    """
    Seconds after which a task that never started no longer prevents another one.

    Default None: it does so until its message expires.
    """


class LockedOptions(KindOptions, TaskOptions, total=False):
    """The options of `zk_locked`."""

    on_conflict: OnConflict
    """The policy for a lock that is not acquired in time; see `zk_locked`."""
