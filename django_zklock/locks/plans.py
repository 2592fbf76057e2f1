"""
Knows what several locks have in common that are taken as one: their order, their deadline, what a failure of one means.

The order is that of the keys, which all processes share. So whoever waits for a key has but smaller ones, and those he
waits for have it or wait for it, too: no two of them can wait for each other.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from django_zklock.exceptions import LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.execution.owner import current_owner
from django_zklock.locks import hold as holds
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.multihold import MultiHold
from django_zklock.locks.terms import Terms
from django_zklock.locks.validation import refuse_atomic

SHORTEST_WAIT = 0.001  # seconds; who wants to wait does not try without waiting for the last lock, when time is short


class Countdown:
    """One deadline over several acquisitions."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._began = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any longer."""
        return self._timeout is not None and self.waited >= self._timeout

    def on(self, terms: Terms) -> Terms:
        """Return the terms of one lock, for the time that is left; what ZooKeeper may take beside is one span, too."""
        if self._timeout is None:
            return replace(terms, timeout=None)
        left = self._timeout - self.waited
        return replace(
            terms,
            timeout=0.0 if self._timeout == 0 else max(left, SHORTEST_WAIT),
            patience=max(0.0, min(terms.patience, terms.patience + left)),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What one entry takes, in which order, and on what terms."""

    locks: tuple[Lock, ...]
    terms: tuple[Terms, ...]
    names: Mapping[str, str]  # the keys, by the names that were given
    timeout: float | None
    atomic: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(terms.key for terms in self.terms)

    def parts(self, countdown: Countdown) -> Iterator[tuple[Lock, Terms]]:
        """Yield each lock, with the terms on which it is to be taken now; the transactions are for the innermost."""
        for lock, terms in zip(self.locks, self.terms, strict=True):
            atomic = self.atomic if lock is self.locks[-1] else ()
            yield lock, replace(countdown.on(terms), atomic=atomic)

    def fresh(self) -> frozenset[str]:
        """Return the keys that the caller does not hold yet."""
        owner = current_owner()
        return frozenset(key for key in self.keys if holds.live_holds.find(owner, key) is None)

    def hold(self, each: Iterable[Hold]) -> MultiHold:
        """Return the holds of all as one. Raises `LockLost` if one was lost while the next was waited for."""
        found = tuple(each)
        for hold in found:
            reason = hold._grant.why_invalid()
            if reason is not None:
                raise hold._grant.loss(reason)
        return MultiHold(found, self.names)

    def refuse_atomic(self, where: str) -> None:
        """Raise where a block is to be a transaction that cannot be one; before anything is taken."""
        refuse_atomic(where, replace(self.terms[-1], atomic=self.atomic))

    def may_try_again(self, error: BaseException, fresh: frozenset[str], countdown: Countdown) -> bool:
        """Tell whether one was lost that was only just taken, with nothing done under it, and there is time left."""
        return isinstance(error, LockLost) and error.lock in fresh and not countdown.is_over

    def explained(self, error: BaseException, fresh: frozenset[str], countdown: Countdown) -> BaseException:
        """Return what the failure of one lock means for all."""
        if isinstance(error, LockLost) and error.lock in fresh:
            return ZooKeeperUnavailable(f"{error} The others were still to be taken.", lock=error.lock)
        if isinstance(error, LockTimeout) and len(self.locks) > 1:
            names = ", ".join(map(repr, self.keys))
            return LockTimeout(
                f"Not all of the locks {names} were to be had within {countdown.waited:.1f} s. {error}", lock=error.lock
            )
        return error


def stronger(one: Lock, other: Lock) -> Lock:
    """Return the one of two locks of the same key that keeps out whom either keeps out."""
    first, second = one._terms(), other._terms()
    if first.shares and not second.shares:
        return other
    if first.shares and second.shares and (first.kind, first.limit) != (second.kind, second.limit):
        raise ValueError(
            f"The key {first.key!r} is to be locked in two ways neither of which does for the other: for reading, and "
            "as a semaphore, or with two limits. Name it once."
        )
    return one


def joined(keys: Iterable[str]) -> str:
    """Return one key that stands for several, whatever their order: that of a single one is itself."""
    each = sorted(set(keys))
    if len(each) == 1:
        return each[0]
    digest = hashlib.sha256("\0".join(each).encode()).hexdigest()  # no key has a NUL, nor a limit to how many there are
    return f"several/{digest[:40]}"
