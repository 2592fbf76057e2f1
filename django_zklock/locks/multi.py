"""
Several locks that are acquired as one: all or none, in an order that all processes share.

Each lock has its own queue, options, hold and guard. Together they have one deadline, one block and one transaction.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeAlias, Unpack

from django_zklock.conf.arguments import LockArguments
from django_zklock.conf.options import given_options
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.locks.spec import DEFAULT_TIMEOUT, LockSpec
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.exceptions import InvalidLockName
from django_zklock.locks.arguments import check_options, skips
from django_zklock.locks.base import BlockPolicy, GivenPolicy, LockBase
from django_zklock.locks.hold import Hold, HoldBase
from django_zklock.locks.lock import ARGUMENTS, Lock
from django_zklock.names.template import check_used


class MultiHold(HoldBase):
    """
    Several locks that are held: what `with zk_locks(...) as hold` gives, and `MultiLock.acquire()` returns.

    Iteration gives the hold of each lock in the order in which they were acquired: by key.
    `hold["a"]` is the hold of the lock with this key or this name.
    """

    # It has no `__len__`: `if lock.acquire():` would call that between `acquire()` and the block, where the handler of
    # a signal could raise.

    __slots__ = ("_by_name", "_holds")

    def __init__(self, holds: tuple[Hold, ...], names: Mapping[str, str]) -> None:
        self._holds = holds
        by_key = {hold.key: hold for hold in holds}
        self._by_name = {name: by_key[key] for name, key in names.items()} | by_key

    def __repr__(self) -> str:
        is_released = any(hold.state == "released" for hold in self._holds)
        state = "released" if is_released else "lost" if self.lost else "held"
        return f"<MultiHold of {', '.join(map(repr, self.keys))}, {state}>"

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._holds)

    def __getitem__(self, name: str) -> Hold:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the locks, in the order in which they were acquired."""
        return tuple(hold.key for hold in self._holds)

    @property
    def lost(self) -> bool:
        """Whether any of the locks is lost. Once True it stays so."""
        return any(hold.lost for hold in self._holds)

    @property
    def lease_remaining(self) -> float:
        """The seconds that remain of the shortest lease if nothing extends it; 0.0 when one is over."""
        return min(hold.lease_remaining for hold in self._holds)

    def check(self) -> None:
        """Raise what `Hold.check` raises, unless all locks are held and their leases are valid now."""
        for hold in self._holds:
            hold.check()

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """The first release request to one of the locks, or None."""
        return next((hold.release_requested for hold in self._holds if hold.release_requested is not None), None)

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """Call `callback(hold)` once for each lock that is lost, with its own hold; see `Hold`."""
        for hold in self._holds:
            hold.add_lost_callback(callback)


