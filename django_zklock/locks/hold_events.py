"""Wake waiters, and call callbacks, when a lock is lost or its holder is asked to release it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.queue.release_request import ReleaseRequest

if TYPE_CHECKING:
    from django_zklock.locks.held import HeldLock
    from django_zklock.locks.hold import Hold

logger = logging.getLogger("django_zklock.locks")


class HoldEvent(GrantObserver):
    """Wakes a waiter when the lock is lost or released, and with `release_requested` at a release request, too."""

    def __init__(self, *, release_requested: bool = False) -> None:
        self.waiter = ThreadWaiter[bool]()
        self._release_requested = release_requested
        self._is_set = False

    def on_lost(self, reason: str) -> None:
        self._set()

    def on_released(self) -> None:
        self._set()

    def on_release_requested(self, request: ReleaseRequest) -> None:
        if self._release_requested:
            self._set()

    def _set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self.waiter.set(True)


class _Callback(GrantObserver):
    """A user's callback; it is called once."""

    def __init__(self, held: HeldLock, callback: Callable[[Hold], object]) -> None:
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r}.")
        self._held = weakref.ref(held)
        self._session = held.grant.session
        self._callback: Callable[[Hold], object] | None = callback

    def _call(self) -> None:
        callback, self._callback = self._callback, None
        held = self._held()
        if held is not None and callback is not None:
            self._session.dispatch(_run, callback, held.hold)


def _run(callback: Callable[[Hold], object], hold: Hold) -> None:
    try:
        callback(hold)
    except Exception:
        logger.exception("callback of the hold on %r failed: %r", hold.key, callback, extra={"lock": hold.key})


class LostCallback(_Callback):
    """One for the loss of a hold."""

    def on_lost(self, reason: str) -> None:
        self._call()


class ReleaseRequestCallback(_Callback):
    """Called at the first release request."""

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._call()
