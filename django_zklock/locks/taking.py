"""
Knows how an owner takes a lock and lets go of it so that whatever strikes it on the way can be put right.

The handler of a signal (a soft time limit, Ctrl-C) may raise between any two instructions of the owner. So what has
been done so far is noted in a `Take` before the next step is done, and each step of letting go may be done twice.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.conf.options import UNSET, Unset
from django_zklock.exceptions import LockBusy, LockNotAcquired
from django_zklock.execution import abort, commit_hooks, transactions
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks import hold as holds
from django_zklock.locks import lifetime
from django_zklock.locks.attempt import Attempt
from django_zklock.locks.guard import Guard, Receipt
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.locks.terms import Terms
from django_zklock.locks.validation import refuse_upgrade
from django_zklock.queue.nodes import Kind
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.blocks import Block

RELEASE_PATIENCE = 0.7  # seconds that a release waits to hear that the node is gone; it goes on in the background


class Take:
    """One taking of a lock, as far as it has come."""

    __slots__ = ("block", "count", "hold")

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self.count = 0  # of the hold, before it was taken here
        self.block: Block | None = None

    def again(self, hold: Hold) -> None:
        """Take what its owner holds already."""
        self.count = hold._count
        self.hold = hold
        hold._count = self.count + 1

    @abort.shielded
    def undo(self) -> None:
        """Give back what was taken."""
        if self.hold is not None:
            let_go(self.hold, self.count)


@abort.shielded
def let_go(hold: Hold, count: int, left: Callable[[bool], object] | None = None) -> None:
    """
    Bring the count of a hold down to `count`, and let go of the lock at 0; doing it again changes nothing.

    Where the hold is shared, the lock goes with the last one. `left` is called on the protocol's thread as soon as the
    node is gone, or this is clear to take a while; at once, if others have a share.
    """
    grant = hold._grant
    if grant.inherited:
        return  # the lock is the parent's
    if count > 0 or hold._kept_by is not None:
        hold._count = max(count, 0)
        lifetime.leave_if_overdue(grant, hold._contender)
        return
    holds.live_holds.remove(hold)  # first, or its owner could take again what is on its way out
    if hold._count > 0:
        hold._count = -1  # another thread may check it, and another process have the lock before this one goes on
    grant.claims.pop(hold._claim, None)  # first, then look at the others: of two that leave at once, one is the last
    if grant.claims:
        holds.share_with_readers(hold._contender, grant)
        hold._count = 0
        hold._watch = None
        lifetime.leave_if_overdue(grant, hold._contender)
        if left is not None:
            left(True)
        return
    hold._contender.abandon(left)
    hold._watch = None
    if hold._count:
        hold._count = 0
        if grant.take_end():
            _tell_end(hold)


def _tell_end(hold: Hold) -> None:
    reason = hold._grant.why_invalid()
    if reason is None:
        send(hold, signals.lock_released, held=time.monotonic() - hold._grant.since)
    else:
        tell_lost(hold, reason, None)


@abort.shielded
def hand_over(hold: Hold, count: int, release: str | Unset) -> None:
    """
    Have the open transactions keep a hold whose owner brings its count down to `count`; to be done before `let_go`.

    The work under it would be committed after its release, else. If nothing is said about that, it is a lock that was
    taken before the transaction was begun, and is let go of inside it. Doing it again changes nothing.
    """
    if release == "block" or (release is UNSET and count > 0) or hold._grant.inherited:
        return
    unfinished = transactions.unfinished()
    if unfinished:
        witness = hold._kept_by or commit_hooks.Witness(
            functools.partial(check_before_commit, hold), functools.partial(_no_longer_kept, hold)
        )
        witness.attend(unfinished)
        hold._kept_by = witness


@abort.shielded
def give_back(hold: Hold, count: int, release: str | Unset) -> None:
    """Bring the count of a hold down to `count`, without waiting for anything; doing it again changes nothing."""
    hand_over(hold, count, release)
    let_go(hold, count)


def check_before_commit(hold: Hold) -> None:
    """Raise `LockLost` unless the lease is valid now; but for a lock whose loss is never to stop the work."""
    if hold._policy.abort_on != "never" or hold._grant.overdue:
        hold.check()


@abort.shielded
def _no_longer_kept(hold: Hold, witness: commit_hooks.Witness) -> Callable[[], object] | None:
    if hold._grant.inherited or (hold._kept_by is not witness and hold._count >= 0):
        return None
    if hold._count == 0:
        hold._count = -1  # nobody but the transaction has it
    hold._kept_by = None
    if hold._count > 0:
        return None
    waiter: ThreadWaiter[bool] = ThreadWaiter()
    deadline = time.monotonic() + RELEASE_PATIENCE
    let_go(hold, 0, waiter.set)
    return lambda: waiter.wait(max(0.0, deadline - time.monotonic()))


def take_again(take: Take, owner: Owner, terms: Terms, *, keep: bool) -> Hold | None:
    """Return what the owner holds of this key, taken once more, or None if it holds nothing."""
    reads = terms.kind is Kind.READ
    held = holds.live_holds.find(owner, terms.key, reads=reads) or holds.live_holds.find(owner, terms.key)
    if held is None:
        return None
    refuse_upgrade(held, terms)
    if not terms.reentrant:
        raise LockBusy(
            f"The lock {terms.key!r} is not reentrant and its owner has it already; waiting would never end.",
            lock=terms.key,
        )
    reason = held._grant.why_invalid()
    if reason is not None:
        raise held._grant.loss(reason)
    if held._reads is not reads:
        # What it holds excludes all others, and may go before this.
        held = Hold(held._contender, held._grant, owner, terms.policy, reads=True)
        held._acquired = int(keep)
        take.hold = held
        holds.live_holds.add(held, keep=keep)
        return held
    take.again(held)
    if keep:
        held._acquired += 1
        holds.live_holds.add(held, keep=True)  # it may be released after the block that took it first
    return held


def begun(hold: Hold) -> Hold:
    """Take note that the work begins for which a hold was taken."""
    hold._grant.begun = True
    return hold


def keep_alive(hold: Hold) -> None:
    """List a hold until it is released: no block has it. Who is told of losses hears of its own, too."""
    holds.live_holds.add(hold, keep=True)
    if _is_heard(signals.lock_lost):
        hold._grant.session.post(hold._grant.attach, LossReport(hold))


def listed(attempt: Attempt[Any], hold: Hold, *, keep: bool) -> Hold:
    """Return a new hold, listed so that its owner can take it again."""
    hold._acquired = int(keep)
    holds.live_holds.add(hold, keep=keep)
    send(hold, signals.lock_acquired, waited=attempt.waited)
    if keep:
        keep_alive(hold)
    return hold


def report_waiting(attempt: Attempt[Any]) -> None:
    """Have `lock_waiting` sent if there turns out to be somebody ahead; before the attempt begins."""
    if not _is_heard(signals.lock_waiting):
        return

    def on_queued() -> None:
        send_from(
            attempt.contender.session,
            signals.lock_waiting,
            lock=attempt.terms.key,
            ahead=attempt.one_ahead,
            about=attempt.about,
        )

    attempt.contender.on_queued = on_queued


def report_contention(attempt: Attempt[Any], error: BaseException) -> None:
    """Send `lock_contended` if that is why the lock was not acquired."""
    if isinstance(error, LockNotAcquired):
        terms = attempt.terms
        send_from(
            attempt.contender.session,
            signals.lock_contended,
            lock=terms.key,
            waited=attempt.waited if attempt.timeout else 0.0,
            template=terms.template,
            kind=terms.kind.word,
        )


def tell_lost(hold: Hold, reason: str, receipt: Receipt | None) -> None:
    """Send `lock_lost` for a hold, once."""
    hold._grant.session.post(_tell_lost_once, hold, reason, receipt)


def _tell_lost_once(hold: Hold, reason: str, receipt: Receipt | None) -> None:
    if not hold._grant.loss_told:
        hold._grant.loss_told = True
        send(hold, signals.lock_lost, reason=reason, receipt=receipt)


class LossReport(GrantObserver):
    """Sends `lock_lost` for a hold that no block watches over, as soon as it is lost."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def on_lost(self, reason: str) -> None:
        if not self._hold._grant.observed_by(Guard):  # else the block tells, at its end, what became of the work
            _tell_lost_once(self._hold, reason, None)


def send(about: Hold, signal: Signal, **kwargs: object) -> None:
    """Send a signal about a hold."""
    send_from(about._grant.session, signal, lock=about.key, hold=about, **kwargs)


def send_from(session: Session, signal: Signal, **kwargs: object) -> None:
    """Send a signal on the thread for signals."""
    if _is_heard(signal):
        session.dispatch(_deliver, signal, _sender(), kwargs)


def _is_heard(signal: Signal) -> bool:
    return bool(signal.receivers) and signal.has_listeners(_sender())


@functools.cache
def _sender() -> type:
    from django_zklock.locks.lock import Lock  # noqa: PLC0415 - it is built upon this module

    return Lock


def _deliver(signal: Signal, sender: type, kwargs: dict[str, Any]) -> None:
    signal.send_robust(sender, **kwargs)
