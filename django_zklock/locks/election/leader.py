"""Knows how one of many processes leads: `with`, `run`, and what becomes of it when the lead is lost."""

from __future__ import annotations

import inspect
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from django_zklock.conf.options import UNSET, Unset
from django_zklock.exceptions import FenceRegressed, LockLost, LockNotAcquired, StaleToken, ZooKeeperUnavailable
from django_zklock.execution.owner import current_owner
from django_zklock.execution.waiters import Routine, ThreadWaiter, run
from django_zklock.locks import table
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.base import Entry
from django_zklock.locks.election.campaign import FIRST_PAUSE, Campaign, Pauses
from django_zklock.locks.election.lead import Heralds, LeadLock
from django_zklock.locks.election.observer import Candidate
from django_zklock.locks.election.onlooker import Onlooker
from django_zklock.locks.held import RELEASE_PATIENCE, HeldLock
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.terms import Terms
from django_zklock.locks.validation import refuse_open_transaction, refuse_running_loop
from django_zklock.zk import process

logger = logging.getLogger("django_zklock.leader")

SAY_AGAIN = 60.0  # seconds between two log records that ZooKeeper does not answer still
STOPPED = "it was given up by stop()"

_Value = TypeVar("_Value")
_Callback = TypeVar("_Callback", bound=Callable[..., object])


class _Exit:
    """Makes `__exit__` that of the lock, which is to be a new one for each block."""

    def __get__(self, leader: Leader | None, cls: type[Leader]) -> Any:
        return _leave if leader is None else leader._lock.__exit__


