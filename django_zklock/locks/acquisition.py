"""
One acquisition of one lock: it starts the contender, tells the caller what the outcome means, and can be undone.

The handler of a signal (a soft time limit, Ctrl-C) may raise between any two instructions of the caller. So each
step is noted here before the next one is done, and `undo` may be called at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from django_zklock import clock, signals
from django_zklock.exceptions import LockBusy, LockNotAcquired, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution import abort
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks import maximum_hold, notify, table
from django_zklock.locks.held import HeldLock
from django_zklock.locks.lingering import LocalWaiter
from django_zklock.locks.protocol.contender import Busy, Contender, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.spec import LockSpec
from django_zklock.queue.nodes import Kind
from django_zklock.zk.session import Session

Waiter: TypeAlias = "ThreadWaiter[Outcome] | TaskWaiter[Outcome]"


class Acquisition:
    """One owner's acquisition of one lock, as far as it has come."""

    __slots__ = (
        "_began",
        "_companions",
        "_has_outcome",
        "_left",
        "_owner",
        "_session",
        "acquired",
        "contender",
        "count",
        "grant",
        "held",
        "reply_timeout",
        "spec",
        "timeout",
        "waiter",
    )

    def __init__(self, spec: LockSpec, owner: Owner) -> None:
        self.spec = spec
        self._owner = owner
        self.held: HeldLock | None = None
        self.count = self.acquired = 0  # of the held lock, before this
        self.contender: Contender | LocalWaiter | None = None
        self.grant: Grant | None = None  # written by the protocol's thread, before the waiter is woken
        self._has_outcome = False
        self._left = False
        self._companions: tuple[_NeededGrant, ...] = ()  # protocol's thread only

    # --- in the caller --------------------------------------------------------------------------------------------

    def reenter(self, *, keep: bool) -> bool:
        """Take again what the owner holds already; return whether it does."""
        spec, owner = self.spec, self._owner
        held = table.held_locks.find(owner, spec.key)
        if held is None:
            return False
        if spec.kind is Kind.READ:
            held = table.held_locks.find(owner, spec.key, reads=True) or held
        part = held.part_for(spec.kind)
        if not spec.reentrant and (part.count or part.observer):
            raise LockBusy(
                f"The lock {spec.key!r} is not reentrant and its owner has it already; waiting would never end.",
                lock=spec.key,
            )
        self.count, self.acquired = part.count, part.acquired
        self.held = part
        part.count = self.count + 1
        part.acquired = self.acquired + keep
        if keep or part is not held:
            table.held_locks.add(part, keep=keep)  # it may be released after the block that took it first
        return True

    def start(
        self,
        session: Session,
        waiter: Waiter,
        timeout: float | None,
        reply_timeout: float,
        needed: Iterable[Grant] = (),
        *,
        began: float | None = None,
    ) -> None:
        """
        Start the contender; `waiter` gets its outcome.

        `timeout` is in seconds. `reply_timeout` is how long ZooKeeper's first reply may take beyond it. The acquisition
        is called off if one of the `needed` grants is lost, because it would be of no use without them. `began` is when
        the call began, on `clock.now()`, if that was before.
        """
        self.waiter = waiter
        self.timeout = timeout
        self.reply_timeout = reply_timeout
        self._session = session
        now = clock.now()
        self._began = now if began is None else began
        waits = timeout is None or timeout > 0
        deadline = None if timeout is None else now + timeout
        caller = self.spec.caller(self._owner)
        contender: Contender | LocalWaiter
        if self.spec.linger:
            contender = LocalWaiter(session, self.spec, caller, self._on_outcome, waits=waits)
        else:
            contender = Contender(session, self.spec, caller, self._on_outcome, waits=waits, deadline=deadline)
        self.contender = contender
        if waiter.on_queued is not None or notify.has_receivers(signals.lock_waiting):
            contender.on_queued = self._on_queued
        contender.start()
        companions = [_NeededGrant(self, grant) for grant in needed]
        if companions:
            session.post(self._accompany, companions)

    @property
    def extra_wait(self) -> float:
        """Seconds to wait after the timeout: for ZooKeeper's first answer, never for the lock."""
        return 0.0 if self.contender is None or self.contender.placed else self.reply_timeout

    @property
    def waited(self) -> float:
        """Seconds since the acquisition started."""
        return clock.now() - self._began

    def conclude(self, outcome: Outcome | None, *, keep: bool) -> None:
        """List the lock as held by the owner, or raise what the outcome means."""
        if not isinstance(outcome, Grant):
            raise self.failure(outcome)
        contender = self.contender
        assert contender is not None
        outcome.on_release_request = notify.send_release_requested
        self.held = held = HeldLock(contender, outcome, self._owner, self.spec.policy)
        held.acquired = int(keep)
        table.held_locks.add(held, keep=keep)
        if self._owner.kind != "message":  # else this is done where the lock is taken over for the work
            if self.spec.is_bounded:
                maximum_hold.apply_bounds(outcome, contender, self.spec)
            notify.send(held, signals.lock_acquired, waited=outcome.since - self._began)
        if keep and notify.has_receivers(signals.lock_lost):
            outcome.observe(notify.LossReport(held))

    def failure(self, outcome: Outcome | None) -> Exception:
        """Return the error that an outcome other than a grant means. None: there was no outcome in time."""
        key = self.spec.key
        if isinstance(outcome, Exception):
            return outcome
        if isinstance(outcome, Busy) and outcome.waiters is not None:
            return LockBusy(
                f"{outcome.waiters} callers wait for the lock {key!r} already; max_waiters is {self.spec.max_waiters}.",
                lock=key,
            )
        if isinstance(outcome, Busy):
            return LockBusy(self._why_busy(), lock=key)
        ahead = self._ahead()  # it is in no queue any more when it has given up
        self.abandon()
        if self.contender is None or not self.contender.placed:
            return ZooKeeperUnavailable(self._session.explain(self.waited), lock=key)
        return LockTimeout(f"The lock {key!r} was not free within {self.waited:.1f} s{ahead}.", lock=key)

    def give_up(self, error: BaseException) -> None:
        """Leave the queue because of an error, and report it."""
        self.abandon()  # first, because another exception may strike the rest
        if self.contender is None:
            return
        ahead = self.contender.ahead
        template, kind = self.spec.template, self.spec.kind.word
        if isinstance(error, LockNotAcquired):
            notify.send_from(
                self._session,
                signals.lock_contended,
                lock=self.spec.key,
                waited=self.waited if self.timeout else 0.0,
                template=template,
                kind=kind,
            )
        notify.send_from(
            self._session,
            signals.lock_failed,
            lock=self.spec.key,
            error=type(error),  # not the error itself, which refers to the frames of the caller
            reason=str(error),
            waited=self.waited,
            template=template,
            kind=kind,
            about=self.contender.caller.about,
            ahead_about={} if ahead is None else ahead.about,
        )

    @abort.shielded
    def undo(self) -> None:
        """Give back what was taken; doing it again changes nothing."""
        if self.held is not None:
            self.held.acquired = self.acquired
            self.held.release_to(self.count)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Leave the queue; doing it again changes nothing."""
        if self.contender is not None and not self._left:
            self.contender.abandon()
            self._session.post(self._detach_companions)
            self._left = True

    def _why_busy(self) -> str:
        if self.spec.kind is Kind.PERMIT and (self.contender is None or self.contender.operator is None):
            return f"No permit of {self.spec.key!r} is free{self._ahead()}."
        return f"The lock {self.spec.key!r} is held by {self._holder}."

    @property
    def _holder(self) -> str:
        operator = self.contender.operator if self.contender is not None else None
        return str(operator or self._one_ahead or "another owner")

    def _ahead(self) -> str:
        if self.contender is not None and self.contender.in_local_queue:
            return "; many other callers of this process wait for it, too"
        if self.contender is not None and self.contender.operator is not None:
            return f"; ahead is the hold of {self._holder}"
        return f"; ahead is {self._one_ahead}" if self._one_ahead else ""

    @property
    def _one_ahead(self) -> str:
        """A description of the contender just ahead; empty if that is not known."""
        ahead = self.contender.ahead if self.contender is not None else None
        if self.contender is None or ahead is None:
            return ""
        caller, kind = self.contender.caller, self._owner.kind
        # A message of Celery waits for another process, and a lease of the coordinator for another program.
        is_for_others = kind == "message" or "lease" in caller.about
        if not is_for_others and (not ahead.guid or ahead.guid in self._session.attached(Registry).guids):
            where = f"thread {ahead.thread}" if ahead.thread != caller.thread or kind == "thread" else f"another {kind}"
            return f"{ahead.what!r} in {where} of this process"
        return f"{ahead.what!r} on {ahead.host}, process {ahead.pid}"

    def _on_outcome(self, outcome: Outcome) -> None:
        """Wake the caller; on the protocol's thread, or where a lock that lingers is passed on, perhaps again."""
        if self._has_outcome:
            return  # called off, and on its way out
        if isinstance(outcome, Grant):
            self.grant = outcome
        if not self.waiter.set(outcome):
            self._session.post(self.abandon)
        self._has_outcome = True
        if self._companions:
            self._session.post(self._detach_companions)

    # --- on the protocol's thread ---------------------------------------------------------------------------------

    def call_off(self, error: ZkLockError) -> None:
        """Leave, and have the caller raise `error`, unless there is an outcome already."""
        if not self._has_outcome:
            self.abandon()
            self._on_outcome(error)

    def _accompany(self, companions: list[_NeededGrant]) -> None:
        for companion in companions:
            if not self._has_outcome:
                self._companions = (*self._companions, companion)
                companion.grant.attach(companion)

    def _detach_companions(self) -> None:
        companions, self._companions = self._companions, ()
        for companion in companions:
            companion.grant.detach(companion)

    def _on_queued(self) -> None:
        contender = self.contender
        if self.waiter.on_queued is not None:
            self.waiter.on_queued()
        if contender is not None and notify.has_receivers(signals.lock_waiting):
            notify.send_from(
                self._session,
                signals.lock_waiting,
                lock=self.spec.key,
                ahead=self._one_ahead,
                about=contender.caller.about,
            )


class _NeededGrant(GrantObserver):
    """Calls an acquisition off when a lock is lost that the caller needs together with it."""

    def __init__(self, acquisition: Acquisition, grant: Grant) -> None:
        self.grant = grant
        self._acquisition = acquisition

    def on_lost(self, reason: str) -> None:
        self._acquisition.call_off(self.grant.loss(reason))
