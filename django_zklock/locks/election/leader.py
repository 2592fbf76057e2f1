"""Election of a leader among processes: `with leader:`, `leader.run(function)`, and what happens after a loss."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django_zklock import clock
from django_zklock.conf.arguments import LeaderArguments
from django_zklock.exceptions import FenceRegressed, LockLost, LockNotAcquired, StaleToken, ZooKeeperUnavailable
from django_zklock.execution.cleanup import CleanupOnError
from django_zklock.execution.waiters import ThreadWaiter, run
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.election.candidacy import FIRST_PAUSE, LeaderLock
from django_zklock.locks.election.observer import LeaderObserver
from django_zklock.locks.held import RELEASE_TIMEOUT, held_locks
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.validation import check_arguments, check_no_running_loop

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("django_zklock.leader")

LOG_AGAIN = 60.0  # seconds between two log records that ZooKeeper is still away

_Value = TypeVar("_Value")
_Callback = TypeVar("_Callback", bound=Callable[..., object])


class _Exit:
    """Makes `__exit__` that of the lock, which is a new one for each block."""

    def __get__(self, leader: Leader | None, cls: type[Leader]) -> Any:
        return _leave if leader is None else leader._lock.__exit__


def _leave(leader: Leader, *error: Any) -> None:
    LeaderLock.__exit__(leader._lock, *error)  # for `ExitStack`, which looks it up on the class


class Leader(LeaderObserver):
    """
    One candidate for the leadership of `name`. One candidate at a time leads, among all processes on all machines.

    The leadership is a lock, and candidates wait for it without a timeout. The first in its queue leads. The others
    follow in the order in which they came, and keep their places when the connection is lost for a while. When a leader
    loses the leadership, its work is aborted as in any `with` block, and it queues again, at the end. Each leader has a
    higher fencing token than all leaders before it.

    `name`, `fields` and the options are those of `Lock`. One object is one candidate: it leads, or waits to, in one
    thread or task at a time. Any thread may use `stop`, `is_leader`, `position` and the methods that only read.
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[LeaderArguments]) -> None:
        check_arguments("zk_leader", name, more, options, LeaderArguments)
        super().__init__()
        self.name = name
        self._lock = LeaderLock(name, **options)
        self._logged_at: float | None = None

    def __repr__(self) -> str:
        return f"<Leader {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._lock.key

    @property
    def hold(self) -> Hold | None:
        """The hold by which this candidate leads; None while it does not."""
        return self._lock.hold

    @property
    def is_leader(self) -> bool:
        """
        Whether this candidate leads, by the clock of its lease.

        Needs no network. A process that was paused for longer than its lease sees at once that it no longer leads.
        """
        hold = self.hold
        return hold is not None and not hold.lost

    @property
    def position(self) -> str:
        """The position of this candidate in the queue, as a text."""
        if self.hold is not None:
            return "first"
        attempt = self._lock.attempt
        return "not in the queue" if attempt is None else attempt.position

    def on_elected(self, callback: _Callback) -> _Callback:
        """
        Call `callback(hold)` each time this candidate begins to lead. Can be used as a decorator.

        It runs on the thread that sends Django's signals, so it may be slow. Its exceptions are logged.
        """
        self._lock.on_elected.append(callback)
        return callback

    def on_lost(self, callback: _Callback) -> _Callback:
        """
        Call `callback(reason)` each time a leadership of this candidate ends, after the callbacks of `on_elected`.

        `reason` is empty if the leadership was released. It runs as the callbacks of `on_elected` do.
        """
        self._lock.on_lost.append(callback)
        return callback

    # --- leading ------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[Hold], _Value]) -> _Value | None:
        """
        Call `function(hold)` while this candidate leads, and again when it leads again; return what it returns.

        When the leadership is lost, the function is aborted as `abort_on` says, the loss is logged, and the candidate
        queues again after a pause. The pause grows if this happens often. The same happens if the function returns, or
        raises `LockLost` or `StaleToken`, because it no longer leads. Any other exception of the function ends `run`.
        While ZooKeeper is away, `run` keeps trying, and logs that now and then. Returns None after `stop`.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is a coroutine function; await leader.arun() it.")
        while not self._stopping:
            elected = False
            try:
                with self._lock as hold:
                    elected = True
                    value = function(hold)
                    if not hold.lost:
                        return value
            except (LockLost, StaleToken, LockNotAcquired, ZooKeeperUnavailable) as error:
                if not self._may_continue(error, elected=elected):
                    raise
            self._log_loss()
        return None

    async def arun(self, function: Callable[[Hold], Awaitable[_Value]]) -> _Value | None:
        """Await `function(hold)` as `run` calls it; waiting for the leadership needs no thread."""
        while not self._stopping:
            elected = False
            try:
                async with self._lock as hold:
                    elected = True
                    work = function(hold)
                    if not inspect.isawaitable(work):
                        raise TypeError(f"{function!r} returned nothing to await; leader.run() is for plain functions.")
                    value = await work
                    if not hold.lost:
                        return value
            except (LockLost, StaleToken, LockNotAcquired, ZooKeeperUnavailable) as error:
                if not self._may_continue(error, elected=elected):
                    raise
            self._log_loss()
        return None

    def stop(self, *, grace: float = 0.0) -> None:
        """
        End the candidacy for good: leave the queue, or give up the leadership and abort the work; return at once.

        Can be called from any thread or signal handler, any number of times. The work has `grace` seconds to end by
        itself; it can ask `stopping`. Then it is aborted as if the leadership were lost. (With `abort_on="never"` it
        has to look at its hold.) The next candidate leads only when the work has ended. `run` returns None, a pending
        `wait` raises `LockNotAcquired`, and `observe` ends.
        """
        self._stop_observing()
        self._lock.stop(grace)

    def __enter__(self) -> Hold:
        """Wait for the leadership, without a limit. Raises `ZooKeeperUnavailable` if the queue cannot be reached."""
        return self._lock.__enter__()

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = _Exit()

    async def __aenter__(self) -> Hold:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, traceback)

    def wait(self, timeout: float) -> Hold | None:
        """
        Wait for the leadership for at most `timeout` seconds; return the hold, or None. Then it is still in the queue.

        This is for a thread that has other things to do in between. The candidate stays in the queue until `withdraw`,
        also while the connection is lost. No work is aborted when the hold is lost: call `hold.check()`. Raises
        `ZooKeeperUnavailable` if there was no connection within the connect timeout, and another `ZkLockError` if the
        candidate cannot enter the queue; the next wait enters it again.
        """
        hold = self.hold
        if hold is not None:
            return hold
        check_no_running_loop("wait", "await leader.arun()")
        attempt = self._lock.attempt
        if attempt is None or attempt.is_over:
            attempt = self._lock.begin(Acquisition(), self._lock.spec, ThreadWaiter[Outcome]())
            attempt.abandon_with(self)
        outcome = run(attempt.outcome(timeout))
        if outcome is None:
            return None
        with CleanupOnError(functools.partial(self._lock.abandon, attempt)):
            held = attempt.conclude(outcome)
        held_locks.remove(held)  # the thread cannot acquire it again as its own
        self._lock.begin_leadership(held, lambda: held)  # kept here, as no block keeps it
        return held

    def withdraw(self) -> None:
        """Release the leadership, or leave the queue. The next wait enters it again, at the end."""
        held = self._lock.end_leadership()
        attempt = self._lock.attempt
        if attempt is not None and not attempt.is_over:
            self._lock.abandon(attempt)
        if held is not None:
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            held.release_uses(waiter.set)
            waiter.wait(RELEASE_TIMEOUT)

    # --- small parts --------------------------------------------------------------------------------------------

    def _where(self) -> tuple[str, str]:
        spec = self._lock.spec
        return spec.key, spec.parent

    def _may_continue(self, error: Exception, *, elected: bool) -> bool:
        """Return whether to try again after this error: the leadership was lost, or ZooKeeper is away."""
        self._lock.pause = FIRST_PAUSE / 2  # no error may lead to a loop without a pause
        if isinstance(error, ZooKeeperUnavailable):
            if not elected:
                self._log_outage(error)
            return not elected
        if isinstance(error, LockNotAcquired):
            return not elected and self._stopping
        if isinstance(error, LockLost):
            return error.lock == self.key
        grant = self._lock.grant  # the row was written by a newer leader
        return not isinstance(error, FenceRegressed) and grant is not None and grant.why_invalid() is not None

    def _log_outage(self, error: Exception) -> None:
        now = clock.now()
        if self._logged_at is None or now - self._logged_at >= LOG_AGAIN:
            self._logged_at = now
            logger.warning("%r has no leader here; goes on trying: %s", self.key, error, extra={"lock": self.key})

    def _log_loss(self) -> None:
        grant = self._lock.grant
        if self._stopping or grant is None:
            return
        self._logged_at = None
        reason = grant.why_invalid() or "it could not be trusted any more"
        logger.warning("no longer leads %r, and queues again: %s", grant.key, reason, extra=grant.log_fields())


def zk_leader(name: str, *more: NoReturn, **options: Unpack[LeaderArguments]) -> Leader:
    """Return a candidate for the leadership of `name`, as in `zk_leader("reports").run(work)`; see `Leader`."""
    return Leader(name, *more, **options)
