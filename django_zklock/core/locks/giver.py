"""Hand a held lock over: what its owner does. `core.protocol.adoption` does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django_zklock.core.errors import LockLost, LockNotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import CleanupOnError
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.execution.waiters import Routine
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.protocol.adoption import GivenHold
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS
from django_zklock.core.queue.hand_over import HandOver
from django_zklock.core.queue.nodes import Kind, Mark, new_guid
from django_zklock.core.zk.errors import ZkError

HAND_OVER_TIMEOUT: Final = 5.0  # seconds that a hand-over waits for ZooKeeper


def hand_over(held: HeldLock, seconds: float, new_waiter: Callable[[], Any]) -> Routine[HandOver]:
    """
    Release a lock, and leave a hold of `seconds` seconds in its place for an adopter.

    Raises `ZkLockError` if the lock cannot be handed over; then it stays held. After any later exception it is
    released, and no hold is left.
    """
    contender = _check(held)
    spec = contender.spec
    given = HandOver(
        key=spec.key,
        kind=held.grant.kind,
        limit=spec.limit or 0,
        guid=new_guid(Mark.OPERATOR),
        sequence=held.grant.path[-SEQUENCE_DIGITS:],
        template=spec.template,
        seconds=seconds,
    )
    waiter = new_waiter()
    hold = GivenHold(spec, given, waiter.set)

    def on_released(released: bool) -> None:
        if contender.refusal is not None or not hold.tried:  # else the hold tells
            waiter.set(contender.refusal or 0)

    with CleanupOnError(partial(_withdraw, held, contender, hold)):
        contender.new_replacement = hold.replace
        held.handed_over = True
        held.release_uses()
        contender.when_released(on_released, confirmed=True)
        token = yield from waiter.outcome(HAND_OVER_TIMEOUT)
        refusal = token if isinstance(token, ZkError) else contender.refusal
        if refusal is not None:
            refusal.lock = spec.key
            raise refusal
        if token is None:
            raise ZooKeeperUnavailable(contender.session.explain(HAND_OVER_TIMEOUT), lock=spec.key)
        if not token:
            raise LockLost(f"The lock {spec.key!r} was lost, or not adopted in time.", lock=spec.key)
    return replace(given, token=token)


@abort.shielded
def _withdraw(held: HeldLock, contender: Contender, hold: GivenHold) -> None:
    """Finish the release, and leave no hold."""
    held.release_uses()
    contender.session.post(hold.withdraw, contender.session)


def _check(held: HeldLock) -> Contender:
    """Return the contender of a lock that can be handed over; raise for any other lock."""
    held.check()
    contender, grant, key = held.contender, held.grant, held.key
    if held.owner != current_owner():
        raise LockNotHeld(f"The lock {key!r} has another owner. Only its owner can hand it over.", lock=key)
    why = ""
    if not isinstance(contender, Contender):
        why = "it lingers, or the main process of a Celery worker holds it for this task"
    elif contender.spec.lasts or contender.spec.compat:
        why = f"it is a {contender.spec.lasts or f'lock with compat={contender.spec.compat!r}'}"
    elif contender.spec.kind is Kind.WRITE and all(grant.shares.values()):  # that is set before others may read
        why = "it is a write lock that only reads since its downgrade"
    elif len(held.uses) != 1 or len(grant.shares) != 1 or held.observer is not None:
        why = "its owner has acquired it more than once, or a transaction keeps it"
    else:
        return contender
    raise ZkLockError(f"The lock {key!r} cannot be handed over: {why}.", lock=key)
