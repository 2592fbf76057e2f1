"""Knows what it is to hold several locks together: each for itself, and whether all of them can still be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from django_zklock.locks.alarms import Alarm
from django_zklock.locks.hold import Hold
from django_zklock.queue.revocations import ReleaseRequest


class MultiHold:
    """
    Several locks that are held: what `with zk_locks(...) as hold` gives, and `MultiLock.acquire()` returns.

    Iteration gives the hold of each lock, in the order of their keys, which is the order they were taken in;
    `hold["a"]` is that of the lock of this key, or of this name as it was given.
    """

    # It has no length: to ask whether it is true would run Python code, in which an exception could strike between
    # `acquire()` and the `if` round it.

    __slots__ = ("_by_name", "_holds")

    def __init__(self, holds: tuple[Hold, ...], names: Mapping[str, str]) -> None:
        self._holds = holds
        by_key = {hold.key: hold for hold in holds}
        self._by_name = {name: by_key[key] for name, key in names.items()} | by_key

    def __repr__(self) -> str:
        over = any(hold._is_over for hold in self._holds)
        state = "released" if over else "lost" if self.lost else "held"
        return f"<MultiHold of {', '.join(map(repr, self.keys))}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a hold is its process's own; hand over the hold.token of each, or its hold.signed_token().")

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._holds)

    def __getitem__(self, name: str) -> Hold:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the locks, in the order they were taken in."""
        return tuple(hold.key for hold in self._holds)

    @property
    def lost(self) -> bool:
        """Whether any of the locks is lost. Once True it stays so."""
        return any(hold.lost for hold in self._holds)

    @property
    def lease_remaining(self) -> float:
        """Seconds that the shortest lease has left if nothing extends it; 0.0 when one is over."""
        return min(hold.lease_remaining for hold in self._holds)

    def check(self) -> None:
        """Raise `LockLost` unless the leases of all locks are valid now, and `LockNotHeld`, as `Hold.check` does."""
        for hold in self._holds:
            hold.check()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """
        Wait until any of the locks is lost, at most `timeout` seconds (None: for ever); return whether one is.

        Returns False as soon as one is released.
        """
        if any(hold._grant.inherited for hold in self._holds):
            return True  # what runs the protocol runs in the parent
        alarm = Alarm()
        try:
            for hold in self._holds:
                hold._grant.session.post(hold._grant.attach, alarm)
            alarm.waiter.wait(timeout)
        finally:
            for hold in self._holds:
                hold._grant.session.post(hold._grant.detach, alarm)
        return self.lost

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """The first release request to one of the locks, or None."""
        return next((hold.release_requested for hold in self._holds if hold.release_requested is not None), None)

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """Have `callback(hold)` run once for each lock that is lost, with its own hold; see `Hold`."""
        for hold in self._holds:
            hold.add_lost_callback(callback)