def _leave(leader: Leader, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
    leader._lock._leave(error)  # for `ExitStack`, which looks it up on the class


class Leader(Onlooker):
    """
    One candidate for the lead of `name`, which one candidate at a time has, of all processes on all machines.

    The lead is a lock that is waited for as long as it takes: the first in its queue leads, those behind it stand by,
    and follow in the order in which they came. A place there is kept through losses of the connection. Who loses the
    lead is told, has its work stopped as in any `with` block, and queues again, at the end. Each lead has a fencing
    token, higher than that of all before it.

    `name`, `fields` and the options are those of `Lock`, of which `kind`, `limit`, `atomic` and `timeout` mean nothing
    here. One object is one candidate: it leads, or waits to, in one thread or task at a time. `stop`, `leads`,
    `standing`, and whatever looks at others, are for any thread.
    """

    def __init__(
        self,
        name: str,
        *,
        fields: Mapping[str, object] | None = None,
        abort_on: str | Unset = UNSET,
        grace: float | timedelta | Unset = UNSET,
        compat: str | Unset | None = UNSET,
        max_hold: float | timedelta | Unset | None = UNSET,
        warn_after: float | timedelta | Unset | None = UNSET,
        what: str = "",
        about: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self._lock = LeadLock(
            self,
            name,
            fields=fields,
            abort_on=abort_on,
            grace=grace,
            compat=compat,
            max_hold=max_hold,
            warn_after=warn_after,
            what=what,
            about=about,
        )
        self._campaign: Campaign | None = None  # the present or last one; written by who campaigns, read by all
        self._held: Callable[[], HeldLock | None] = _nothing  # that came of it; likewise
        self._pauses = Pauses()
        self._pause = 0.0  # seconds, after a campaign that failed
        self._said_at: float | None = None
        self._heralds = Heralds()

    def __repr__(self) -> str:
        return f"<Leader {self.name!r}>"

    # --- how it stands ------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._lock.key

    @property
    def hold(self) -> Hold | None:
        """What this candidate leads by; None while it does not."""
        held = self._held()
        return None if held is None or held.is_over or held.grant.inherited else held.hold

    @property
    def leads(self) -> bool:
        """
        Whether this candidate leads, by the clock of its lease.

        It asks no network. A process that was paused for longer than its lease learns at once that it leads no more.
        """
        hold = self.hold
        return hold is not None and not hold.lost

    @property
    def standing(self) -> str:
        """Where in the queue this candidate is, in words."""
        if self.hold is not None:
            return "first"
        campaign = self._campaign
        if campaign is None or not campaign.started:
            return "not in the queue"
        contender = campaign.acquisition.contender
        if contender is None or not contender.placed:
            return f"not in the queue yet: {campaign.session.explain()}"
        if contender.operator is not None:
            return f"behind {contender.operator}"
        ahead = contender.ahead
        return "in the queue" if ahead is None else f"behind process {ahead.pid} on {ahead.host}"

    def on_elected(self, callback: _Callback) -> _Callback:
        """
        Have `callback(hold)` run each time this candidate comes to lead; also to be used as a decorator.

        It runs on the thread that sends Django's signals, so it may take its time, and what it raises is logged.
        """
        self._heralds.elected.append(callback)
        return callback

    def on_deposed(self, callback: _Callback) -> _Callback:
        """
        Have `callback(reason)` run each time a lead of this candidate is over, after that of `on_elected`, likewise.

        `reason` says why the lead was lost; it is empty if it was let go of.
        """
        self._heralds.deposed.append(callback)
        return callback

    # --- leading ------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[Hold], _Value]) -> _Value | None:
        """
        Call `function(hold)` while this candidate leads, and again when it leads again; return what it returns.

        When the lead is lost, the function is stopped as `abort_on` says, that is logged, and the candidate queues
        again, after a pause that is the longer the more often this has happened lately; also if the function returns
        when it does not lead any more, or raises `LockLost` or `StaleToken` for that reason. Any other exception of
        the function ends this, and is raised. While ZooKeeper is away it goes on trying, and says so in the log now and
        then. Returns None when `stop` was called.
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
                if not self._is_to_go_on(error, elected=elected):
                    raise
            self._tell_deposed()
        return None

    async def arun(self, function: Callable[[Hold], Awaitable[_Value]]) -> _Value | None:
        """Await `function(hold)` as `run` calls it; waiting for the lead costs no thread."""
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
                if not self._is_to_go_on(error, elected=elected):
                    raise
            self._tell_deposed()
        return None

    def stop(self, *, grace: float = 0.0) -> None:
        """
        End the candidacy for good: leave the queue, or give the lead up and have the work stopped; returns at once.

        From any thread, or the handler of a signal, and any number of times. The work has `grace` seconds to end by
        itself; it can tell by `stopping`. Then it is stopped as if the lead were lost (with `abort_on="never"` it has
        to look at its hold), and the lead is somebody else's only when it has ended. `run` returns None, who waits
        gets `LockNotAcquired`, and who observes by this object comes to the end.
        """
        self._look_no_more()
        campaign = self._campaign
        if campaign is not None:
            campaign.call_off(LockNotAcquired("The leader was stopped.", lock=campaign.acquisition.terms.key))
            campaign.session.post(self._end, campaign, grace)

    def __enter__(self) -> Hold:
        """Wait for the lead as long as it takes. Raises `ZooKeeperUnavailable` if the queue is not to be reached."""
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
        Wait for the lead for at most `timeout` seconds; return the hold, or None: then it is still in the queue.

        For a thread that has something else to do in between. It stays in the queue through any loss of the connection,
        until `withdraw`. The hold is nobody's to take again, and no work is stopped when it is lost: ask
        `hold.check()`. Raises `ZooKeeperUnavailable` when there was no connection within the connect timeout, and
        another `ZkLockError` when the queue cannot be entered; a wait after that begins anew.
        """
        hold = self.hold
        if hold is not None:
            return hold
        refuse_running_loop("wait", "await leader.arun()")
        campaign = self._campaign
        if campaign is None or campaign.over:
            campaign = self._begin(Acquisition(self._lock.terms), ThreadWaiter[Outcome]())
            campaign.belong_to(self)
        outcome = run(campaign.outcome(timeout))
        if outcome is None:
            return None
        try:
            held = campaign.conclude(outcome)
        except BaseException:
            campaign.abandon()
            self._campaign = None
            raise
        table.held_locks.remove(held)  # it is nobody's to take again
        self._held = lambda: held  # kept, as nothing else does
        self._tell_elected(held)
        return held.hold

    def withdraw(self) -> None:
        """Let go of the lead, or leave its queue; a wait after that begins anew, at the end."""
        held, self._held = self._held(), _nothing
        campaign = self._campaign
        if campaign is not None and not campaign.over:
            self._campaign = None
            campaign.abandon()
        if held is not None:
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            held.release_to(0, waiter.set)
            waiter.wait(RELEASE_PATIENCE)

    def _place(self) -> tuple[str, str]:
        terms = self._lock.terms
        return terms.key, terms.parent

    # --- campaigning --------------------------------------------------------------------------------------------

    def _begin(self, acquisition: Acquisition, waiter: Any) -> Campaign:
        """Begin a campaign, in which nothing is sent before it is waited for."""
        last = self._campaign
        if last is not None and (not last.over or self.hold is not None):
            raise RuntimeError(f"{self!r} leads, or waits for the lead, already; one object is one candidate.")
        pause = max(self._pause, self._pauses.after(None if last is None else last.grant))
        campaign = Campaign(process.current(), acquisition, waiter, pause=pause)
        self._campaign = campaign  # first, then look: `stop` does it the other way round
        if self._stopping:
            self._campaign = None
            raise LockNotAcquired("The leader was stopped.", lock=acquisition.terms.key)
        return campaign

    def _take(self, entry: Entry, terms: Terms, waiter: type[Any]) -> Routine[None]:
        """Campaign; for the lock behind this."""
        acquisition = Acquisition(replace(terms, reentrant=False))
        entry.acquisitions.append(acquisition)
        if waiter is ThreadWaiter:
            refuse_running_loop("run", '"async with" or await leader.arun()')
        acquisition.reenter(current_owner(), keep=False)  # it would wait for itself
        if waiter is ThreadWaiter:
            refuse_open_transaction(terms, ())
        campaign = self._begin(acquisition, waiter())
        try:
            outcome = yield from campaign.outcome(None)
            while outcome is None:
                outcome = yield from campaign.outcome(None)
            held = campaign.conclude(outcome)
            self._held = weakref.ref(held)  # kept by the block alone, so that it goes with it
            self._tell_elected(held)
        except BaseException:
            campaign.abandon()
            self._campaign = None
            raise

    def _end(self, campaign: Campaign, grace: float) -> None:
        """Have the work of a stopped leader stopped; on the protocol's thread."""
        grant = campaign.grant
        if grant is None or grant.released:
            return
        if grace > 0:
            campaign.session.loop.call_later(grace, lambda: self._end(campaign, 0.0))
        else:
            grant.lose(STOPPED, logging.INFO)

    # --- what is told -------------------------------------------------------------------------------------------

    def _is_to_go_on(self, error: Exception, *, elected: bool) -> bool:
        """Tell whether to campaign again after this error: when the lead was lost, or ZooKeeper is away."""
        self._pause = FIRST_PAUSE / 2  # whatever it is: never a loop without a pause
        if isinstance(error, ZooKeeperUnavailable):
            if not elected:
                self._say_away(error)
            return not elected
        if isinstance(error, LockNotAcquired):
            return not elected and self._stopping
        if isinstance(error, LockLost):
            return error.lock == self.key
        campaign = self._campaign  # a newer leader has been at the row
        grant = None if campaign is None else campaign.grant
        return not isinstance(error, FenceRegressed) and grant is not None and grant.why_invalid() is not None

    def _say_away(self, error: Exception) -> None:
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= SAY_AGAIN:
            self._said_at = now
            logger.warning("no way to the lead of %s; goes on trying: %s", self.key, error, extra={"lock": self.key})

    def _tell_elected(self, held: HeldLock) -> None:
        grant = held.grant
        self._pause = 0.0
        self._said_at = None
        logger.info("leads %r", held.key, extra=grant.logged())
        self._heralds.tell(held.hold)

    def _tell_deposed(self) -> None:
        campaign = self._campaign
        grant = None if campaign is None else campaign.grant
        if self._stopping or grant is None:
            return
        reason = grant.why_invalid() or "it could not be trusted any more"
        logger.warning("leads %s no more, and queues again: %s", grant.key, reason, extra=grant.logged())


def _nothing() -> None:
    return None


zk_leader = Leader  # the name that goes with `zk_lock`

__all__ = ["Candidate", "Leader", "zk_leader"]
