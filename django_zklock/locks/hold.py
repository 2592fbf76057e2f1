"""
Knows what it is to hold a lock: the token, and whether the hold can still be trusted.

One of the two places with module state: the table of live holds, by owner and key, which makes locks reentrant. It is
read and written by the owner's own thread, each entry by one owner only, and begins empty in a forked child. Holds
that were entered by `with` are kept by their block and listed here weakly: should a block be torn apart by an
exception at the worst moment, its hold is released when the traceback is dropped.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import work
from django_zklock.execution.owner import Owner
from django_zklock.locks import above
from django_zklock.locks.alarms import Alarm, LostCallback, ReleaseRequestCallback
from django_zklock.locks.protocol.grant import Claim, Grant, Policy
from django_zklock.queue.nodes import Kind
from django_zklock.queue.revocations import ReleaseRequest
from django_zklock.zk import clock

if TYPE_CHECKING:
    from django_zklock.contrib.fences.block import FencedBlock
    from django_zklock.execution.commit_hooks import Witness
    from django_zklock.fencing.model import FencedModel
    from django_zklock.locks.guard import Guard
    from django_zklock.locks.protocol.contender import Contender

logger = logging.getLogger("django_zklock.locks")


class Hold:
    """
    A lock that is held: what `with zk_lock(...) as hold` gives, and `Lock.acquire()` returns.

    It is valid while its lease is, and once lost it stays lost; the lock may be acquired anew.
    """

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_claim",
        "_contender",
        "_count",
        "_grant",
        "_kept_by",
        "_owner",
        "_policy",
        "_reads",
        "_watch",
        "_work",
    )

    def __init__(
        self, contender: Contender, grant: Grant, owner: Owner, policy: Policy, *, reads: bool = False
    ) -> None:
        self._contender = contender
        self._grant = grant
        self._owner = owner
        self._policy = policy
        self._work = work.current()  # that it was taken in
        self._count = 1  # how often its owner took it; 0 when released, -1 meanwhile. Written by the owner only
        self._acquired = 0  # how often of that by `acquire`, so that no block ends it. Likewise
        self._kept_by: Witness | None = None  # of open transactions, which keep it at a count of 0. Likewise
        self._reads = reads or grant.kind is Kind.READ  # though the grant may be one to write
        self._claim = Claim(reads=self._reads)
        watch = _watch_over(self)
        self._watch: weakref.ref[Hold] | None = watch  # None as soon as the claim is given up
        grant.claims[self._claim] = watch

    def __repr__(self) -> str:
        state = "released" if self._is_over else "lost" if self.lost else "held"
        return f"<Hold of {self.key!r}, token {self.token}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a hold is its process's own; hand over hold.token, or hold.signed_token().")

    @property
    def key(self) -> str:
        """The key of the lock, as in `ROOT/<key>`."""
        return self._grant.key

    @property
    def template(self) -> str:
        """What the key was made of, as in `inventory/{sku}`: the same for all locks of one sort."""
        return self._grant.template

    @property
    def kind(self) -> str:
        """What is held: "lock", "read" or "write" (a side of a read-write lock), or "semaphore" (a permit of one)."""
        return (Kind.READ if self._reads else self._grant.kind).word

    def downgrade(self) -> None:
        """
        Go on as a reader, from being the writer: readers that come next in the queue get the lock, too.

        No writer comes in between, and the token stays the same. It cannot be undone. Raises `LockNotHeld` when the
        lock was released, `LockLost` when it was lost, and `ZkLockError` if it is no read-write lock or its owner took
        it to write more than once.
        """
        if self._grant.inherited or self._is_over:
            raise LockNotHeld(lock=self.key)
        reason = self._grant.why_invalid()
        if reason is not None:
            raise self._grant.loss(reason)
        if self.kind == "read":
            return
        if self._grant.kind is not Kind.WRITE:
            raise ZkLockError(f'The lock {self.key!r} was not taken with kind="write".', lock=self.key)
        if self._count > 1 or sum(not claim.reads for claim in list(self._grant.claims)) > 1:
            raise ZkLockError(
                f"The lock {self.key!r} was taken to write more than once; let go of it once for each before.",
                lock=self.key,
            )
        try:
            self._claim.reads = True
            self._contender.share(asked=True)
        except BaseException:
            self._contender.share(asked=True)  # struck half way, so once more
            raise

    @property
    def path(self) -> str:
        """The path of the own znode."""
        return self._grant.path

    @property
    def token(self) -> int:
        """
        The fencing token: the transaction id (czxid) that created the own znode, 64 bits.

        It rises with every grant of the key, whichever process gets it, and goes on rising when the parent is deleted
        and made anew, which the node's sequence number does not.
        """
        return self._grant.token

    @property
    def _is_over(self) -> bool:
        # A transaction, or the body of a response, may outlive the block.
        return self._count <= 0 and not self._grant.claims

    @property
    def lost(self) -> bool:
        """Whether the lock is lost. Once True it stays so."""
        return self._grant.why_invalid() is not None

    @property
    def lease_remaining(self) -> float:
        """
        Seconds that the lease has left if nothing extends it; 0.0 when it is over.

        The lease is 0.4 of the negotiated session timeout from the last acknowledged quorum write, and is extended
        every sixth of it.
        """
        until = self._grant.session.lease.until  # first, as in `why_invalid`
        if self._grant.why_invalid() is not None or self._is_over:
            return 0.0
        return max(0.0, until - clock.now())

    def check(self) -> None:
        """
        Raise `LockLost` unless the lease is valid now; asks the clock, not the network, so it is cheap.

        A suspended connection counts as lost, too, unless `abort_on` is "lost" or "never", or `grace` is not over.
        Raises `LockNotHeld` when the lock was released, or in a process forked since.
        """
        if self._grant.inherited:
            raise LockNotHeld("A forked child does not hold its parent's locks; acquire the lock anew.", lock=self.key)
        if self._is_over:
            raise LockNotHeld("The lock was released.", lock=self.key)
        reason = self._grant.why_invalid()
        if reason is None and self._policy.abort_on == "suspended":
            since = self._grant.suspect_since
            if since is not None and time.monotonic() - since >= self._policy.grace:
                reason = self._grant.suspect_reason
        if reason is not None:
            raise self._grant.loss(reason)

    def wait_lost(self, timeout: float | None = None) -> bool:
        """
        Wait until the lock is lost, at most `timeout` seconds (None: for ever); return whether it is.

        Returns False as soon as the lock is released.
        """
        if self._grant.inherited:
            return True  # what runs the protocol runs in the parent
        alarm = Alarm()
        self._grant.session.post(self._grant.attach, alarm)
        try:
            alarm.waiter.wait(timeout)
        finally:
            self._grant.session.post(self._grant.detach, alarm)
        return self.lost

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Have `callback(hold)` run once when the lock is lost, at once if it is lost already.

        It runs on the thread that sends Django's signals, never on one that runs the protocol, so it may take its time.
        """
        self._grant.session.post(self._grant.attach, LostCallback(self, callback))

    # --- release requests ---------------------------------------------------------------------------------------

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """
        The last release request to this hold, with `by` and `reason`, or None.

        It uses no network, so a loop can check it as often as it likes. The holder may ignore the request.
        """
        return self._grant.release_request

    def wait_release_requested(self, timeout: float | None = None) -> ReleaseRequest | None:
        """
        Wait for a release request, at most `timeout` seconds (None: without limit); return it.

        Returns None when the time is over, or when the lock is released or lost without a request.
        """
        if self._grant.inherited:
            return None  # what runs the protocol runs in the parent
        alarm = Alarm(release_requested=True)
        self._grant.session.post(self._grant.attach, alarm)
        try:
            alarm.waiter.wait(timeout)
        finally:
            self._grant.session.post(self._grant.detach, alarm)
        return self.release_requested

    def add_release_request_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Call `callback(hold)` once, at the first release request; at once if there was one already.

        It is called on the thread that sends Django's signals, like that of `add_lost_callback`.
        """
        self._grant.session.post(self._grant.attach, ReleaseRequestCallback(self, callback))

    # --- fencing ------------------------------------------------------------------------------------------------

    def fence(self, obj: FencedModel, *, refresh: bool = False) -> None:
        """
        Raise the token of a model's row to this one, first thing in a transaction; see `FencedModel.fence`.

        Raises `StaleToken` when a newer holder has been at the row. The token decides alone: who has lost the lock,
        but was not replaced yet, may still write. Of readers, and of permits, several are valid at a time: the one
        with an older token is refused once another one has been at the row.
        """
        above.fenced_model(obj).fence(self, refresh=refresh)

    async def afence(self, obj: FencedModel, *, refresh: bool = False) -> None:
        """Do the same as `fence` in the thread of the database; the transaction has to be open there."""
        await above.fenced_model(obj).afence(self, refresh=refresh)

    def fenced(self, name: str, *, using: str = "default") -> FencedBlock:
        """
        Return a block for what has no row of its own: a transaction that begins by fencing `name`; see `FencedBlock`.

        Needs the app `django_zklock.contrib.fences`.
        """
        return above.fenced_block(self, name, using)

    def signed_token(self) -> str:
        """
        Return the token in a form that another service can trust: signed, with the key, the holder and the lease's end.

        It costs no network. Make one for each request, as the lease goes on and what the token says of it does not.
        Raises as `check` does. The receiving side is `django_zklock.fencing.FenceVerifier` and `require_fence`.
        """
        self.check()
        return above.signed_token(self)


def _watch_over(hold: Hold) -> weakref.ref[Hold]:
    """
    Return a reference that lets go of the lock when the last hold of a grant is dropped while it is claimed.

    It is no `__del__`, which would run for every hold: an exception that a signal's handler raises in one, such as a
    soft time limit, is swallowed by Python.
    """
    contender, grant, claim, finalizing = hold._contender, hold._grant, hold._claim, sys.is_finalizing

    def on_dropped(reference: object) -> None:
        if finalizing() or grant.inherited:
            return  # the session has been closed, or is the parent's
        grant.claims.pop(claim, None)
        if grant.claims:
            share_with_readers(contender, grant)
            return
        live_holds.forget_blocks(grant)
        contender.abandon()
        message = f"the hold of {grant.key!r} was dropped without being released"
        warnings.warn(message, ResourceWarning, stacklevel=1)

    return weakref.ref(hold, on_dropped)


def share_with_readers(contender: Contender, grant: Grant) -> None:
    """Let other readers in beside a grant to write, once all that have a claim on it only read."""
    claims = list(grant.claims)  # none, if the last one has just gone
    if grant.kind is Kind.WRITE and claims and all(claim.reads for claim in claims):
        contender.share()


_Slot: TypeAlias = tuple[Owner, str, bool]


def _slot(hold: Hold) -> _Slot:
    return hold._owner, hold.key, hold._reads


class Holds:
    """The live holds of this process, by owner, key, and whether they only read."""

    def __init__(self) -> None:
        self._kept: dict[_Slot, Hold] = {}  # taken by `acquire`: somebody will call `release`
        self._blocks: weakref.WeakValueDictionary[_Slot, Hold] = weakref.WeakValueDictionary()

        self._guards: dict[Owner, list[Guard]] = {}  # of the open blocks, outermost first

    def open_block(self, owner: Owner, guard: Guard) -> None:
        """List the guard of a block that begins."""
        self._guards.setdefault(owner, []).append(guard)

    def close_block(self, owner: Owner, guard: Guard) -> list[Guard]:
        """List it no more; return the guards of the blocks around it."""
        guards = self._guards.get(owner, [])
        if guard in guards:
            guards.remove(guard)
        if not guards:
            self._guards.pop(owner, None)
        return list(guards)

    def forget_blocks(self, grant: Grant) -> None:
        """Have the guards of a grant, whose blocks were torn off, watch no more; from any thread."""
        for owner, guards in list(self._guards.items()):
            for guard in [guard for guard in guards if guard.grant is grant]:
                guard.disarm()
                self.close_block(owner, guard)

    def guards(self, owner: Owner) -> list[Guard]:
        """Return the guards of the open blocks of an owner, outermost first."""
        return list(self._guards.get(owner, []))

    def find(self, owner: Owner, key: str, *, reads: bool | None = None) -> Hold | None:
        """Return what this owner holds of this key; to read, or for more, if that is said."""
        if reads is None:
            return self.find(owner, key, reads=False) or self.find(owner, key, reads=True)
        return self._kept.get((owner, key, reads)) or self._blocks.get((owner, key, reads))

    def all(self) -> list[Hold]:
        """Return every live hold of this process."""
        # Lists made in one step: other threads add and remove meanwhile.
        found = dict.fromkeys(list(self._kept.values()))
        found.update(dict.fromkeys(hold for reference in self._blocks.valuerefs() if (hold := reference()) is not None))
        return list(found)

    def any_of(self, owner: Owner) -> bool:
        """Tell whether this owner holds anything."""
        return any(hold._owner == owner for hold in self.all())

    def add(self, hold: Hold, *, keep: bool) -> None:
        """List a hold; `keep` it alive until it is released."""
        table = self._kept if keep else self._blocks
        table[_slot(hold)] = hold

    def remove(self, hold: Hold) -> None:
        """List it no more."""
        place = _slot(hold)
        for table in (self._kept, self._blocks):
            if table.get(place) is hold:
                del table[place]


live_holds = Holds()


def _forget_in_child() -> None:
    global live_holds
    live_holds = Holds()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
