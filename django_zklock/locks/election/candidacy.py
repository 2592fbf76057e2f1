"""The lock of a candidate for leadership, acquired by attempts that wait without a timeout and can be stopped."""

from __future__ import annotations

import functools
import logging
import os
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from django_zklock import clock, conf
from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.exceptions import LockNotAcquired
from django_zklock.execution.cleanup import CleanupOnError
from django_zklock.execution.waiters import Routine, ThreadWaiter
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.held import HeldLock, held_locks
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver, GrantSession
from django_zklock.locks.spec import LockSpec
from django_zklock.locks.validation import check_no_open_transaction
from django_zklock.zk import process
from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.leader")

FIRST_PAUSE = 0.1  # seconds after the leadership was lost; the next pause is twice as long, and so on
LONGEST_PAUSE = 10.0  # seconds
STEADY = 30.0  # seconds of leadership after which the pauses begin with the first one again
STOPPED = "the leader was stopped by stop()"

_NO_ENTRY = LockOptions()


class Backoff:
    """
    The pauses between two attempts: they grow while the leadership is lost again and again.

    A candidate that loses its znode creates a new one. If it loses that at once, too (an operator deletes it, the host
    is starved), a loop without pauses would overload the servers: Curator's latch created 2.6 million znodes in two
    hours (CURATOR-504, CURATOR-644). Up to half of each pause is random, so that candidates that lost their znodes
    together do not return together.
    """

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, grant: Grant | None) -> float:
        """Return the seconds to wait after this grant has ended: 0 if it was released, or there was none."""
        if grant is None or grant.lost_reason is None:
            return 0.0
        if clock.now() - grant.since >= STEADY:
            self._next = FIRST_PAUSE
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class ElectionAttempt:
    """
    One place in the queue, from the pause before it to the outcome.

    One thread or coroutine at a time waits for the outcome, as often as it likes. Any thread may stop the attempt.
    """

    def __init__(self, acquisition: Acquisition, spec: LockSpec, waiter: Any, *, pause: float) -> None:
        self.session: Session = process.current()
        self.acquisition = acquisition
        acquisition.specs = (spec,)
        self.spec = spec
        self._grant: Grant | None = None
        acquisition.waiter = self._waiter = waiter  # so that it can be stopped before it starts
        self._starts_at = clock.now() + pause
        self._started = False
        self._concluded = False
        self._leaving = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the attempt has been concluded, or belongs to the process that this one was forked from."""
        return self._concluded or self.session.pid != os.getpid()

    @property
    def grant(self) -> Grant | None:
        """The grant, once there is one."""
        outcome = self.acquisition.outcome
        return self._grant or (outcome if isinstance(outcome, Grant) else None)

    @property
    def position(self) -> str:
        """The position in the queue, as a text."""
        contender = self.acquisition.contender
        if not self._started:
            return "not in the queue"
        if contender is None or not contender.placed:
            return f"not in the queue yet: {self.session.explain()}"
        if contender.operator is not None:
            return f"behind {contender.operator}"
        ahead = contender.ahead
        return "in the queue" if ahead is None else f"behind process {ahead.pid} on {ahead.host}"

    def outcome(self, timeout: float | None) -> Routine[Outcome | None]:
        """Return the outcome, or None if there was none within `timeout` seconds (None: no limit)."""
        deadline = None if timeout is None else clock.now() + timeout
        if not self._started:
            pause = self._starts_at - clock.now()
            is_due = timeout is None or pause <= timeout
            early: Outcome | None = yield from self._waiter.outcome(pause if is_due else timeout)
            if early is not None or not is_due:
                return early
            self._started = True
            self.acquisition.start(self.spec, self._waiter, None)
        outcome: Outcome | None = yield from self._waiter.outcome(None if deadline is None else deadline - clock.now())
        return outcome

    def conclude(self, outcome: Outcome | None) -> HeldLock:
        """Return the held lock, owned by the caller, or raise what the outcome means."""
        if isinstance(outcome, Exception):
            raise outcome  # it may have been stopped before it started
        self.acquisition.conclude(self.spec, outcome, by_acquire=False)
        held = self.acquisition.holds[0]
        self._grant, self.acquisition = held.grant, Acquisition()  # the block alone keeps the hold
        self._concluded = True
        if self._finalizer is not None:
            self._finalizer.detach()
        return held

    def abandon(self) -> None:
        """Leave the queue, and release what was granted."""
        self._leaving = True
        if self._finalizer is not None:
            self._finalizer.detach()
        self.acquisition.release()

    def stop(self, grace: float) -> None:
        """Leave the queue, or give up the leadership after `grace` seconds; from any thread or signal handler."""
        self._leaving = True
        self.session.post(self._stop, grace)

    def _stop(self, grace: float) -> None:
        """Stop, on the protocol's thread."""
        if self._grant is None:
            self.acquisition.cancel(_stopped(self.spec.key))  # changes nothing if there is an outcome
        grant = self.grant
        if grant is None or grant.released:
            return
        if grace > 0:
            self.session.loop.call_later(grace, lambda: self._stop(0.0))
        else:
            grant.lose(STOPPED, logging.INFO)

    def abandon_with(self, candidate: object) -> None:
        """Abandon the attempt when `candidate` is deleted before the outcome: then nothing could lead or withdraw."""
        self._finalizer = weakref.finalize(candidate, self._on_deleted)
        self._finalizer.atexit = False  # the session is closed then

    def _on_deleted(self) -> None:
        if self.is_over:
            return
        forgotten = self._started and not self._leaving
        self.abandon()
        if forgotten:
            message = f"the candidate for {self.spec.key!r} was deleted without withdraw()"
            warnings.warn(message, ResourceWarning, stacklevel=1)


