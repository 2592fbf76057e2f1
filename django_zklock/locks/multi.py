"""
Several locks that are taken as one: all or none, in an order that all processes share.

Each has its own queue, options, hold and guard. They have one deadline, one block, and one transaction inside them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NoReturn, TypeAlias

from django_zklock import conf
from django_zklock.conf.options import UNSET, Atomic, Unset, given_options
from django_zklock.exceptions import InvalidLockName
from django_zklock.locks.base import LockBase, Plan
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import MultiHold
from django_zklock.locks.lock import Lock
from django_zklock.locks.terms import DEFAULT_TIMEOUT
from django_zklock.locks.validation import refuse_arguments


class MultiLock(LockBase[MultiHold]):
    """
    Several locks that one owner has together: all of them, or none.

    They are taken in the order of their keys, whatever order they are named in, and let go of in reverse. So those who
    take overlapping sets never wait for each other in a circle; nor with those who take one of them, but who takes
    another lock in a block of its own can, as ever. A lock that is named twice is taken once.

    Each is a lock as any other, with the options of its own entry in `ZKLOCK["LOCKS"]`, those given here over them.
    When one is lost, the work under all is stopped; if that is before the last one is taken, all are taken anew.

    Args:
        names: as of `Lock`; or a `Lock`, which keeps its own options. Of two for one key, a lock or a write lock is
            taken before a read lock or a permit, else the one that is named first.
        fields: fill all templates in.
        timeout: seconds to wait for all of them; 0 does not wait, None waits for ever. Default: that of
            `ZKLOCK["DEFAULTS"]`, else 10; those of the single locks do not count.
        atomic: the database, or databases, on which the block is a transaction, inside all the locks; those that the
            single locks say are added.

    The other arguments are those of `Lock`, for each lock that is given by its name.

    """

    def __init__(
        self,
        *names: str | Lock,
        fields: Mapping[str, object] | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        abort_on: str | Unset = UNSET,
        grace: float | timedelta | Unset = UNSET,
        reentrant: bool | Unset = UNSET,
        atomic: Atomic | Unset = UNSET,
        release: str | Unset = UNSET,
        kind: str | Unset = UNSET,
        limit: int | Unset | None = UNSET,
        compat: str | Unset | None = UNSET,
        max_hold: float | timedelta | Unset | None = UNSET,
        warn_after: float | timedelta | Unset | None = UNSET,
        min_hold: float | timedelta | Unset = UNSET,
        max_waiters: int | Unset | None = UNSET,
        what: str = "",
        about: Mapping[str, str] | None = None,
        **unknown: NoReturn,
    ) -> None:
        if unknown:
            refuse_arguments("zk_locks", " ".join(name for name in names if isinstance(name, str)), (), unknown)
        if not names:
            raise InvalidLockName("no lock was named; name those that the work needs.")
        self._timeout = given_options(timeout=timeout).timeout
        self._atomic = given_options(atomic=atomic).atomic
        self._given = tuple(
            name
            if isinstance(name, Lock)
            else Lock(
                name,
                fields=fields,
                abort_on=abort_on,
                grace=grace,
                reentrant=reentrant,
                atomic=atomic,
                release=release,
                kind=kind,
                limit=limit,
                compat=compat,
                max_hold=max_hold,
                warn_after=warn_after,
                min_hold=min_hold,
                max_waiters=max_waiters,
                what=what,
                about=about,
            )
            for name in names
        )
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(repr(lock.name) for lock in self._given)}>"

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks, each once, in the order in which they are taken. Raises `InvalidLockName`."""
        chosen: dict[str, Lock] = {}
        for lock in self._given:
            chosen[lock.key] = _stronger(chosen[lock.key], lock) if lock.key in chosen else lock
        return tuple(chosen[key] for key in sorted(chosen))

    @property
    def keys(self) -> tuple[str, ...]:
        """Their keys, in that order. Raises `InvalidLockName`."""
        return tuple(lock.key for lock in self.locks)

    def _plan(self) -> Plan:
        terms = tuple(lock.terms for lock in self.locks)
        own = () if isinstance(self._atomic, Unset) else self._atomic
        atomic = tuple(dict.fromkeys((*own, *(alias for each in terms for alias in each.atomic))))
        timeout = conf.current().defaults.timeout if isinstance(self._timeout, Unset) else self._timeout
        names = {lock.name: lock.key for lock in self._given}
        return Plan(terms, DEFAULT_TIMEOUT if isinstance(timeout, Unset) else timeout, atomic, names)

    def _view(self, plan: Plan, held: tuple[HeldLock, ...]) -> MultiHold:
        return MultiHold(tuple(each.hold for each in held), plan.names)


zk_locks = MultiLock  # the name that reads well in `with zk_locks(...)`

Locks: TypeAlias = "Lock | MultiLock"


def locks_of(lock: Locks) -> tuple[Lock, ...]:
    """Return the single locks that a call takes, in order."""
    return lock.locks if isinstance(lock, MultiLock) else (lock,)


def keys_of(lock: Locks) -> tuple[str, ...]:
    """Return their keys."""
    return lock.keys if isinstance(lock, MultiLock) else (lock.key,)


def _stronger(one: Lock, other: Lock) -> Lock:
    """Return the one of two locks of the same key that keeps out whatever either keeps out."""
    first, second = one.terms, other.terms
    if first.shares and not second.shares:
        return other
    if first.shares and second.shares and (first.kind, first.limit) != (second.kind, second.limit):
        raise ValueError(
            f"{first.key!r} is requested both as a read lock and as a semaphore, or with two limits. Pass it once."
        )
    return one


def joined(keys: Iterable[str]) -> str:
    """Return one key that stands for several, whatever their order: that of a single one is itself."""
    each = sorted(set(keys))
    if len(each) == 1:
        return each[0]
    digest = hashlib.sha256("\0".join(each).encode()).hexdigest()  # no key has a NUL, nor a limit to how many there are
    return f"several/{digest[:40]}"
