"""The errors of an acquisition that was not granted: who has the lock, who is ahead, and how long the caller waited."""

from __future__ import annotations

from typing import TypeAlias

from django_zklock import signals
from django_zklock.exceptions import LockBusy, LockNotAcquired, LockTimeout, ZooKeeperUnavailable
from django_zklock.execution.owner import Owner
from django_zklock.locks import notify
from django_zklock.locks.lingering import LocalWaiter
from django_zklock.locks.protocol.contender import Busy, Contender, Outcome
from django_zklock.locks.protocol.registry import Registry
from django_zklock.queue.nodes import Kind

AnyContender: TypeAlias = Contender | LocalWaiter


def refusal(contender: AnyContender, owner: Owner, outcome: Outcome | None, waited: float) -> Exception:
    """Return the error that an outcome other than a grant means. None: there was no outcome in time."""
    spec = contender.spec
    if isinstance(outcome, Exception):
        return outcome
    if isinstance(outcome, Busy) and outcome.waiters is not None:
        return LockBusy(
            f"{outcome.waiters} callers wait for the lock {spec.key!r} already; max_waiters is {spec.max_waiters}.",
            lock=spec.key,
        )
    if isinstance(outcome, Busy):
        if spec.kind is Kind.PERMIT and contender.operator is None:
            return LockBusy(f"No permit of {spec.key!r} is free{_ahead(contender, owner)}.", lock=spec.key)
        return LockBusy(f"The lock {spec.key!r} is held by {_holder(contender, owner)}.", lock=spec.key)
    if not contender.placed:
        return ZooKeeperUnavailable(contender.session.explain(waited), lock=spec.key)
    ahead = _ahead(contender, owner)
    return LockTimeout(f"The lock {spec.key!r} was not free within {waited:.1f} s{ahead}.", lock=spec.key)


def report(contender: AnyContender, error: BaseException, waited: float, *, waits: bool) -> None:
    """Send the signals of an acquisition that failed, after `waited` seconds."""
    spec, session, ahead = contender.spec, contender.session, contender.ahead
    if isinstance(error, LockNotAcquired):
        notify.send_from(
            session,
            signals.lock_contended,
            lock=spec.key,
            waited=waited if waits else 0.0,
            template=spec.template,
            kind=spec.kind.word,
        )
    notify.send_from(
        session,
        signals.lock_failed,
        lock=spec.key,
        error=type(error),  # not the error itself, which refers to the frames of the caller
        reason=str(error),
        waited=waited,
        template=spec.template,
        kind=spec.kind.word,
        about=contender.caller.about,
        ahead_about={} if ahead is None else ahead.about,
    )


def report_wait(contender: AnyContender, owner: Owner) -> None:
    """Send `lock_waiting`."""
    if notify.has_receivers(signals.lock_waiting):
        notify.send_from(
            contender.session,
            signals.lock_waiting,
            lock=contender.spec.key,
            ahead=_contender_ahead(contender, owner),
            about=contender.caller.about,
        )


def _holder(contender: AnyContender, owner: Owner) -> str:
    return str(contender.operator or _contender_ahead(contender, owner) or "another owner")


def _ahead(contender: AnyContender, owner: Owner) -> str:
    if contender.in_local_queue:
        return "; many other callers of this process wait for it, too"
    if contender.operator is not None:
        return f"; ahead is the hold of {contender.operator}"
    ahead = _contender_ahead(contender, owner)
    return f"; ahead is {ahead}" if ahead else ""


def _contender_ahead(contender: AnyContender, owner: Owner) -> str:
    """Return a description of the contender just ahead; empty if that is not known."""
    ahead, caller = contender.ahead, contender.caller
    if ahead is None:
        return ""
    # A message of Celery waits for another process, and a lease of the coordinator for another program.
    is_for_others = owner.kind == "message" or "lease" in caller.about
    if not is_for_others and (not ahead.guid or ahead.guid in contender.session.attached(Registry).guids):
        is_thread = ahead.thread != caller.thread or owner.kind == "thread"
        where = f"thread {ahead.thread}" if is_thread else f"another {owner.kind}"
        return f"{ahead.what!r} in {where} of this process"
    return f"{ahead.what!r} on {ahead.host}, process {ahead.pid}"
