"""Knows how who waits for the loss of a hold, or for a request to let go, is woken, or called."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.queue.revocations import ReleaseRequest

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold

logger = logging.getLogger("django_zklock.locks")


class Alarm(GrantObserver):
    """Wakes who waits for the loss of a hold, and if so asked for a request to let go, by its end at the latest."""

    def __init__(self, *, release_requested: bool = False) -> None:
        self.waiter = ThreadWaiter[bool]()
        self._release_requested = release_requested
        self._rung = False

    def on_lost(self, reason: str) -> None:
        self._ring()

    def on_released(self) -> None:
        self._ring()

    def on_release_requested(self, request: ReleaseRequest) -> None:
        if self._release_requested:
            self._ring()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self.waiter.set(True)


class _Callback(GrantObserver):
    """A user's callback; it is called once."""

    def __init__(self, hold: Hold, callback: Callable[[Hold], object]) -> None:
        if not callable(callback):
            raise TypeError(f"a callback is called with the hold, which {callback!r} cannot be.")
        self._hold = weakref.ref(hold)
        self._session = hold._grant.session
        self._callback: Callable[[Hold], object] | None = callback

    def _call(self) -> None:
        callback, self._callback = self._callback, None
        hold = self._hold()
        if hold is not None and callback is not None:
            self._session.dispatch(_tell, callback, hold)


def _tell(callback: Callable[[Hold], object], hold: Hold) -> None:
    try:
        callback(hold)
    except Exception:
        logger.exception("a callback of the hold of %s failed: %r", hold.key, callback, extra={"lock": hold.key})


class LostCallback(_Callback):
    """One for the loss of a hold."""

    def on_lost(self, reason: str) -> None:
        self._call()


class ReleaseRequestCallback(_Callback):
    """Called at the first release request."""

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._call()