class LeaderLock(Lock):
    """
    The lock of one candidate, its current attempt, and its callbacks.

    It does not refer to its `Leader`, so the attempt is abandoned when that object is deleted.
    """

    def __init__(self, name: str, **options: Any) -> None:
        # DEFAULTS is meant for other locks. Acquiring it again would make a candidate wait for itself.
        super().__init__(name, kind="lock", limit=None, atomic=False, reentrant=False, linger=0, **options)
        # These run on the thread that sends Django's signals.
        self.on_elected: list[Callable[[Hold], object]] = []
        self.on_lost: list[Callable[[str], object]] = []
        self.attempt: ElectionAttempt | None = None  # the current or last one; written by the candidate, read by all
        self.stopping = False  # final; written by any thread
        self.pause = 0.0  # seconds, at least, before the next attempt
        self._backoff = Backoff()
        self._held: Callable[[], HeldLock | None] = _nothing

    @property
    def hold(self) -> Hold | None:
        """The hold by which this candidate leads."""
        held = self._held()
        return None if held is None or held.is_released or held.grant.inherited else held

    @property
    def grant(self) -> Grant | None:
        """The grant of the current or last attempt."""
        return None if self.attempt is None else self.attempt.grant

    @property
    def _specs(self) -> tuple[LockSpec, ...]:
        entry = conf.current().locks.get(self.name, _NO_ENTRY)
        if entry.kind in ("read", "write") or isinstance(entry.limit, int) or entry.atomic not in (UNSET, ()):
            raise ValueError(
                f'ZKLOCK["LOCKS"]["{self.name}"] sets kind, limit or atomic. The lock of a leader cannot have them: '
                "there is one leader at a time, and its work is not a transaction."
            )
        return super()._specs

    def begin(self, acquisition: Acquisition, spec: LockSpec, waiter: Any) -> ElectionAttempt:
        """Return a new attempt. It sends nothing before its first wait."""
        if self.attempt is not None and (not self.attempt.is_over or self.hold is not None):
            raise RuntimeError(
                f"The candidate for {self.key!r} leads or waits already. Create one Leader object for each candidate."
            )
        attempt = ElectionAttempt(acquisition, spec, waiter, pause=max(self.pause, self._backoff.after(self.grant)))
        self.attempt = attempt  # before `stopping` is read: `stop` sets that first, and reads this afterwards
        if self.stopping:
            self.attempt = None
            raise _stopped(self.key)
        return attempt

    def abandon(self, attempt: ElectionAttempt) -> None:
        """Abandon an attempt that failed."""
        attempt.abandon()
        self.attempt = None

    def begin_leadership(self, held: HeldLock, reference: Callable[[], HeldLock | None]) -> None:
        """Note that this candidate leads; call `on_elected` now, and `on_lost` when the leadership ends."""
        self._held = reference
        self.pause = 0.0
        grant, session = held.grant, held.grant.session
        logger.info("leads %r", held.key, extra=grant.log_fields())
        for callback in self.on_elected:
            session.dispatch(_call, callback, held)
        session.post(grant.attach, _EndReport(session, self.on_lost))

    def end_leadership(self) -> HeldLock | None:
        """Note that this candidate no longer leads; return the lock, which the caller must release."""
        held, self._held = self._held(), _nothing
        return held

    def stop(self, grace: float) -> None:
        """Begin no further attempt, and stop the current one; see `Leader.stop`."""
        self.stopping = True
        if self.attempt is not None:
            self.attempt.stop(grace)

    def _take(
        self,
        acquisition: Acquisition,
        specs: tuple[LockSpec, ...],
        timeout: float | None,
        waiter: type[Any],
        *,
        by_acquire: bool = False,
    ) -> Routine[None]:
        if held_locks.find(acquisition.owner, specs[0].key) is not None:
            yield from acquisition.acquire(specs, 0, waiter)  # raises, as the lock is not reentrant
        if waiter is ThreadWaiter:
            check_no_open_transaction(specs[0])
        attempt = self.begin(acquisition, specs[0], waiter())
        with CleanupOnError(functools.partial(self.abandon, attempt)):
            held = attempt.conclude((yield from attempt.outcome(None)))
            self.begin_leadership(held, weakref.ref(held))  # weak: the block alone keeps it


class _EndReport(GrantObserver):
    """Calls the callbacks of a candidate at the end of one leadership, once."""

    def __init__(self, session: GrantSession, callbacks: list[Callable[[str], object]]) -> None:
        self._session = session
        self._callbacks = callbacks

    def on_lost(self, reason: str) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._session.dispatch(_call, callback, reason)

    def on_released(self) -> None:
        self.on_lost("")


def _call(callback: Callable[..., object], *args: object) -> None:
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback of a leader failed: %r", callback)


def _stopped(key: str) -> LockNotAcquired:
    return LockNotAcquired("The leader was stopped.", lock=key)


def _nothing() -> None:
    return None
