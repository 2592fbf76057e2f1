"""
The locks that this process holds: how often each is used, what keeps it, and how it is released.

The handler of a signal (a soft time limit, Ctrl-C) may raise between any two instructions of the owner. So a release is
a few single steps, each of which is idempotent, and a hold that is dropped gives its lock back.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Container, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django_zklock.core import clock, fork, hooks, log
from django_zklock.core.errors import LockNotHeld, LockUpgradeRefused
from django_zklock.core.execution import abort, work
from django_zklock.core.execution.owner import Owner
from django_zklock.core.execution.waiters import Routine
from django_zklock.core.locks.bounds import release_if_overdue
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol.errors import LockBusy
from django_zklock.core.protocol.grant import Grant, GrantedContender, nobody
from django_zklock.core.queue.nodes import Kind

if TYPE_CHECKING:
    from django_zklock.core.locks.block import Guard, Receipt

RELEASE_TIMEOUT = 0.7  # seconds that a release waits for ZooKeeper's confirmation; it goes on in the background


@abort.shielded
def released(holds: Iterable[HeldLock], new_waiter: Callable[[], Any], *, confirmed: bool = False) -> Routine[None]:
    """
    Wait until the releases of these holds are on their way; see `Contender.when_released`.

    That takes the time to wake the protocol's thread, and no round trip. If `confirmed`, or if the call that acquired
    the lock had a timeout of 0, wait for ZooKeeper's confirmation, at most `RELEASE_TIMEOUT` seconds in all. The same
    holds for several releases that this process sends: if it were killed now, the server could not send the reply to
    the first, and would perhaps not read the last.
    """
    if log.on_protocol_thread():
        return  # the garbage collector has closed a generator there
    waiters = []
    ended = [hold for hold in holds if hold.grant.held() is None and not hold.grant.inherited]  # others stay held
    for hold in ended:
        waiters.append(new_waiter())
        contender = hold.contender
        sure = confirmed or not contender.waits or (len(ended) > 1 and contender.sends_release)
        contender.when_released(waiters[-1].set, confirmed=sure)
    deadline = clock.now() + RELEASE_TIMEOUT
    for waiter in waiters:
        yield from waiter.outcome(deadline - clock.now())


@dataclass(slots=True, eq=False)
class Use:
    """One acquisition that uses a held lock: a block, or a call of `acquire`."""

    lock: object = None  # the lock object that has acquired it
    kept: bool = False  # by `acquire`: no block ends it
    until_commit: bool = False  # by `release_on`, so no other thread may release it


class Uses(tuple[Use, ...]):
    """
    The acquisitions that use a held lock at one time, in their order.

    It never changes: what comes after it is put into `after`, by one `setdefault`. So if one thread releases a hold
    while its owner acquires the lock again, one of them is first, and the other one sees that and looks again.
    """

    def __init__(self, uses: Iterable[Use] = ()) -> None:
        self.after: dict[None, Uses] = {}


RELEASED: Final = Uses()
"""The uses of a lock that is released, or is about to be: nothing comes after them."""


class HeldLock:
    """
    A lock that one owner holds. Each of its acquisitions uses it; the lock is released with the last one.

    A writer may also read. The write lock is released with the last of both, in any order: so no writer comes in
    between.
    """

    def __init__(
        self,
        contender: GrantedContender,
        grant: Grant,
        owner: Owner,
        spec: LockSpec,
        uses: Iterable[Use] = (),
    ) -> None:
        self.contender = contender
        self.grant = grant
        self.key = grant.key
        self.owner = owner
        self.spec = spec  # of its first acquisition
        self.policy = spec.policy  # the strictest of all its acquisitions
        self.work = work.current()  # in which it was acquired
        self._uses = Uses(uses)  # or what they were some time ago
        self.observer: object = None  # of the open transactions that keep it; set by `Scope.keep`
        self.inside_reported = False  # whether the log says that work of its own block wants it
        self._reading: tuple[Use, ...] = ()  # the uses of a writer that only read
        grant.held = weakref.ref(self, functools.partial(_on_dropped, contender, grant))

    @property
    def uses(self) -> Uses:
        """The acquisitions that use it now. Only its owner adds one; any thread may end one."""
        uses = self._uses
        while uses.after:
            uses = uses.after[None]
        return uses

    @abort.shielded
    def _swap(self, added: tuple[Use, ...], ended: Container[Use]) -> Uses:
        """Add and end uses; look again if another thread was first. Return what the uses are then."""
        uses = self.uses
        while uses is not RELEASED:
            remaining = [use for use in uses + added if use not in ended]
            changed = Uses(remaining) if remaining or self.observer is not None else RELEASED
            self._uses = following = uses.after.setdefault(None, changed)
            if following is changed:
                return changed
            uses = self.uses
        return RELEASED

    def add_use(self, use: Use, spec: LockSpec) -> bool:
        """Add a use, and keep the stricter policy. Return False if another thread has released the lock before."""
        if spec.policy.is_stricter_than(self.policy):
            self.policy = spec.policy
        if spec.kind is Kind.READ:
            self._reading = (*self._reading, use)
        return use in self._swap((use,), ended=())

    def kind_of(self, use: Use | None) -> Kind:
        """Return what this use has: a reader inside a writer only reads."""
        return Kind.READ if use in self._reading else self.grant.kind

    def uses_of(self, kind: Kind) -> list[Use]:
        """Return the uses that only read, if `kind` is that of a reader; else the others."""
        return [use for use in self.uses if (self.kind_of(use) is Kind.READ) is (kind is Kind.READ)]

    @abort.shielded
    def _end_uses(self, ended: Container[Use]) -> None:
        """
        End these uses. Without any, the lock is released, unless open transactions keep it.

        The call is idempotent. Do not call it in a forked child.
        """
        if self._swap((), ended) is RELEASED:
            self._drop()
        else:
            release_if_overdue(self.grant, self.contender)

    @property
    def is_released(self) -> bool:
        """Whether it was released. A transaction may keep it after the end of its block."""
        return not self.uses and self.grant.held() is None

    @property
    def is_dropped(self) -> bool:
        """Whether it has been released, or is about to be; or was given up after a loss."""
        return self.grant.held() is None or self.uses is RELEASED

    @property
    def lost(self) -> bool:
        """Whether it is lost. Once True it stays so."""
        return self.grant.why_invalid() is not None

    def check(self) -> None:
        """
        Raise `LockLost` unless the lease is valid now, and the policy permits what is known of the connection.

        Raises `LockNotHeld` when it was released, or in a forked child.
        """
        grant = self.grant
        if grant.inherited or self.is_released:
            raise self.not_held_error()
        grant.check()
        if self.policy.trusts_for(grant) <= 0:
            raise grant.loss(grant.suspect_reason)

    def not_held_error(self) -> LockNotHeld:
        """Return the error for a hold that was released, or is used in a forked child."""
        text = "The lock was released."
        if self.grant.inherited:
            text = "A forked child does not hold its parent's locks. Acquire the lock in the child."
        return LockNotHeld(text, lock=self.key)

    @property
    def blocks(self) -> tuple[Use, ...]:
        """The blocks that use it, the innermost last."""
        return tuple(use for use in self.uses if not use.kept)

    @property
    def is_unwatched(self) -> bool:
        """Whether no block and no transaction would notice that the lock is lost."""
        return self.observer is None and not self.blocks

    def needs_owner(self, waiting: Use) -> bool:
        """Return whether only its owner can release it: it is the lock of a block, a transaction, or this use."""
        return not self.is_unwatched or any(use is waiting or use.until_commit for use in self.uses)

    # --- acquiring it again ---------------------------------------------------------------------------------------

    def check_again(self, spec: LockSpec) -> None:
        """
        Raise if its owner may not acquire it again with this spec.

        Raises `LockUpgradeRefused` if the owner would wait for its own release, `LockLost` if the lock is lost, and
        `LockBusy`.
        """
        self._refuse_exclusive(spec.kind)
        reason = self.grant.why_invalid()
        if reason is not None:
            if any(use.kept for use in self.uses):
                reason += "; call release() before you acquire it again"
            raise self.grant.loss(reason)
        if not spec.reentrant and (self.uses or self.observer):
            text = f"The lock {self.key!r} is not reentrant and its owner has it already; release it first."
            raise LockBusy(text, lock=self.key)

    def _refuse_exclusive(self, kind: Kind) -> None:
        """Raise `LockUpgradeRefused` if the owner shares the lock, or only reads, and asks for more now."""
        uses = self.uses
        only_reads = uses and all(self.kind_of(use) is Kind.READ for use in uses)
        shared = Kind.READ if only_reads else self.grant.kind
        if shared in (Kind.LOCK, Kind.WRITE, kind):
            return
        held, instead = "a permit of", "Release the permit first."
        if shared is Kind.READ:
            held = "a read lock on"
            instead = "Release it first, or write from the start: zk_read() inside zk_write() works."
        raise LockUpgradeRefused(
            f"The caller holds {held} {self.key!r}, which it shares with others, and would wait for its own release. "
            f"{instead}",
            lock=self.key,
        )

    # --- release --------------------------------------------------------------------------------------------------

    def last_use(self, kind: Kind) -> Use | None:
        """Return the use that `release` of a lock object ends: the last by `acquire`, else the innermost block's."""
        uses = self.uses_of(kind)
        kept = [use for use in uses if use.kept]
        return next(reversed(kept or uses), None)

    @abort.shielded
    def release_use(self, use: Use, release_on: str | None) -> None:
        """
        End one use. Release the lock with the last one, unless open transactions keep it.

        Waits for nothing (see `released`), and is idempotent.
        """
        if self.grant.inherited:  # the lock is the parent's
            return
        # Without `release_on`, the lock was acquired before the transaction began. So only its last release matters.
        is_last = {use}.issuperset(self.uses)  # no other use remains
        if (release_on == "commit" or (release_on is None and is_last)) and hooks.scope.is_open():
            hooks.scope.keep(self)  # otherwise their work would be committed after the release
        self._end_uses((use,))

    @abort.shielded
    def release_uses(self, *, except_for: Container[Use] = ()) -> None:
        """End all uses but some, as `release_use` does, even inside open transactions."""
        if not self.grant.inherited:
            self._end_uses([use for use in self.uses if use not in except_for])

    @abort.shielded
    def _drop(self) -> None:
        """Release the lock. The call is idempotent."""
        held_locks.forget(self)
        self.contender.abandon()
        self.grant.held = nobody
        if self.grant.first_to_report_end():
            hooks.events.ended(self)

    @abort.shielded
    def drop_left(self, lock: object) -> bool:
        """
        Drop it if it is lost, and all that uses it is `acquire` of other lock objects.

        Return whether it was. Its uses remain, so that a late release of its hold reports the loss.
        """
        if self.observer or not all(use.kept and use.lock is not lock for use in self.uses):
            return False
        if self.grant.why_invalid() is None:
            return False
        self._drop()
        return True

    # --- its loss -------------------------------------------------------------------------------------------------

    def report_loss(self, reason: str, receipt: Receipt | None = None) -> None:
        """Report that it was lost, once for each grant; from any thread. `receipt`: that of the abort, if any."""
        self.grant.session.post(self._report_loss_once, reason, receipt)

    def _report_loss_once(self, reason: str, receipt: Receipt | None) -> None:
        if not self.grant.loss_reported:
            self.grant.loss_reported = True
            hooks.events.lost(self, reason, receipt)

    # --- transactions that keep it --------------------------------------------------------------------------------

    def check_before_commit(self) -> None:
        """Raise `LockLost` unless the lease is valid now, or `abort_on` is "never"."""
        if self.policy.stops_at(self.grant):
            self.check()

    @abort.shielded
    def transactions_ended(self, observer: object) -> list[HeldLock]:
        """Release a lock that only these transactions have kept. Return it then, for `released`, in a list."""
        if self.observer is observer:
            self.observer = None
        if self.grant.inherited:
            return []
        self._end_uses(())  # not those that its owner adds meanwhile
        return [self] if self.uses is RELEASED else []


