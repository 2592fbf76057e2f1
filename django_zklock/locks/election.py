"""Election of a leader among processes: `with leader:`, `leader.run(function)`, and what happens after a loss."""

from __future__ import annotations

import functools
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar, Unpack

from django_zklock import conf
from django_zklock.conf.arguments import LeaderArguments
from django_zklock.conf.options import NOT_GIVEN, LockOptions
from django_zklock.core import clock
from django_zklock.core.execution.waiters import Awaited, Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.exceptions import LockLost, LockNotAcquired, StaleToken, ZooKeeperUnavailable
from django_zklock.locks.arguments import check_no_running_loop, check_options, check_seconds
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock

logger = Logger("django_zklock.leader", always=True)

FIRST_PAUSE = 0.1  # seconds after the leadership was lost; the next pause is twice as long, and so on
LONGEST_PAUSE = 10.0  # seconds
STEADY = 30.0  # seconds of leadership after which the pauses begin with the first one again
LOG_AGAIN = 60.0  # seconds between two log records that ZooKeeper is still away
STOPPED = "the leader was stopped by stop()"

_OF_LEADERS: Final[LockOptions] = {
    "kind": "lock",
    "limit": None,
    "atomic": (),
    "reentrant": False,
    "linger": 0,
    "timeout": None,
}
"""The options that each lock of a leader has. One object is one candidate, so it is not reentrant."""

_RETRIED = (LockLost, StaleToken, LockNotAcquired, ZooKeeperUnavailable)
_Value = TypeVar("_Value")


