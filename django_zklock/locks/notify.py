"""Notifications about a lock: Django signals, callbacks of users, and events that wake waiting threads."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant, GrantObserver, GrantSession
from django_zklock.core.queue.release_request import ReleaseRequest

logger = Logger("django_zklock.locks")


_sender: type = object  # the class of locks; set once, when it is defined


def set_sender(sender: type) -> None:
    """Send all signals with this class as the sender."""
    global _sender
    _sender = sender


event_hooks: dict[Signal, Callable[..., object]] = {}
"""
The functions that are called before a signal about a held lock is sent, with the grant and the signal's arguments.

They run on the owner's thread or on the protocol's, so they must not block. They only put a value into a queue: a
switch to the thread for receivers would take longer. `contrib.events` sets them.
"""

action_hook: Callable[[Any], object] | None = None
"""A function that is called with each `operations.audit.Action`. `contrib.events` sets it, too. It must not block."""


def send(grant: Grant, hold: object, signal: Signal, /, **kwargs: object) -> None:
    """Call the hook of a signal about a held lock, then send the signal."""
    hook = event_hooks.get(signal)
    if hook is not None:
        try:
            hook(grant, **kwargs)
        except Exception:
            logger.exception("an event of lock %r was not recorded", grant.key)
    if signal.receivers:
        send_from(grant.session, signal, lock=grant.key, hold=hold, **kwargs)


def send_about(grant: Grant, signal: Signal, **kwargs: object) -> None:
    """Send a signal about a grant. Nothing is sent while the grant is being released."""
    hold = next(iter(grant.held_shares()), None)
    if hold is not None:
        send(grant, hold, signal, **kwargs)


def send_from(session: GrantSession, signal: Signal, **kwargs: object) -> None:
    """Send a signal, if it has receivers."""
    if signal.receivers and signal.has_listeners(_sender):
        session.dispatch(functools.partial(signal.send_robust, _sender, **kwargs))


def has_receivers(*any_of: Signal) -> bool:
    """Return whether any of these signals about locks has a receiver or a hook."""
    for signal in any_of:  # noqa: SIM110 - `any` would need a generator, for each lock
        if signal in event_hooks or (signal.receivers and signal.has_listeners(_sender)):
            return True
    return False


def send_release_requested(grant: Grant, request: ReleaseRequest) -> None:
    """Send `lock_release_requested`."""
    send_about(grant, signals.lock_release_requested, by=request.by, reason=request.reason)


# --- waiters and callbacks ----------------------------------------------------------------------------------------


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

    def __init__(self, session: GrantSession, hold: object, callback: Callable[[Any], object]) -> None:
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r}.")
        self._hold = weakref.ref(hold)
        self._session = session
        self._callback: Callable[[Any], object] | None = callback

    def _call(self) -> None:
        callback, self._callback = self._callback, None
        hold = self._hold()
        if hold is not None and callback is not None:
            self._session.dispatch(_run, callback, hold)


def _run(callback: Callable[[Any], object], hold: Any) -> None:
    try:
        callback(hold)
    except Exception:
        logger.exception("callback of the hold on %r failed: %r", hold.key, callback, extra={"lock": hold.key})


class LostCallback(_Callback):
    """Called when the hold is lost."""

    def on_lost(self, reason: str) -> None:
        self._call()


class ReleaseRequestCallback(_Callback):
    """Called at the first release request."""

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._call()