def _on_dropped(
    contender: GrantedContender,
    grant: Grant,
    reference: weakref.ref[HeldLock],
    is_finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """
    Release a lock that is dropped without being released.

    This is no `__del__`, which would run for every lock: Python swallows an exception that a signal's handler raises in
    one, such as a soft time limit.
    """
    if is_finalizing() or grant.inherited:
        return  # the session has been closed, or is the parent's
    held_locks.drop_blocks(grant)
    contender.abandon()
    message = f"the hold of {grant.key!r} was dropped without being released"
    log.defer(warnings.warn, message, ResourceWarning)  # the garbage collector runs on any thread


# --- the table ----------------------------------------------------------------------------------------------------


class HeldLocks:
    """
    The held locks of this process, by owner and key.

    This table makes locks reentrant. Only an owner itself changes its entries. For locks that were acquired by `with`
    it has weak references only, because their block keeps them. A held lock keeps its owner, so the id of that is not
    reused. The table does not keep owners, as an owner may keep its held lock: neither would ever be destroyed. What
    was dropped counts as absent, until Python destroys it or its owner acquires the key again: another thread could not
    remove it without a race against that.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all, as a forked child does."""
        self._weak: weakref.WeakValueDictionary[tuple[int, str], HeldLock] = weakref.WeakValueDictionary()
        self._kept: dict[HeldLock, None] = {}  # acquired by `acquire`: `release` will be called
        self._guards: dict[object, list[Guard]] = {}  # of open blocks, outermost first; by task, greenlet or thread

    def find(self, owner: Owner, key: str) -> HeldLock | None:
        """Return the owner's held lock of this key, or None."""
        held = self._weak.get((id(owner.subject), key)) if self._weak else None
        if held is None or held.is_dropped:
            return None
        if held.grant.inherited:
            fork.notice()
            return None
        return held

    def all(self) -> list[HeldLock]:
        """Return every held lock of this process."""
        # A list made in one step: other threads add and remove meanwhile.
        every = [reference() for reference in self._weak.valuerefs()]
        return [held for held in every if held is not None and not held.is_dropped]

    def may_have(self, owner: Owner) -> bool:
        """Return whether the owner may hold a lock. It is cheap."""
        if self._kept or owner.subject in self._guards:
            return True
        return bool(self._weak) and owner.kind in ("thread", "greenlet") and bool(hooks.scope.is_open())

    def grants_of(self, owner: Owner, waiting: Use) -> dict[Grant, bool]:
        """
        Return the grants of the locks that the owner holds, and whether another thread may end each; from any thread.

        `waiting` is the use of the acquisition that waits: nobody else knows what it has so far.
        """
        grants: dict[Grant, bool] = {}
        for held in self.all():
            if held.owner == owner and not held.lost:
                grants[held.grant] = not held.needs_owner(waiting)
        return grants

    def kept(self) -> list[HeldLock]:
        """Return those that were acquired by `acquire`."""
        return list(self._kept)

    def of_ended_owner(self, lock: object, key: str) -> tuple[HeldLock, Use]:
        """Return what this lock object acquired for an owner that has ended, and its use. Raises `LockNotHeld`."""
        ended = [held for held in self.kept() if held.key == key and held.owner.is_over]
        for held in ended:
            for use in reversed(held.uses):
                if use.kept and use.lock is lock:
                    return held, use
        raise not_held(key, _OVER if ended else "")

    def add(self, held: HeldLock, *, keep: bool) -> None:
        """Add a held lock. With `keep`, the table has a strong reference to it until it is released."""
        self._weak[id(held.owner.subject), held.key] = held
        if keep:
            self._kept[held] = None

    def forget(self, held: HeldLock) -> None:
        """Keep no reference to a lock that is being dropped; from any thread. The call is idempotent."""
        self._kept.pop(held, None)

    # --- open blocks ----------------------------------------------------------------------------------------------

    def open_block(self, owner: Owner, guard: Guard) -> None:
        """Add the guard of a block that begins."""
        self._guards.setdefault(owner.subject, []).append(guard)

    def close_block(self, owner: Owner, guard: Guard) -> list[Guard]:
        """Remove the guard of a block; return the guards of the owner's other open blocks, outermost first."""
        guards = self._guards.get(owner.subject, [])
        if guard in guards:
            guards.remove(guard)
        if not guards:
            self._guards.pop(owner.subject, None)
        return list(guards)

    def guards(self, owner: Owner) -> list[Guard]:
        """Return the guards of the open blocks of an owner, outermost first."""
        return list(self._guards.get(owner.subject, []))

    def drop_blocks(self, grant: Grant) -> None:
        """Disarm the guards of a grant whose blocks were destroyed by an exception; from any thread."""
        for subject, guards in list(self._guards.items()):
            for guard in [guard for guard in guards if guard.grant is grant]:
                guard.disarm()
                guards.remove(guard)
            if not guards:
                self._guards.pop(subject, None)


held_locks: Final = HeldLocks()

Enclosing: TypeAlias = "tuple[weakref.ref[HeldLock], Enclosing | None]"  # the innermost hold, and the others
enclosing_holds: ContextVar[Enclosing | None] = ContextVar("zklock_holds", default=None)
"""The holds of the open blocks. Coroutines and threads that work for a block inherit its context."""


def inherited_hold(key: str | None) -> HeldLock | None:
    """Return what a block holds for which the caller works, as a child task does: the innermost one, or of this key."""
    inherited = enclosing_holds.get()
    while inherited is not None:
        reference, inherited = inherited
        held = reference()
        if held is not None and held.uses and not held.grant.inherited and key in (None, held.key):
            return held
    return None


fork.in_child(held_locks.clear)


_OVER: Final = (
    " Its owner, a thread or a task, has ended. Only its hold, or the lock object that acquired it, can release it."
)


def not_held(key: str, hint: str = "") -> LockNotHeld:
    """Return the error for a caller that does not hold the lock of this key."""
    return LockNotHeld(
        f"The lock {key!r} is not held by this owner (asyncio task, greenlet or thread) of this process.{hint}",
        lock=key,
    )
