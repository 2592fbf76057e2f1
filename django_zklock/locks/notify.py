"""Django signals about locks, sent on the thread for signals."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.locks.guard import Guard, Receipt
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.held import HeldLock


def send(held: HeldLock, signal: Signal, /, **kwargs: object) -> None:
    """Send a signal about a held lock."""
    if has_receivers(signal):
        send_from(held.grant.session, signal, lock=held.key, hold=held.hold, **kwargs)


def send_about(grant: Grant, signal: Signal, **kwargs: object) -> None:
    """Send a signal about a grant. Nothing is sent while the grant is being released."""
    held = next(iter(grant.parts_held()), None)
    if held is not None:
        send(held, signal, **kwargs)


def send_from(session: Session, signal: Signal, **kwargs: object) -> None:
    """Send a signal, if it has receivers."""
    if has_receivers(signal):
        session.dispatch(_deliver, signal, _sender(), kwargs)


def has_receivers(signal: Signal) -> bool:
    """Return whether anybody receives this signal about locks."""
    return bool(signal.receivers) and signal.has_listeners(_sender())


def send_lost(held: HeldLock, reason: str, receipt: Receipt | None) -> None:
    """Send `lock_lost`, once for each grant."""
    held.grant.session.post(_send_lost_once, held, reason, receipt)


def _send_lost_once(held: HeldLock, reason: str, receipt: Receipt | None) -> None:
    if not held.grant.loss_told:
        held.grant.loss_told = True
        send(held, signals.lock_lost, reason=reason, receipt=receipt)


class LossReport(GrantObserver):
    """Sends `lock_lost` as soon as the lock is lost, unless a block is open: the block reports at its end."""

    def __init__(self, held: HeldLock) -> None:
        self._held = held

    def on_lost(self, reason: str) -> None:
        if not self._held.grant.observed_by(Guard):
            _send_lost_once(self._held, reason, None)


@functools.cache
def _sender() -> type:
    from django_zklock.locks.lock import Lock  # noqa: PLC0415 - it is built upon this module

    return Lock


def _deliver(signal: Signal, sender: type, kwargs: dict[str, Any]) -> None:
    signal.send_robust(sender, **kwargs)