class Backoff:
    """
    The pauses after losses of the leadership. They grow if the losses repeat.

    A candidate that loses its znode creates a new one. It may lose that at once, too: an operator deletes it, or the
    host has no processor time. A loop without pauses would overload the servers: Curator's latch created 2.6 million
    znodes in two hours (CURATOR-504, CURATOR-644). Up to half of each pause is random, so that candidates that lost
    their znodes together do not return together.
    """

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, leadership: float) -> float:
        """Return the seconds to wait after the loss of a leadership that lasted so many seconds."""
        if leadership >= STEADY:
            self._next = FIRST_PAUSE
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Leader(Lock[Literal["raise"]]):
    """
    One candidate for the leadership of `name`. One candidate at a time leads, among all processes on all machines.

    The leadership is a lock, and candidates wait for it without a timeout. The first in its queue leads. The others
    follow in the order in which they came, and keep their places when the connection is lost for a while. When a leader
    loses the leadership, its work is aborted as in any `with` block, and it queues again, at the end. Each leader has a
    higher fencing token than all leaders before it.

    `name`, `fields` and the options are those of `Lock`. One object is one candidate: it leads, or waits to, in one
    thread or task at a time. Any thread may use `stop`, `is_leader` and the methods that only read.
    """

    _lasts = "leader"

    def __init__(self, name: str, **options: Unpack[LeaderArguments]) -> None:
        check_options("zk_leader", options, LeaderArguments.__annotations__)
        own: Any = {**_OF_LEADERS, **options}  # DEFAULTS is meant for other locks, so these options win
        super().__init__(name, **own)
        self.stopping = False
        """Whether `stop` was called. Any thread sets it to True, for good."""
        self._waiter: Any = None  # of the present wait, or the last one
        self._grant: Grant | None = None  # of the current or last leadership; only the block refers to the hold
        self._grace = 0.0  # seconds; of `stop`
        self._backoff = Backoff()
        self._logged_at: float | None = None

    @property
    def specs(self) -> tuple[LockSpec, ...]:
        """The spec, as a tuple; see `LockBase`. Raises `ValueError` if the entry has an option that leaders lack."""
        check_entry(self.name)
        return super().specs

    @property
    def is_leader(self) -> bool:
        """
        Whether this candidate leads, by the clock of its lease.

        Needs no network. A process that was paused for longer than its lease sees at once that it no longer leads.
        """
        grant = self._grant
        return grant is not None and not grant.released and grant.why_invalid() is None

    # --- leading ------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[Hold], _Value]) -> _Value | None:
        """
        Call `function(hold)` while this candidate leads, and again when it leads again; return what it returns.

        When the leadership is lost, the function is aborted as `abort_on` says, the loss is logged, and the candidate
        queues again after a pause. The pause grows if this happens often. A function that returns, or raises `LockLost`
        or `StaleToken`, after the loss is called again, too. Any other exception of the function ends `run`.
        While ZooKeeper is away, `run` keeps trying, and logs that at most once a minute. Returns None after `stop`.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is a coroutine function; await leader.arun() it.")
        check_no_running_loop("run", "await leader.arun()")
        while not self.stopping:
            hold: Hold | None = None
            try:
                with self as hold:
                    value = function(hold)
                    if hold.state != "lost":
                        return value
            except _RETRIED as error:
                if not self._may_continue(error, elected=hold is not None):
                    raise
            run(self._pause(ThreadWaiter(), elected=hold is not None))
        return None

    async def arun(self, function: Callable[[Hold], Awaitable[_Value]]) -> _Value | None:
        """Await `function(hold)` as `run` calls it; waiting for the leadership needs no thread."""
        while not self.stopping:
            hold: Hold | None = None
            try:
                async with self as hold:
                    value = await function(hold)
                    if hold.state != "lost":
                        return value
            except _RETRIED as error:
                if not self._may_continue(error, elected=hold is not None):
                    raise
            await Awaited(self._pause(TaskWaiter(), elected=hold is not None))
        return None

    def stop(self, *, grace: float = 0.0) -> None:
        """
        End the candidacy for good: leave the queue, or give up the leadership and abort the work; return at once.

        Any thread or signal handler can call it, any number of times. The work can look at `stopping`, and has `grace`
        seconds to end by itself. Then it is aborted as if the leadership were lost. With `abort_on="never"`, the work
        has to check its hold instead. The next candidate leads only when the work has ended. `run` returns None, and a
        `with` statement that waits raises `LockNotAcquired`.
        """
        check_seconds("grace", grace)
        self._grace = grace
        self.stopping = True
        self._wake()
        self._end_leadership()

    # --- the leadership -------------------------------------------------------------------------------------------

    def _on_wait(self, waiter: Any) -> None:
        self._waiter = waiter  # before `stopping` is read: `stop` writes that first, and reads this afterwards
        if self.stopping:
            self._wake()

    def _wake(self) -> None:
        """End the present wait by `LockNotAcquired`."""
        if self._waiter is not None:
            self._waiter.set(LockNotAcquired("The leader was stopped.", lock=self.key))

    def _pause(self, waiter: ThreadWaiter[Any] | TaskWaiter[Any], *, elected: bool) -> Routine[None]:
        """Wait before the next attempt, or until `stop` is called."""
        self._on_wait(waiter)
        yield from waiter.outcome(self._seconds(elected=elected))

    def _view(self, acquisition: Acquisition) -> Hold:
        (held,) = acquisition.holds
        self._grant = grant = held.grant  # before `stopping` is read, as `stop` writes that first
        logger.info("leads %r", grant.key, extra=grant.log_fields())
        if self.stopping:
            self._end_leadership()
        return super()._view(acquisition)

    def _end_leadership(self) -> None:
        """End the leadership when the grace is over. The work is aborted then."""
        grant = self._grant
        if grant is not None:
            lose = functools.partial(grant.lose, STOPPED, logging.INFO)  # does nothing if the work has ended by then
            grant.session.post(grant.session.loop.call_later, self._grace, lose)

    def _may_continue(self, error: Exception, *, elected: bool) -> bool:
        """Return whether to try again after this error: the leadership was lost, or ZooKeeper is away."""
        if isinstance(error, ZooKeeperUnavailable):
            if not elected:
                self._log_outage(error)
            return not elected
        if isinstance(error, LockNotAcquired):
            return not elected and self.stopping
        if isinstance(error, LockLost):
            return error.lock == self.key
        grant = self._grant  # the row was written by a newer leader
        return grant is not None and grant.why_invalid() is not None

    def _seconds(self, *, elected: bool) -> float:
        """Return the seconds until the next attempt. No error may lead to a loop without a pause."""
        grant = self._grant
        if not elected or grant is None:
            return FIRST_PAUSE
        self._logged_at = None
        if not self.stopping:
            reason = grant.why_invalid() or "it could not be trusted any more"
            logger.warning("no longer leads %r, and queues again: %s", grant.key, reason, extra=grant.log_fields())
        return self._backoff.after(clock.now() - grant.since)

    def _log_outage(self, error: Exception) -> None:
        now = clock.now()
        if self._logged_at is None or now - self._logged_at >= LOG_AGAIN:
            self._logged_at = now
            logger.warning("cannot join the election for %r, retrying: %s", self.key, error, extra={"lock": self.key})


def zk_leader(name: str, **options: Unpack[LeaderArguments]) -> Leader:
    """Return a candidate for the leadership of `name`, as in `zk_leader("reports").run(work)`; see `Leader`."""
    return Leader(name, **options)


def check_entry(name: str) -> None:
    """Raise `ValueError` if the entry of `name` in `LOCKS` has an option that the lock of a leader cannot have."""
    entry = conf.current().locks.get(name, NOT_GIVEN)
    options = [option for option, value in _OF_LEADERS.items() if entry.get(option, value) != value]
    if options:
        raise ValueError(
            f'ZKLOCK["LOCKS"]["{name}"] sets {" and ".join(options)}. Remove that, or give the leader another '
            "entry: there is one leader at a time, candidates wait without limit, and the work is not a transaction."
        )
