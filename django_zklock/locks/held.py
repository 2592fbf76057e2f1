"""
A lock that one owner holds: how often it was acquired, what keeps it, and how it is released.

The handler of a signal (a soft time limit, Ctrl-C) may raise between any two instructions of the owner. So each step of
a release may be done twice.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
import weakref
from collections.abc import Callable

from django_zklock import clock, signals
from django_zklock.conf.options import UNSET, Unset
from django_zklock.exceptions import LockNotHeld, LockUpgradeRefused, ZkLockError
from django_zklock.execution import abort, commit_hooks, transactions, work
from django_zklock.execution.cleanup import CleanupOnError
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks import maximum_hold, notify, table
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.grant import Grant, GrantedContender, Policy
from django_zklock.queue.nodes import Kind

logger = logging.getLogger("django_zklock.locks")

RELEASE_TIMEOUT = 0.7  # seconds that a release waits for ZooKeeper's confirmation; it goes on in the background


class HeldLock:
    """
    One owner's part of a grant.

    Usually it is the only part. A writer that also reads has two, and a response body may have one of its own. The lock
    is released with the last part.
    """

    __slots__ = (
        "__weakref__",
        "_hold",
        "_reference",
        "acquired",
        "contender",
        "count",
        "grant",
        "observer",
        "owner",
        "policy",
        "reads",
        "work",
    )

    def __init__(
        self, contender: GrantedContender, grant: Grant, owner: Owner, policy: Policy, *, reads: bool = False
    ) -> None:
        self.contender = contender
        self.grant = grant
        self.owner = owner
        self.policy = policy
        self.work = work.current()  # in which it was acquired
        # Only the owner writes these three.
        self.count = 1  # how often the owner has acquired it; 0 when released, -1 meanwhile
        self.acquired = 0  # how often of that by `acquire`, so that no block ends it
        self.observer: commit_hooks.TransactionObserver | None = None  # of the open transactions that keep it
        self.reads = reads or grant.kind is Kind.READ  # only, though the grant may be for writing
        self._hold: weakref.ref[Hold] | None = None
        reference = _release_when_dropped(self)
        self._reference: weakref.ref[HeldLock] | None = reference  # None once this part is released
        grant.parts[reference] = self.reads

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self.grant.key

    @property
    def hold(self) -> Hold:
        """The hold, as users see it: the same object as long as a reference to it is left."""
        found = self._hold() if self._hold is not None else None
        if found is None:
            found = Hold(self)
            self._hold = weakref.ref(found)
        return found

    @property
    def is_over(self) -> bool:
        """Whether the lock was released. A transaction may keep it after its block."""
        return self.count <= 0 and not self.grant.parts

    @property
    def is_unwatched(self) -> bool:
        """Whether no block and no transaction would notice that the lock is lost."""
        return self.count <= self.acquired and self.observer is None

    def check(self) -> None:
        """Raise `LockLost` unless the lease is valid now, and `LockNotHeld` if the lock was released."""
        if self.grant.inherited:
            raise LockNotHeld(
                "A forked child does not hold its parent's locks. Acquire the lock in the child.", lock=self.key
            )
        if self.is_over:
            raise LockNotHeld("The lock was released.", lock=self.key)
        self.grant.check()
        since, reason = self.grant.suspect_since, self.grant.suspect_reason
        if self.policy.abort_on == "suspended" and since is not None and clock.now() - since >= self.policy.grace:
            raise self.grant.loss(reason)

    # --- acquiring it again ---------------------------------------------------------------------------------------

    def part_for(self, kind: Kind) -> HeldLock:
        """
        Return the part by which the owner acquires the lock again: this one, or a new one that only reads.

        `kind` is what the owner asks for now. Raises `LockUpgradeRefused` if the owner would wait for its own release,
        and `LockLost` if the lock is lost.
        """
        self._refuse_upgrade(kind)
        self.grant.check()
        reads = kind is Kind.READ
        if self.reads is reads:
            return self
        part = HeldLock(self.contender, self.grant, self.owner, self.policy, reads=True)  # the writer may go first
        part.count = 0
        return part

    def _refuse_upgrade(self, kind: Kind) -> None:
        shared = Kind.READ if self.reads else self.grant.kind
        if shared in (Kind.LOCK, Kind.WRITE, kind):
            return
        held, instead = "a permit of", "Release the permit first."
        if shared is Kind.READ:
            held = "a read lock on"
            instead = (
                'Release it first, or acquire it with kind="write" from the start: a writer becomes a reader without a '
                "gap by hold.downgrade()."
            )
        raise LockUpgradeRefused(
            f"The caller holds {held} {self.key!r}, which it shares with others, and would wait for its own release. "
            f"{instead}",
            lock=self.key,
        )

    def downgrade(self) -> None:
        """Go on as a reader; see `Hold.downgrade`."""
        if self.grant.inherited or self.is_over:
            raise LockNotHeld(lock=self.key)
        self.grant.check()
        if self.reads or self.grant.kind is Kind.READ:
            return
        if self.grant.kind is not Kind.WRITE:
            raise ZkLockError(f'The lock {self.key!r} was not acquired with kind="write".', lock=self.key)
        if self.count > 1 or sum(not reads for reads in list(self.grant.parts.values())) > 1:
            raise ZkLockError(
                f"The write lock {self.key!r} was acquired more than once. Release it until it is held once.",
                lock=self.key,
            )
        share = functools.partial(self.contender.share, asked=True)
        with CleanupOnError(share):
            if self._reference is not None:
                self.grant.parts[self._reference] = True
            share()

    # --- release --------------------------------------------------------------------------------------------------

    @abort.shielded
    def release(self, count: int, release_on: str | Unset, done: Callable[[bool], object] | None = None) -> None:
        """
        Lower the count to `count`, and release the lock at 0 unless open transactions keep it.

        Waits for nothing, and doing it again changes nothing. `done` is called once: on the protocol's thread with True
        when the znode is gone, or with False when it is clear that this takes longer; at once with True if the lock
        stays.
        """
        self._keep_for_transactions(count, release_on)
        self.release_to(count, done)

    @abort.shielded
    def _keep_for_transactions(self, count: int, release_on: str | Unset) -> None:
        """
        Let the open transactions keep the lock. Otherwise their work would be committed after the release.

        Without `release_on`, the lock was acquired before the transaction began. So only its last release matters.
        """
        if release_on == "exit" or (release_on is UNSET and count > 0) or self.grant.inherited:
            return
        unfinished = transactions.unfinished()
        if unfinished:
            observer = self.observer or commit_hooks.TransactionObserver(
                functools.partial(check_before_commit, self), functools.partial(_transactions_ended, self)
            )
            observer.observe(unfinished)
            self.observer = observer

    @abort.shielded
    def release_to(self, count: int, done: Callable[[bool], object] | None = None) -> None:
        """Lower the count to `count`, and release the lock at 0, as `release` does."""
        grant = self.grant
        if grant.inherited or count > 0 or self.observer is not None:
            if not grant.inherited:  # else the lock is the parent's
                self.count = max(count, 0)
                maximum_hold.leave_if_overdue(grant, self.contender)
            if done is not None:
                done(True)
            return
        table.held_locks.remove(self)  # first, or its owner could acquire again what is being released
        if self.count > 0:
            self.count = -1  # another process may get the lock, and another thread check this, before the next line
        # First drop this part, then look at the others: of two that leave at once, one is the last.
        if self._reference is not None:
            grant.parts.pop(self._reference, None)
        if grant.parts:
            share_with_readers(self.contender, grant)
            self.count = 0
            self._reference = None
            maximum_hold.leave_if_overdue(grant, self.contender)
            if done is not None:
                done(True)
            return
        self.contender.abandon(done)
        self._reference = None
        if self.count:
            self.count = 0
            if grant.claim_end():
                self._report_end()

    def _report_end(self) -> None:
        if not (notify.has_receivers(signals.lock_released) or notify.has_receivers(signals.lock_lost)):
            return
        reason = self.grant.why_invalid()
        if reason is None:
            notify.send(self, signals.lock_released, held=clock.now() - self.grant.since)
        else:
            notify.send_lost(self, reason, None)


def check_before_commit(held: HeldLock) -> None:
    """Raise `LockLost` unless the lease is valid now, or `abort_on` is "never"."""
    if held.policy.abort_on != "never" or held.grant.overdue:
        held.check()


@abort.shielded
def _transactions_ended(held: HeldLock, observer: commit_hooks.TransactionObserver) -> Callable[[], object] | None:
    """Release a lock that only its transactions have kept; return a call that waits for the confirmation."""
    if held.grant.inherited or (held.observer is not observer and held.count >= 0):
        return None
    if held.count == 0:
        held.count = -1  # only the transactions had it
    held.observer = None
    if held.count > 0:
        return None
    confirmed: ThreadWaiter[bool] = ThreadWaiter()
    deadline = clock.now() + RELEASE_TIMEOUT
    held.release_to(0, confirmed.set)
    return lambda: confirmed.wait(deadline - clock.now())


def share_with_readers(contender: GrantedContender, grant: Grant) -> None:
    """Turn a write lock into a read lock, once all parts of it only read."""
    parts = list(grant.parts.values())  # none, if the last one has just gone
    if grant.kind is Kind.WRITE and parts and all(parts):
        contender.share()


def _release_when_dropped(held: HeldLock) -> weakref.ref[HeldLock]:
    """
    Return a reference that releases the lock when the last part of a grant is dropped without being released.

    It is no `__del__`, which would run for every part: Python swallows an exception that a signal's handler raises in
    one, such as a soft time limit.
    """
    contender, grant, finalizing = held.contender, held.grant, sys.is_finalizing

    def on_dropped(reference: weakref.ref[HeldLock]) -> None:
        if finalizing() or grant.inherited:
            return  # the session has been closed, or is the parent's
        grant.parts.pop(reference, None)
        if grant.parts:
            share_with_readers(contender, grant)
            return
        table.held_locks.drop_blocks(grant)
        contender.abandon()
        message = f"the hold of {grant.key!r} was dropped without being released"
        warnings.warn(message, ResourceWarning, stacklevel=1)

    return weakref.ref(held, on_dropped)
