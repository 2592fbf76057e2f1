"""Pass the events of locks to Django's signals, and to the app that records them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.core import clock, hooks
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.block import Receipt
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant, GrantObserver
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk.lease import LEASE_SHARE, GrantSession
from django_zklock.exceptions import LockDeadlock, warn
from django_zklock.locks.hold import hold_of

if TYPE_CHECKING:
    from django_zklock.core.locks.refusals import AnyContender
    from django_zklock.core.locks.spec import LockSpec
    from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.locks")


class SignalEvents(hooks.Events):
    """Sends a signal for each event that has receivers, on the thread for receivers; see `django_zklock.signals`."""

    sender: type = object
    """The class of locks, which is the sender of the signals about them."""
    recorder: Any = None
    """
    A `contrib.events.recorder.Recorder`, or None.

    It hears of each event on the thread where it happens, and must not block.

    It only puts a value into a queue: a switch to the thread for receivers would take longer.
    """

    def waiting(self, contender: AnyContender, owner: Owner) -> None:
        if signals.lock_waiting.receivers:
            from django_zklock.core.locks.refusals import describe  # noqa: PLC0415 - it imports kazoo

            ahead = describe(contender.ahead, contender, owner)
            fields = {"lock": contender.spec.key, "ahead": ahead, "about": contender.caller.about}
            self.send(contender.session, signals.lock_waiting, **fields)

    def acquired(self, held: HeldLock, waited: float) -> None:
        if self.recorder is not None:
            self._record(self.recorder.acquired, held.grant, waited)
        if signals.lock_acquired.receivers:
            self._send_about(held, signals.lock_acquired, waited=waited)
        if (signals.lock_lost.receivers or self.recorder is not None) and held.is_unwatched:
            held.grant.observe(_LossReport(held))

    def acquires_again(self, held: HeldLock, spec: LockSpec) -> None:
        """Warn of stricter bounds of a hold, as the bounds are those of the outermost block."""
        first = held.spec
        dropped = ["min_hold"] if spec.min_hold > first.min_hold else []
        for option in ("max_hold", "warn_after"):
            seconds, bound = getattr(spec, option), getattr(first, option)
            if seconds is not None and (bound is None or seconds < bound):
                dropped.append(option)
        if dropped:
            warn(
                f"{' and '.join(dropped)} of {spec.template or spec.key!r} has no effect here, because its owner has "
                "the lock already. Give it to the outermost block, or to the entry of the lock in the settings."
            )

    def failed(self, contender: AnyContender, error: BaseException, waited: float, *, waits: bool) -> None:
        spec = contender.spec
        self.send(
            contender.session,
            signals.lock_failed,
            lock=spec.key,
            error=type(error),  # not the error itself, which refers to the frames of the caller
            reason=str(error),
            circle=error.circle if isinstance(error, LockDeadlock) else (),
            waited=waited if waits else 0.0,
            template=spec.template,
            kind=spec.kind.word,
            about=contender.caller.about,
        )

    def ended(self, held: HeldLock) -> None:
        if self.recorder is None and not signals.lock_released.receivers and not signals.lock_lost.receivers:
            return
        reason = held.grant.why_invalid()
        if reason is not None:
            held.report_loss(reason)
            return
        seconds = clock.now() - held.grant.since
        if self.recorder is not None:
            self._record(self.recorder.released, held.grant, seconds)
        if signals.lock_released.receivers:
            send = functools.partial(self._send_about, held, signals.lock_released, held=seconds)
            held.contender.when_released(lambda released: released and send(), confirmed=True)

    def lost(self, held: HeldLock, reason: str, receipt: Receipt | None) -> None:
        if self.recorder is not None:
            self._record(self.recorder.lost, held.grant, reason)
        self._send_about(held, signals.lock_lost, reason=reason, receipt=receipt)

    def release_refused(
        self, session: Session, key: str, reason: str, about: Mapping[str, str], grant: Grant | None
    ) -> None:
        if self.recorder is not None and grant is not None and grant.why_invalid() is None:
            self._record(self.recorder.refused, grant, reason)
        self.send(session, signals.lock_release_refused, lock=key, reason=reason, about=about)

    def release_requested(self, grant: Grant, request: ReleaseRequest) -> None:
        self._send_about_grant(grant, signals.lock_release_requested, by=request.by, reason=request.reason)

    def held_long(self, grant: Grant, held: float) -> None:
        self._send_about_grant(grant, signals.lock_held_long, held=held)

    def connection_changed(self, session: Session, state: str, previous: str) -> None:
        fields = {"state": state, "previous": previous, "session_id": session.session_id}
        self.send(session, signals.connection_state_changed, type(session), **fields)

    def heartbeat(self, session: Session, took: float, margin: float, error: str) -> None:
        lease = LEASE_SHARE * session.timeout
        self.send(session, signals.heartbeat, type(session), took=took, margin=margin, lease=lease, error=error)

    def _record(self, record: Callable[..., object], grant: Grant, detail: object) -> None:
        try:
            record(grant, detail)
        except Exception:
            logger.exception("an event of lock %r was not recorded", grant.key)

    def _send_about_grant(self, grant: Grant, signal: Signal, /, **fields: object) -> None:
        """Send a signal about a grant. Nothing is sent while the grant is being released."""
        held = grant.held()
        if held is not None:
            self._send_about(held, signal, **fields)

    def _send_about(self, held: HeldLock, signal: Signal, /, **fields: object) -> None:
        if signal.receivers:
            self.send(held.grant.session, signal, lock=held.key, hold=hold_of(held), **fields)

    def send(self, session: GrantSession, signal: Signal, sender: type | None = None, /, **fields: object) -> None:
        """Send a signal if it has receivers; its sender is the class of locks, unless another one is given."""
        sender = self.sender if sender is None else sender
        if signal.receivers and signal.has_listeners(sender):
            session.dispatch(functools.partial(signal.send_robust, sender, **fields))


class _LossReport(GrantObserver):
    """Reports the loss of a lock of `acquire` at once, unless a block is open: the block reports at its end."""

    def __init__(self, held: HeldLock) -> None:
        self._held = held

    def on_lost(self, reason: str) -> None:
        if not self._held.blocks:
            self._held.report_loss(reason)


events: Final = SignalEvents()
