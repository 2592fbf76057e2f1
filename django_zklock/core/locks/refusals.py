"""The errors of acquisitions that were not granted. They say who holds the lock, and what to do."""

from __future__ import annotations

from typing import TypeAlias

from django_zklock.core.errors import LockBusy, LockTimeout, ZooKeeperUnavailable
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.lingering import LocalWaiter
from django_zklock.core.protocol.contender import Busy, Contender, Outcome
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import Kind

AnyContender: TypeAlias = Contender | LocalWaiter


def refusal(contender: AnyContender, owner: Owner, outcome: Outcome | None, waited: float) -> Exception:
    """Return the error for an outcome that is no grant. None means that there was no outcome in time."""
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
    if not (contender.waits and contender.placed):
        return ZooKeeperUnavailable(contender.session.explain(waited), lock=spec.key)
    ahead = _ahead(contender, owner)
    return LockTimeout(f"The lock {spec.key!r} was not free within {waited:.1f} s{ahead}.", lock=spec.key)


def _holder(contender: AnyContender, owner: Owner) -> str:
    return str(contender.operator or describe_ahead(contender, owner) or "another owner")


def _ahead(contender: AnyContender, owner: Owner) -> str:
    if contender.in_local_queue:
        return "; many other callers of this process wait for it, too"
    if contender.operator is not None:
        return f"; ahead is the hold of {contender.operator}"
    ahead = describe_ahead(contender, owner)
    return f"; ahead is {ahead}" if ahead else ""


def describe_ahead(contender: AnyContender, owner: Owner) -> str:
    """Return a description of the contender just ahead; empty if that is not known."""
    ahead, caller = contender.ahead, contender.caller
    if ahead is None:
        return ""
    # A message of Celery waits on behalf of a pool process, and a lease of the coordinator on behalf of a program.
    is_for_others = owner.kind == "message" or "lease" in caller.about
    if not is_for_others and (not ahead.guid or ahead.guid in contender.session.attached(Registry).guids):
        is_thread = ahead.thread != caller.thread or owner.kind == "thread"
        where = f"thread {ahead.thread}" if is_thread else f"another {owner.kind}"
        return f"{ahead.what!r} in {where} of this process"
    return f"{ahead.what!r} on {ahead.host}, process {ahead.pid}"
