"""The errors of acquisitions that were not granted. They say who holds the lock, and what to do."""

from __future__ import annotations

from typing import Final, TypeAlias

from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import HeldLock, inherited_hold
from django_zklock.core.locks.lingering import LingeringWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Busy, Contender, Outcome
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.errors import LockBusy, LockTimeout
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import Kind

logger = Logger("django_zklock.locks")

AnyContender: TypeAlias = Contender | LingeringWaiter

INSIDE: Final = (
    "This work was started inside the block that holds the lock. If the block waits for it, neither goes on: pass the "
    "hold, or acquire the lock inside only."
)


def refusal(contender: AnyContender, owner: Owner, outcome: Outcome | None, waited: float) -> ZkLockError:
    """Return the error for an outcome that is no grant. None means that there was no outcome in time."""
    if isinstance(outcome, ZkLockError):
        return outcome
    busy = contender.busy if outcome is None else outcome
    if isinstance(busy, Busy):
        return _busy(contender, owner, busy)
    if contender.waits and contender.has_position:
        return _timeout(contender, owner, waited)
    return ZooKeeperUnavailable(contender.session.explain(waited), lock=contender.spec.key)


def _busy(contender: AnyContender, owner: Owner, busy: Busy) -> LockBusy:
    spec, ahead = contender.spec, contender.ahead
    if busy.waiters is not None:
        who = "1 caller waits" if busy.waiters == 1 else f"{busy.waiters} callers wait"
        why = f"{who} for the lock {spec.key!r} already; max_waiters is {spec.max_waiters}."
    elif spec.kind is Kind.PERMIT and not _is_operators(ahead):
        why = f"No permit of {spec.key!r} is free{_after(ahead, contender, owner)}."
    else:
        why = f"The lock {spec.key!r} is held by {describe(ahead, contender, owner) or 'another owner'}."
    return LockBusy(why, lock=spec.key, ahead=ahead)


def _timeout(contender: AnyContender, owner: Owner, waited: float) -> LockTimeout:
    key, ahead = contender.spec.key, contender.ahead
    after = _after(ahead, contender, owner)
    if contender.in_local_queue:
        after = after or "; many other callers of this process wait for it, too"
    block = block_around(contender, owner)
    if block is not None:
        report_inside(block)
        after += f". {INSIDE}".rstrip(".")
    if _is_operators(ahead) and contender.refusal is not None:  # it is over, and cannot be deleted
        after += f". {contender.refusal}".rstrip(".")
    return LockTimeout(f"The lock {key!r} was not free within {waited:.1f} s{after}.", lock=key, ahead=ahead)


def block_around(contender: AnyContender, owner: Owner) -> HeldLock | None:
    """Return the hold on this lock whose block has started the work of this owner; None if they can share the lock."""
    held = inherited_hold(contender.spec.key)
    if held is None or held.owner == owner or contender.spec.kind is Kind.PERMIT:
        return None
    return held


def report_inside(block: HeldLock) -> None:
    """Log, once for each hold, that work which its block has started wants its lock."""
    if not block.inside_reported:
        block.inside_reported = True
        logger.warning("lock %r is wanted by work of its own block: %s", block.key, INSIDE)


def _is_operators(ahead: ContenderInfo | None) -> bool:
    return ahead is not None and ahead.operator is not None


def _after(ahead: ContenderInfo | None, contender: AnyContender, owner: Owner) -> str:
    text = describe(ahead, contender, owner)
    hold = "the hold of " if _is_operators(ahead) else ""
    return f"; ahead is {hold}{text}" if text else ""


def describe(ahead: ContenderInfo | None, contender: AnyContender, owner: Owner) -> str:
    """Return a description of the contender `ahead` of another one, for messages; empty if it is not known."""
    if ahead is None:
        return ""
    caller = contender.caller
    # A message of Celery waits on behalf of a pool process, a lease of the coordinator on behalf of a program, and an
    # operator hold on behalf of a person.
    is_for_others = owner.kind == "message" or "lease" in caller.about or caller.operator is not None
    registry = contender.session.attached(Registry)
    if not is_for_others and ahead.guid in registry.guids:
        refused = [deletion.refused for deletion in list(registry.deleting) if deletion.guid == ahead.guid]
        if any(refused):
            return f"{ahead.what!r}, which this process has released, but its znode is still there: {refused[0]}"
        if ahead.owner == caller.owner:  # a signal handler, or `__del__`, wants the lock that the code below acquires
            return f"{ahead.what!r} in an earlier call of this {owner.kind}"
        where = f"another {owner.kind}" if ahead.thread == caller.thread else f"thread {ahead.thread}"
        return f"{ahead.what!r} in {where} of this process"
    return str(ahead)
