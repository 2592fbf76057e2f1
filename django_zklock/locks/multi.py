"""
Several locks that are acquired as one: all or none, in an order that all processes share.

Each has its own queue, options, hold and guard. They have one deadline, one block, and one transaction inside them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django_zklock import conf
from django_zklock.conf.arguments import LockArguments
from django_zklock.conf.options import Unset, given_options
from django_zklock.exceptions import InvalidLockName
from django_zklock.locks.base import LockBase, Plan
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import MultiHold
from django_zklock.locks.lock import Lock
from django_zklock.locks.spec import DEFAULT_TIMEOUT
from django_zklock.locks.validation import check_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MultiLock(LockBase[MultiHold]):
    """
    Several locks that one owner holds together: all of them, or none.

    They are acquired in the order of their keys, whatever order they are named in, and released in reverse. So callers
    with overlapping sets never deadlock. Nested single locks in another order still can. A lock that is named twice is
    acquired once.

    Each lock has the options of its own entry in `ZKLOCK["LOCKS"]`; options given here override them. If one is lost,
    the work is aborted. If that happens before the last one is acquired, all are acquired again.

    `names` are names as of `Lock`, or `Lock` objects, which keep their own options. Of two with one key, an exclusive
    lock or a write lock wins, else the first one. The options are those of `Lock`, for each lock that is given by its
    name, with two differences:

    * `timeout` is for all locks together. Its default is that of `ZKLOCK["DEFAULTS"]`, else 10.
    * `atomic` is one transaction inside all the locks. The databases that the single locks name are added.
    """

    def __init__(self, *names: str | Lock, **options: Unpack[LockArguments]) -> None:
        given = " ".join(name for name in names if isinstance(name, str))
        check_arguments("zk_locks", given, (), options, LockArguments)
        if not names:
            raise InvalidLockName("zk_locks() needs the name of at least one lock.")
        each = {option: value for option, value in options.items() if option != "timeout"}
        own = given_options({option: options[option] for option in ("timeout", "atomic") if option in options})
        self._timeout, self._atomic = own.timeout, own.atomic
        self._given = tuple(name if isinstance(name, Lock) else Lock(name, **cast("Any", each)) for name in names)
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(repr(lock.name) for lock in self._given)}>"

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks, each once, in the order in which they are acquired. Raises `InvalidLockName`."""
        chosen: dict[str, Lock] = {}
        for lock in self._given:
            chosen[lock.key] = _stronger(chosen[lock.key], lock) if lock.key in chosen else lock
        return tuple(chosen[key] for key in sorted(chosen))

    @property
    def keys(self) -> tuple[str, ...]:
        """Their keys, in that order. Raises `InvalidLockName`."""
        return tuple(lock.key for lock in self.locks)

    def _plan(self) -> Plan:
        specs = tuple(lock.spec for lock in self.locks)
        own = () if isinstance(self._atomic, Unset) else self._atomic
        atomic = tuple(dict.fromkeys((*own, *(alias for spec in specs for alias in spec.atomic))))
        timeout = conf.current().defaults.timeout if isinstance(self._timeout, Unset) else self._timeout
        return Plan(specs, DEFAULT_TIMEOUT if isinstance(timeout, Unset) else timeout, atomic)

    def _view(self, plan: Plan, held: tuple[HeldLock, ...]) -> MultiHold:
        names = {lock.name: lock.key for lock in self._given}
        return MultiHold(tuple(each.hold for each in held), names)


def zk_locks(*names: str | Lock, **options: Unpack[LockArguments]) -> MultiLock:
    """Return several locks that are acquired as one; see `MultiLock`."""
    return MultiLock(*names, **options)


Locks: TypeAlias = "Lock | MultiLock"


def locks_of(lock: Locks) -> tuple[Lock, ...]:
    """Return the single locks that a call acquires, in order."""
    return lock.locks if isinstance(lock, MultiLock) else (lock,)


def keys_of(lock: Locks) -> tuple[str, ...]:
    """Return their keys."""
    return lock.keys if isinstance(lock, MultiLock) else (lock.key,)


def _stronger(one: Lock, other: Lock) -> Lock:
    """Return the one of two locks of the same key that keeps out whatever either keeps out."""
    first, second = one.spec, other.spec
    if first.shares and not second.shares:
        return other
    if first.shares and second.shares and (first.kind, first.limit) != (second.kind, second.limit):
        raise ValueError(
            f"{first.key!r} is requested both as a read lock and as a semaphore, or with two limits. Pass it once."
        )
    return one


def joined(keys: Iterable[str]) -> str:
    """Return one key that stands for several, in any order. A single key stands for itself."""
    each = sorted(set(keys))
    if len(each) == 1:
        return each[0]
    digest = hashlib.sha256("\0".join(each).encode()).hexdigest()  # no key has a NUL
    return f"several/{digest[:40]}"
