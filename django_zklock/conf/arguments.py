"""
The options of locks and tasks. Each is written once, here: its name, its type, its check and its meaning.

A `bool` or a `Literal` is its own check, and other types have a reader in `Annotated`. None is valid where the type
allows it. The default of an option of locks is that of the field of this name in `LockSpec`, or in its `Policy`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, get_args, get_origin, get_type_hints

from django.db import DEFAULT_DB_ALIAS

from django_zklock.conf.table import LONGEST_WAIT, Row, accepts, boolean, is_text, seconds
from django_zklock.core.queue.markers import MOST_PERMITS
from django_zklock.core.queue.operator_hold import LONGEST
from django_zklock.core.queue.untrusted import integer

Seconds: TypeAlias = float | timedelta
"""A number of seconds, or a timedelta."""

AbortOn: TypeAlias = Literal["suspended", "lost", "never"]
KindOfLock: TypeAlias = Literal["lock", "read", "write"]
TaskPolicy: TypeAlias = Literal["wait", "retry", "skip", "raise"]
FunctionPolicy: TypeAlias = Literal["raise", "skip"]


# --- readers ------------------------------------------------------------------------------------------------------


def _word_of(*words: str) -> Callable[[Any], object]:
    """Return a reader of one of these words."""

    def read(value: object) -> object:
        if value not in words:
            raise ValueError
        return value

    return read


def _databases(value: object) -> tuple[str, ...]:
    """Read the databases of `atomic`, each once."""
    if isinstance(value, bool):
        return (DEFAULT_DB_ALIAS,) if value else ()
    aliases = [value] if isinstance(value, str) else value
    if not isinstance(aliases, (list, tuple)) or not all(map(is_text, aliases)):
        raise ValueError
    return tuple(dict.fromkeys(aliases))


def _json(value: object) -> object:
    """Read a value that JSON can represent."""
    json.dumps(value)
    return value


_positive: Final = partial(seconds, positive=True)
_count: Final = accepts("a whole number from 0, or None (no limit)", integer)
read_limit: Final = partial(integer, least=1, most=MOST_PERMITS)
_UP_TO: Final = f"from 0 to {LONGEST_WAIT:.0f}"


# --- options ------------------------------------------------------------------------------------------------------


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
    """
    When the work is aborted: "suspended" (default), after `grace` without a connection, or at the end of the lease;
    "lost", at the end of the lease; or "never".
    """
    grace: Annotated[
        Seconds | None,
        accepts(f"a number of seconds {_UP_TO}, or None (as long as the lease)", seconds),
    ]
    """
    How long the connection may be suspended before the abort. Default None: as long as the lease.

    With 0, the restart of one ZooKeeper server aborts the work.
    """
    compat: Annotated[
        Literal["kazoo"] | None,
        accepts('"kazoo", or None (our own names, whose queue processes of Curator share)', _word_of("kazoo")),
    ]
    """The client whose processes share the queue: the znodes get names as from that client. Not for semaphores."""
    max_hold: Annotated[
        Seconds | None,
        accepts(f"a number of seconds above 0 (None = no limit; at most {LONGEST_WAIT:.0f})", _positive),
    ]
    """Seconds of holding after which the lock is lost and the work is aborted. Default None: no limit."""
    warn_after: Annotated[
        Seconds | None,
        accepts(f"a number of seconds above 0 (None = no warning; at most {LONGEST_WAIT:.0f})", _positive),
    ]
    """Seconds of holding after which a warning is logged and `lock_held_long` is sent. Default None: no warning."""


class SideOptions(LeaderOptions, total=False):
    """The options of a lock, and of each side of a read-write lock."""

    timeout: Annotated[
        Seconds | None,
        accepts(f"a number of seconds (0 = do not wait, None = no limit; at most {LONGEST_WAIT:.0f})", seconds),
    ]
    """
    Seconds that a block or a call waits for the lock. 0 does not wait, None waits without limit. Default 5.

    A Celery task with a timeout has another default for `on_conflict`: "retry", not "wait".
    """
    reentrant: bool
    """Whether the owner may acquire it again (default). If not, that raises `LockBusy` at once."""
    atomic: Annotated[
        bool | str | list[str] | tuple[str, ...],
        accepts("True, False, the alias of a database, or a list of aliases", _databases),
    ]
    """
    The databases on which the block is a transaction inside the lock; True means the default database.

    It is committed before the release, if the lock is still held. Not in async code.
    """
    release_on: Literal["commit", "exit"]
    """
    When a lock is released that was acquired inside an open transaction: after that has ended, or when the block exits.

    If this is not given, acquiring the lock there raises `LockInTransaction`.
    """
    min_hold: Annotated[
        Seconds, accepts(f"a number of seconds from 0 to {LONGEST:.0f} (a week)", partial(seconds, most=LONGEST))
    ]
    """
    Seconds from the grant in which no other contender gets the lock, even if the work is done earlier. Default 0.

    For jobs that several hosts start at about the same time.
    """
    linger: Annotated[Seconds, accepts(f"a number of seconds {_UP_TO}", seconds)]
    """
    Seconds for which this process keeps the lock after a release, for its own next owners. Default 0.

    They get it without a request to ZooKeeper. A waiter in another process gets it at the first release after `linger`
    seconds, and at once if no owner here uses it. Only for exclusive locks.
    """
    max_waiters: Annotated[int | None, _count]
    """
    How many callers may wait for the lock. One more raises `LockBusy` at once. Default None: no limit.

    The waiters in ZooKeeper's queue count, and all waiters of this process.
    """


class KindOptions(SideOptions, total=False):
    """The options of a lock of any kind."""

    kind: KindOfLock
    """An exclusive lock (default), or a side of a read-write lock. All kinds of one key share a queue."""
    limit: Annotated[
        int | None, accepts(f"a number of permits from 1 to {MOST_PERMITS}, or None (no semaphore)", read_limit)
    ]
    """How many owners of a semaphore hold it at a time; `operations.set_limit` overrides it. None: no semaphore."""


class LeaderArguments(LeaderOptions, NameArguments, total=False):
    """The arguments of `zk_leader`."""


class SideArguments(SideOptions, NameArguments, total=False):
    """The arguments of `zk_read`, `zk_write`, `zk_semaphore` and `ReadWriteLock`; they take `on_conflict`, too."""


class LockArguments(KindOptions, NameArguments, total=False):
    """The arguments of `zk_lock`, `zk_locks`, `Lock` and `MultiLock`; they take `on_conflict`, too."""


class RepeatOptions(TypedDict, total=False):
    """The options of Celery tasks that are sent again."""

    max_conflicts: Annotated[int | None, _count]
    """How often a busy task is sent again before the error is raised. Default None: no limit."""
    on_lost: Literal["fail", "retry"]
    """
    Whether a task that lost its lock in its work, or was part of a deadlock there, fails or is sent again.

    That does not count as its own retry. Default: it fails, unless it has `acks_late`.
    """


class UniqueOptions(TypedDict, total=False):
    """The options of `zk_locked` that make a Celery task unique. The settings do not have them."""

    unique: Literal["until_start", "until_done"] | None
    """Until when the task is not sent again with the same key. Default None: it may be sent at any time."""
    on_duplicate: Literal["return", "raise"] | None
    """Whether a later caller gets the AsyncResult of the first task (default), or `AlreadyQueued` is raised."""
    unique_for: Annotated[Seconds | None, accepts("a number of seconds above 0, or a timedelta", _positive)]
    """
    Seconds after which a task that never started no longer prevents another one.

    Default None: it does so until its message expires.
    """


class NamedFunction(KindOptions, RepeatOptions, UniqueOptions, total=False):
    """`LockedOptions` without `on_conflict` and `skip_value`, which decide on the type of the function."""


class LockedOptions(NamedFunction, total=False):
    """The options of `zk_locked`."""

    skip_value: Annotated[
        Any,
        accepts("a value that JSON can represent; leave it out to have a skipped task end as REVOKED", _json),
    ]
    """The result of a skipped call. Without it, that is None, and a task ends as REVOKED."""
    on_conflict: TaskPolicy
    """
    The policy for a lock that is not acquired in time. Each kind of function has its own values.

    * A Celery task: "wait" (default) waits without limit unless `timeout` is given, and needs no slot of its worker
      meanwhile; then it raises. "retry" (default with a `timeout`) sends the task again a little later, which does not
      count as a retry of its own. "skip" ends the task as REVOKED. "raise" raises.
    * Any other function: "raise" (default) raises `LockBusy` or `LockTimeout`. "skip" returns `skip_value`, or None.

    If ZooKeeper is not available, that is no conflict: "wait" waits, "retry" sends the task again, and anything else
    raises `ZooKeeperUnavailable`.
    """


# --- what follows from them ---------------------------------------------------------------------------------------


def _reader_of(hint: Any) -> Callable[[Any], Any]:
    """Return the reader of an option with this type."""
    read: Callable[[Any], Any] = boolean
    if get_origin(hint) is Annotated:
        hint, read = get_args(hint)
    elif hint is not bool:  # a `Literal`, or None
        words = get_args(hint if get_origin(hint) is Literal else get_args(hint)[0])
        read = accepts(f"one of: {', '.join(words)}", _word_of(*words))
    if NoneType not in get_args(hint):
        return read
    return lambda value: None if value is None else read(value)


CHECKS: Final = {
    name: Row("E009", _reader_of(hint), "Change it, or remove it to use the default.")
    for name, hint in get_type_hints(LockedOptions, include_extras=True).items()
}
"""The check of each option."""

OPTIONS: Final = {name: row for name, row in CHECKS.items() if name not in UniqueOptions.__annotations__}
"""The options that the settings may have."""


class Unset(enum.Enum):
    """The type of `UNSET`. None has another meaning: a timeout of None waits without limit."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return self.name


UNSET: Final = Unset.UNSET
"""The default of an option in a signature: it was not given."""