class MultiLock(LockBase[MultiHold, BlockPolicy]):
    """
    Several locks that one owner holds together: all of them, or none.

    They are acquired in the order of their keys, whatever the order of `names`, and released in reverse. So callers
    with overlapping sets never deadlock. Callers that nest single locks still can deadlock. A lock that is named twice
    is acquired once.

    Each lock has the options of its own entry in `ZKLOCK["LOCKS"]`; options given here override them. If one is lost,
    the work is aborted. If that happens before the last one is acquired, all are acquired again.

    `names` are names as of `Lock`, or `Lock` objects, which keep their own options. Of two locks with one key, an
    exclusive lock or a write lock wins, else the first one; their other options must be the same. The options are those
    of `Lock`, for each lock that is given by its name, except for those of all locks together:

    * `timeout`: without it, the shortest of those that the single locks have counts, else 5 seconds.
    * `on_conflict`: a busy lock of several is as if all were busy.
    * `atomic`: one transaction inside all the locks. The databases that the single locks name are added.
    * `release_on`: it replaces that of the single locks.

    An option that reaches none of the locks raises `TypeError`.
    """

    def __init__(
        self,
        *names: str | Lock,
        on_conflict: BlockPolicy = "raise",  # type: ignore[assignment]
        **given: Unpack[LockArguments],
    ) -> None:
        options: Any = given
        check_options("zk_locks", options, ARGUMENTS)
        if not names:
            raise InvalidLockName(
                "zk_locks() needs the name of at least one lock. If there may be none, as for the rows of a query, "
                'write "with zk_locks(*names) if names else nullcontext():", or lock one coarser key.'
            )
        self._options = given_options({name: options[name] for name in TOGETHER & options.keys()})
        self._given = tuple(_as_lock(name, options) for name in names)
        self._named = tuple(lock for lock in self._given if lock not in names)
        self._skips = skips(on_conflict) or any(lock._skips for lock in self._given)
        self.fields = options.get("fields") or {}
        """Values that were given for fields. One of the names must have each field. For this package only."""
        if not self._named and options.keys() - TOGETHER:
            raise TypeError(f"zk_locks() got {', '.join(options)}, but only Lock objects, with their own options.")
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(repr(lock.name) for lock in self._given)}>"

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks, each once, in the order in which they are acquired. Raises `InvalidLockName`."""
        if self.fields:
            names = ", ".join(lock.name for lock in self._named)
            check_used(self.fields, names, [lock.spec.template for lock in self._named])
        chosen: dict[str, Lock] = {}
        for lock in self._given:
            chosen[lock.key] = _stricter(chosen[lock.key], lock) if lock.key in chosen else lock
        return tuple(chosen[key] for key in sorted(chosen))

    @property
    def keys(self) -> tuple[str, ...]:
        """Their keys, in that order. Raises `InvalidLockName`."""
        return tuple(lock.key for lock in self.locks)

    @property
    def specs(self) -> tuple[LockSpec, ...]:
        """The specs of the locks that a call acquires; see `LockBase`."""
        own: dict[str, Any] = dict(self._options)
        atomic = dict.fromkeys(own.pop("atomic", ()))
        waits = []
        for lock in self._given:
            atomic |= dict.fromkeys(lock.spec.atomic)
            if lock.spec.has_timeout:
                waits.append(lock.spec.timeout)
        own.setdefault("timeout", shortest(waits) if waits else DEFAULT_TIMEOUT)
        own["has_timeout"] = "timeout" in self._options or bool(waits)
        specs = [replace(lock.spec, atomic=(), **own) for lock in self.locks]
        return (*specs[:-1], replace(specs[-1], atomic=tuple(atomic)))

    def _view(self, acquisition: Acquisition) -> MultiHold:
        holds = (
            Hold(held, acquisition.use, None if acquisition.specs[-1].atomic else spec.release_on)
            for held, spec in zip(acquisition.holds, acquisition.specs, strict=True)
        )
        return MultiHold(tuple(holds), {lock.name: lock.key for lock in self._given})


def zk_locks(
    *names: str | Lock,
    on_conflict: GivenPolicy = "raise",  # type: ignore[assignment]
    **options: Unpack[LockArguments],
) -> MultiLock[GivenPolicy]:
    """Return several locks that are acquired as one; see `MultiLock`."""
    return MultiLock(*names, on_conflict=on_conflict, **options)


Locks: TypeAlias = "Lock | MultiLock"

TOGETHER: Final = frozenset({"timeout", "atomic", "release_on"})
"""The options that several locks have together, as `on_conflict`. Each lock has its own of the others."""

_MAY_DIFFER: Final = {"kind", "limit", "template", "timeout", "has_timeout", "atomic"}
"""Two locks with one key may differ in these fields."""


def shortest(waits: Iterable[float | None]) -> float | None:
    """Return the shortest of these timeouts; None is without limit."""
    return min(waits, key=lambda seconds: math.inf if seconds is None else seconds)


def _as_lock(name: str | Lock, options: Any) -> Lock:
    """Return the lock of this name. It need not have all fields: one of several has each."""
    if isinstance(name, Lock):
        return name
    lock = Lock(name, **options)
    lock.fields = {}
    return lock


def _stricter(lock: Lock, other: Lock) -> Lock:
    """Return the stricter of two locks with one key."""
    first, second = lock.spec, other.spec
    may_differ = _MAY_DIFFER - {"kind", "limit"} if first.shares and second.shares else _MAY_DIFFER
    compared = [field.name for field in fields(first) if field.name not in may_differ]
    different = [name for name in compared if getattr(first, name) != getattr(second, name)]
    if different:
        options = " and ".join(different).replace("policy", "abort_on or grace")
        raise ValueError(f"{first.key!r} is requested twice, with another {options}. Pass it once.")
    return other if first.shares else lock


def joined(keys: Iterable[str]) -> str:
    """Return one key that represents several, whatever their order. A single key represents itself."""
    unique = sorted(set(keys))
    if len(unique) == 1:
        return unique[0]
    digest = hashlib.sha256("\0".join(unique).encode()).hexdigest()  # no key has a NUL
    return f"several/{digest[:40]}"
