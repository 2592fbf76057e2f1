"""
With `linger`, this process keeps a lock after a release, so that its next owner gets it without ZooKeeper.

One contender is in ZooKeeper's queue for all owners of this process. Each owner has a `LingeringWaiter`, in a queue of
this process; the first in it has the lock while the lock is here. Each owner has a grant of its own, with the token of
the znode. If there is any doubt about the contender's grant when an owner gets the lock, the lingering lock ends, and
all waiters queue again.

This queue and `protocol.local_queue` cannot be one: here, the owners use one znode in turn; there, each contender gets
a znode and a grant of its own, so several readers or permits of a process hold the lock at the same time.

Owners pass the lock on without the protocol's thread: two switches of threads for each grant would take a third of its
time. A waiter is appended and removed by a single operation, which no signal and no other thread interrupts. Every
thread that changes the queue calls `grant_first()`, which is idempotent. The protocol's thread does the rest: it waits
for ZooKeeper, ends an idle lock, looks for waiters of other processes, writes the present owner into the znode, and
forwards events to the owner's grant.
"""

from __future__ import annotations

import copy
import functools
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue, ZooKeeperUnavailable
from django_zklock.core.protocol.contender import Busy, CallerWait, Contender, Outcome
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.grant import Grant, GrantObserver
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.protocol.story import CLOSED
from django_zklock.core.queue import order
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import NamesReply
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.session import Session, SessionObserver

CHECK_EVERY: Final = 1.0
"""Seconds at most between two checks whether a lock has been idle for too long."""
SHORTEST_PAUSE: Final = 0.001
"""Seconds at least between two of them."""
PUBLISH_AFTER: Final = 0.9
"""Seconds for which an owner or an idle time has to last, or the znode to be wrong, before it is written."""
KEPT: Final = "kept for the next user"
"""The work that the znode shows while the lock is idle."""
SEVERAL: Final = "several, one after another"
"""The work that the znode shows while no owner lasts and their work differs."""


class LingeringGrant(Grant):
    """The grant of one owner. It is valid while that of the contender is."""

    def __init__(self, base: Grant, caller: Caller) -> None:
        super().__init__(base.session, base.key, base.path, base.token, base.kind)
        self.session_id = base.session_id
        self.what, self.about = caller.what, caller.about
        self.template = base.template
        self._base = base

    def why_invalid(self) -> str | None:
        if self.lost_reason is not None:
            return self.lost_reason
        return self._base.why_invalid() or (self.why_overdue if self.overdue else None)


class LingeringWaiter:
    """One owner in the queue of this process; the owner uses it as its contender."""

    sends_release = True

    def __init__(
        self,
        session: Session,
        spec: QueueSpec,
        caller: Caller,
        wait: CallerWait,
        *,
        waits: bool,
    ) -> None:
        self._locks = session.attached(LingeringLocks)
        self.session = session
        self.spec = spec
        self.caller = caller
        self.wait = wait  # its `on_outcome` may be called again with the same outcome
        self.waits = waits
        self.lock: LingeringLock | None = None
        self.alone: LingeringLock | None = None  # shows others that it waits; protocol's thread writes it
        self.gone = False
        # The outcome, by lock. It is written once, by `setdefault`; None: queue again. `join` replaces this dict after
        # `lock`, so read the dict first.
        self._outcomes: dict[LingeringLock | None, Outcome | None] = {}
        self._had_position = False
        self._pid = 0  # that of another process of this machine that does the work

    def __repr__(self) -> str:
        return f"<waiter for {self.spec.key!r}>"

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue. If the lock is here and free, it is granted before this returns."""
        lock = self._locks.find(self.spec)
        if lock is None:
            self.session.post(self._locks.queue_again, [self])
        else:
            lock.append(self)
            self.wait_or_conclude_busy(lock)
            if not self.session.connected:
                self.session.post(
                    self.session.loop.call_later, self.session.options.connect_timeout, self.on_no_session
                )

    def abandon(self) -> None:
        """Pass the lock on, or leave the queue. It is idempotent."""
        self.gone = True
        lock = self.lock
        if lock is not None:
            grant = self.grant
            if grant is not None:
                if lock.first is self and lock.ends_on_release(self.spec, grant):
                    lock.ended = True
                grant.release()
            lock.remove(self)
            if lock.ended:
                self.session.post(lock.end)
        if self.alone is not None:
            self._end_alone()

    def _end_alone(self) -> None:
        """Wait no more with a znode of its own."""
        if self.alone is not None and self.alone is not self.lock:
            self.session.post(self.alone.end)

    @property
    def lingers(self) -> bool:
        """Whether the lock stays in this process, so that there is no release to wait for."""
        return self.lock is None or not self.lock.ended

    def when_released(self, done: Callable[[bool], object], *, confirmed: bool) -> None:
        """Call `done` as `Contender.when_released` does; at once if the lock lingers."""
        if self.lock is None or self.lingers:
            done(True)
        else:
            self.session.post(functools.partial(self.lock.contender.when_released, done, confirmed=confirmed))

    def set_process(self, pid: int) -> None:
        """Show others in the queue that this process of the machine does the work."""
        self._pid = pid
        if self.lock is not None:
            self.session.post(self.lock.publish_owner, self)

    def grant_now(self, lock: LingeringLock) -> None:
        """Take the lock as the first in the queue. It is idempotent, and called by any thread."""
        outcomes, on_outcome = self._outcomes, self.wait.on_outcome
        if self.lock is not lock:
            return  # it has queued again
        if lock not in outcomes:
            outcomes.setdefault(lock, lock.new_grant(self.caller))
        outcome = outcomes[lock]
        if outcome is None:
            lock.ended = True
            self.session.post(lock.end)
        elif isinstance(outcome, Grant) and on_outcome is not None:
            on_outcome(outcome)
            self.wait.end()  # it refers to the hold, which may be dropped
            if self.alone is not None:
                self._end_alone()
            if lock.base is not None and lock.base.has_events:
                self.session.post(lock.forward_events)  # they may have come just before the grant

    # --- read by the owner ----------------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant | None:
        """Its grant, once it has the lock."""
        outcome = self._outcomes.get(self.lock)
        return outcome if isinstance(outcome, Grant) else None

    @property
    def description(self) -> Mapping[str, Any]:
        """The fields of the znode's payload while it has the lock."""
        return description(self._pid or os.getpid(), self.caller.what, self.caller.thread, self.caller.about)

    @property
    def has_position(self) -> bool:
        """Whether the position of this process in ZooKeeper's queue is known, or was before it queued again."""
        lock = self.lock
        return self._had_position or (lock is not None and lock.contender.has_position)

    @property
    def ahead(self) -> ContenderInfo | None:
        """The contender just ahead, or the owner of this process, if it is known; None once it has the lock."""
        lock = self.lock
        if lock is None or self.grant is not None:
            return None
        if lock.base is None:
            return lock.contender.ahead
        first = lock.first
        grant = None if first is None else first.grant
        return None if first is None or grant is None else lock.contender.info(grant, **first.description)

    @property
    def busy(self) -> Busy | None:
        """The outcome of the contender of this process, as soon as the holder is read, if it is that of this owner."""
        busy = None if self.lock is None else self.lock.contender.busy
        return busy if self.is_refused(busy) else None

    @property
    def refusal(self) -> ZkError | None:
        """The refusal of what the contender of this process tries again."""
        return None if self.lock is None else self.lock.contender.refusal

    @property
    def in_local_queue(self) -> bool:
        """Whether many other callers of this process wait."""
        return self.lock is not None and self.lock.contender.in_local_queue

    # --- on the protocol's thread, unless `LingeringLocks.find` found a lock ------------------------------------------

    def join(self, lock: LingeringLock) -> None:
        """Belong to this lock from now on."""
        self._had_position = self.has_position
        self.lock = lock
        self._outcomes = {}  # last, so that no outcome of an earlier lock gets in

    def is_waiting(self, lock: LingeringLock | None) -> bool:
        """Return whether it still waits for this lock."""
        return not self.gone and self.lock is lock and self._outcomes.get(lock) is None

    @property
    def is_left(self) -> bool:
        """Whether it waits, but for no lock, or for one that has ended."""
        lock = self.lock
        return self.is_waiting(lock) and (lock is None or lock.ended)

    def is_granted(self, lock: LingeringLock) -> bool:
        """Return whether it has the lock. If not, it does not get it from this object any more."""
        return self.lock is lock and isinstance(self._outcomes.setdefault(lock, None), Grant) and not self.gone

    def on_no_session(self) -> None:
        """Give up if there is still no connection; those that came before the outage wait on."""
        lock = self.lock
        if lock is not None and self.is_waiting(lock) and not self.session.connected:
            why = self.session.explain(self.session.options.connect_timeout)
            self.conclude(lock, ZooKeeperUnavailable(why, lock=self.spec.key))

    def wait_or_conclude_busy(self, lock: LingeringLock) -> None:
        """Wait, unless the owner does not, or too many of this process wait already."""
        if lock in self._outcomes or lock.ended:
            return
        busy = Busy(max(0, len(lock.queue) - 2) if self.waits else None)  # without itself, and the first
        if self.is_refused(busy):
            self.conclude(lock, busy)
        else:
            self.report_queued()

    def is_refused(self, outcome: Outcome | None) -> bool:
        """Return True if this owner must accept the shared contender's refusal."""
        if not isinstance(outcome, Busy) or not self.waits:
            return True
        waiters, most = outcome.waiters, self.spec.max_waiters
        return waiters is not None and most is not None and waiters >= most

    def report_queued(self) -> None:
        """Tell the owner that it has to wait."""
        self.wait.report_queued()
        if self.wait.held is not None:
            self.session.post(self._call_later, self.session.options.tell_wait_after)

    def _call_later(self, seconds: float) -> None:
        since = self.wait.since
        if since is not None:
            self.session.loop.call_later(max(0.0, since + seconds - clock.now()), self._wait_alone)

    def _wait_alone(self) -> None:
        """Show others which owner waits, by a znode of its own, if it has other locks. It keeps its place here."""
        held = self.wait.held
        if self.alone is None and self.is_waiting(self.lock) and held is not None and held():
            self.alone = LingeringLock(self._locks, self, is_private=True)
            self.alone.contender.start()
            if not self.is_waiting(self.lock):
                self._end_alone()

    def on_alone(self, alone: LingeringLock, outcome: Outcome) -> None:
        """Take the lock by the znode of its own, if that is granted first; or end the wait with this error."""
        lock = self.lock
        if lock is None:
            return
        if not isinstance(outcome, Grant):
            self.conclude(lock, outcome)
        elif not self.gone and not self.is_granted(lock):
            alone.append(self)
            lock.remove(self)

    def conclude(self, lock: LingeringLock, outcome: Outcome) -> None:
        """End the wait with this outcome, unless the owner has the lock."""
        outcomes, on_outcome = self._outcomes, self.wait.on_outcome
        if self.lock is lock and outcomes.setdefault(lock, outcome) is outcome and on_outcome is not None:
            self.gone = True
            lock.remove(self)
            on_outcome(outcome)
            self._end_alone()


@dataclass(frozen=True, slots=True)
class Idle:
    """No owner of this process has the lock since then, on `clock.now()`."""

    since: float

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the znode's payload."""
        since = datetime.now(UTC) - timedelta(seconds=clock.now() - self.since)
        return description(os.getpid(), KEPT, idle=since.isoformat(timespec="milliseconds"))


@dataclass(frozen=True, slots=True)
class Used:
    """An owner has the lock, or several have had it one after another."""

    owner: Mapping[str, Any]  # its description
    waited: int = 0  # milliseconds

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the znode's payload."""
        return {**self.owner, "waited": self.waited}


class LingeringLock(GrantObserver):
    """
    A lock that this process shares among its owners, until it passes the lock on; and the wait before it.

    The owners that wait for the one contender are in `queue`.
    """

    def __init__(self, locks: LingeringLocks, founder: LingeringWaiter, *, is_private: bool = False) -> None:
        self.is_private = is_private  # only its founder uses it, and it ends with the first release
        self.queue: deque[LingeringWaiter | None] = deque()  # None: the protocol's thread, to end an idle lock
        self.ended = False  # written by the first in the queue, if the lock is here
        self.base: Grant | None = None  # the contender's; None while this process waits for the lock
        self.has_other_waiters: bool | None = None  # whether another process waits for the lock; None: not known yet
        self.idle_since = clock.now()
        self.session = founder.session
        self.spec = founder.spec
        caller = founder.caller if is_private else founder.caller._replace(owner=0)
        wait = replace(founder.wait) if is_private else CallerWait(None)
        wait.on_outcome, wait.on_queued = self._on_outcome, founder.report_queued
        self.contender = Contender(founder.session, founder.spec, caller, wait, waits=founder.waits)
        # With a position, it waits as long, and is not refused any more.
        self.contender.has_position = founder.waits and founder.has_position
        self._locks = locks
        self._linger = founder.spec.linger
        self._checks_at = math.inf  # on clock.now(): when the protocol's thread next checks for how long it was idle
        self._last = founder  # the last waiter that had the lock
        # Protocol's thread only.
        self._has_left = False
        self._watch: Watch | None = None
        self._timer = NEVER
        self._published: Idle | Used = Used(founder.description)  # in the znode
        self._stale_since: float | None = None  # when a check found that the znode is wrong

    # --- on any thread --------------------------------------------------------------------------------------------

    def append(self, waiter: LingeringWaiter) -> None:
        """Append a waiter; it has the lock at once if it is the first."""
        waiter.join(self)
        self.queue.append(waiter)
        if waiter.gone:
            self.remove(waiter)
        elif self.ended:
            self.session.post(self._locks.queue_again, [waiter])
        else:
            self.grant_first()

    def remove(self, waiter: LingeringWaiter) -> None:
        """Remove a waiter, and grant the lock to the first one then. It is idempotent."""
        self._linger = waiter.spec.linger
        self.idle_since = clock.now()
        if waiter.grant is not None:
            self._last = waiter
        try:
            self.queue.remove(waiter)
        except ValueError:
            pass
        if self.grant_first() is None:  # the queue is empty, or the protocol's thread is the first
            if self.base is None or self.has_other_waiters:
                self.session.post(self.end_if_idle)
            elif self.idle_since + self._linger < self._checks_at:  # an earlier owner had a longer `linger`
                self.session.post(self.check_idle)

    def grant_first(self) -> LingeringWaiter | None:
        """Grant the lock to the first in the queue, if the lock is here. Return the first."""
        first = self.first  # read before `ended`: the one that ends this sets that before it leaves the queue
        if first is not None and self.base is not None and not self.ended:
            first.grant_now(self)
        return first

    @property
    def first(self) -> LingeringWaiter | None:
        """The waiter that has the lock, or will have it next."""
        try:
            return self.queue[0]
        except IndexError:
            return None

    @property
    def grant(self) -> Grant | None:
        """The grant of the owner that has the lock, if there is one."""
        first = self.first
        return None if first is None else first.grant

    def new_grant(self, caller: Caller) -> Grant | None:
        """Return a grant for this caller; None if the lock may be lost."""
        return None if self.base is None or self.may_be_lost else LingeringGrant(self.base, caller)

    @property
    def may_be_lost(self) -> bool:
        """Whether it is uncertain that this process has the lock."""
        base = self.base
        return base is None or self.session.suspect or base.why_invalid() is not None

    def ends_on_release(self, spec: QueueSpec, grant: Grant) -> bool:
        """Return whether the lock leaves this process when the owner with this grant releases it."""
        base = self.base
        if base is None or not self._is_as_before(base, grant):
            return True
        if len(self.queue) == 1 and (self.has_other_waiters or self._locks.are_too_many):
            return True
        return self.has_other_waiters is not False and clock.now() - base.since >= spec.linger

    def _is_as_before(self, base: Grant, grant: Grant) -> bool:
        """Return whether the next owner can get the lock as the one with this grant got it."""
        if self.is_private or grant.tells_wait:
            return False  # what the znode says would be taken for the wait of the next owner
        if base.has_events or self.session.closing:
            return False  # the lease is not looked at: `new_grant` does that for the next owner
        return grant.lost_reason is None and not grant.overdue

    # --- on the protocol's thread -----------------------------------------------------------------------------------

    def _on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant):
            outcome.logs_loss = False
            self.base = outcome
            outcome.attach(self)
        if self.is_private:
            self._last.on_alone(self, outcome)
        if self.base is not None:
            self.grant_first()
            if self._locks.are_too_many:
                self._locks.end_longest_idle()
            self._watch_others()
            self.check_idle()
            return
        self.ended = self._has_left = True
        self._locks.forget(self)
        waiters = self.waiting()
        for waiter in waiters:
            if waiter.is_refused(outcome):
                waiter.conclude(self, _copy(outcome))
        self._locks.queue_again(waiters)

    def end(self) -> None:
        """Leave ZooKeeper's queue, unless an owner is at work: then its release does that. All waiters queue again."""
        if not any(waiter is not None and waiter.is_granted(self) for waiter in list(self.queue)):
            self.contender.abandon()
        if self._has_left:
            return
        self._has_left = True
        self._locks.forget(self)
        self._unwatch()
        self._timer.cancel()
        self._locks.queue_again(self.waiting())

    def waiting(self) -> list[LingeringWaiter]:
        """Return the waiters without the lock, in their order."""
        return [waiter for waiter in list(self.queue) if waiter is not None and waiter.is_waiting(self)]

    def end_if_idle(self) -> None:
        """End this unless an owner uses or awaits the lock. Waiters that come meanwhile queue again."""
        if self.ended or self.queue:
            return
        self.queue.append(None)  # if it is the first, no waiter gets the lock meanwhile
        if self.first is None:
            self.ended = True
        self.queue.remove(None)
        if self.ended:
            self.end()
        else:
            self.grant_first()

    def check_idle(self) -> None:
        """End this when it has been idle for too long."""
        self._timer.cancel()
        remaining = self._linger
        if not self.queue:
            remaining += self.idle_since - clock.now()
            if remaining <= 0:
                self.end_if_idle()
        if not self.ended:
            self._correct_published()
            pause = min(max(remaining, SHORTEST_PAUSE), CHECK_EVERY)
            self._checks_at = clock.now() + pause
            self._timer = self.session.loop.call_later(pause, self.check_idle)

    def _correct_published(self) -> None:
        """Write the znode if it has been wrong for some time; never for each of many short owners."""
        lasting = self._lasting_state()
        if lasting is not None:
            if lasting != self._published:
                self._publish(lasting)
            return
        present = Used((self.first or self._last).description)
        several = Used(description(os.getpid(), SEVERAL))
        now = clock.now()
        if self._published in (present, several):
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now
        elif now - self._stale_since >= PUBLISH_AFTER:
            is_same = isinstance(self._published, Used) and self._published.owner == present.owner
            self._publish(present if is_same else several)

    def _lasting_state(self) -> Idle | Used | None:
        """Return for what the lock has been used for some time; None if that has just changed."""
        first, idle_since = self.first, self.idle_since
        latest = clock.now() - PUBLISH_AFTER
        if first is None:
            return Idle(idle_since) if idle_since <= latest else None
        grant = first.grant
        if grant is None or grant.since > latest:
            return None
        return Used(first.description, self.contender.waited(grant.since))

    def publish_owner(self, waiter: LingeringWaiter) -> None:
        """Show others in the queue this owner, if it has the lock."""
        if self.first is waiter:
            self._publish(Used(waiter.description))

    def _publish(self, state: Idle | Used) -> None:
        def on_written() -> None:
            self._published, self._stale_since = state, None

        self.contender.describe(state.fields(), on_written)

    def _watch_others(self) -> None:
        self._unwatch()
        gateway = self.session.gateway
        self._watch = gateway.children(self.spec.parent, self._on_names, self._on_children_changed)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _on_children_changed(self, deleted: bool) -> None:
        self._watch = None
        if not self.ended:
            self.has_other_waiters = None  # until the next listing
            self._watch_others()

    def _on_names(self, reply: NamesReply) -> None:
        if isinstance(reply, ZkError) or self.base is None:
            return  # without a connection, the lock is in doubt
        own = self.base.path.rpartition("/")[2]
        try:
            self.has_other_waiters = any(child.name != own for child in order.ordered(reply))
        except UnreadableQueue:
            self.has_other_waiters = True
        if self.has_other_waiters:
            self._unwatch()
            self.end_if_idle()

    # --- events of the contender's grant, for the owner that has the lock -------------------------------------------

    def on_suspect(self, reason: str) -> None:
        self.forward_events()

    def on_confirmed(self) -> None:
        self.forward_events()
        if not self.ended:
            self._watch_others()  # the old watch ended with the connection

    def on_lost(self, reason: str) -> None:
        self.forward_events()
        if not self.session.closing:  # else no waiter queues again
            self.ended = True
            self.end()  # queue the waiters again now; the aborted work may take a while

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self.forward_events()

    def forward_events(self) -> None:
        """Forward to the owner's grant what happened to the lock; end an idle lock."""
        base, grant = self.base, self.grant
        if base is None or grant is None:
            self.end_if_idle()
            return
        if base.lost_reason is not None:
            grant.lose(base.lost_reason)
        elif base.suspect_since is not None:
            grant.suspect(base.suspect_reason)
        else:
            grant.confirmed()
        request = base.release_request
        if request is not None and request != grant.release_request:
            grant.request_release(request)


class LingeringLocks(SessionObserver):
    """The lingering locks of one session: one object for each lock at a time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._locks: dict[tuple[str, Kind, str | None], LingeringLock] = {}  # written on the protocol's thread

    def find(self, spec: QueueSpec) -> LingeringLock | None:
        """Return the current lingering lock, or None; from any thread."""
        lock = self._locks.get(_key_of(spec))
        return None if lock is None or lock.ended else lock

    def queue_again(self, waiters: list[LingeringWaiter]) -> None:
        """Append these waiters for one lock, in their order, to its current lingering lock, or to a new one."""
        if not waiters:
            return
        spec = waiters[0].spec
        before = self._locks.get(_key_of(spec))
        if before is not None and before.ended:
            before.end()  # its waiters come first; perhaps these are among them
        waiters = [waiter for waiter in waiters if waiter.is_left]
        lock = self.find(spec)
        if lock is not None:
            for waiter in waiters:
                lock.append(waiter)
                waiter.wait_or_conclude_busy(lock)
        elif waiters:
            lock = LingeringLock(self, waiters[0])
            for waiter in waiters:
                lock.append(waiter)
            self.session.observers[self] = None
            self.session.attached(Registry).on_nearly_full = self.end_longest_idle
            self._locks[_key_of(spec)] = lock  # last: waiters that find it come after these
            lock.contender.start()

    def forget(self, lock: LingeringLock) -> None:
        """Forget a lingering lock that has ended."""
        if self._locks.get(_key_of(lock.spec)) is lock:
            del self._locks[_key_of(lock.spec)]

    def waiting(self) -> list[LingeringWaiter]:
        """Return the waiters without a lock; from any thread."""
        return [waiter for lock in list(self._locks.values()) for waiter in lock.waiting()]

    @property
    def are_too_many(self) -> bool:
        """Whether a lock that becomes idle has to end; from any thread."""
        return len(self._locks) > self.session.options.max_lingering

    def end_longest_idle(self) -> None:
        """End the lock that was idle for the longest time."""
        idle = [lock for lock in self._locks.values() if not lock.queue]
        if idle:
            min(idle, key=lambda lock: lock.idle_since).end_if_idle()

    def end_idle(self) -> None:
        """End all idle lingering locks."""
        for lock in list(self._locks.values()):
            lock.end_if_idle()

    needs_connection = False  # the contender of each lock is another observer

    def on_closed(self) -> None:
        """Refuse all waiters, which would never be granted."""
        for lock in list(self._locks.values()):
            for waiter in lock.waiting():
                waiter.conclude(lock, ZooKeeperUnavailable(CLOSED, lock=waiter.spec.key))


def description(
    pid: int, what: str, thread: str = "", about: Mapping[str, str] = MappingProxyType({}), idle: str = ""
) -> Mapping[str, Any]:
    """Return the fields of a payload that change from owner to owner."""
    return {"pid": pid, "what": what, "thread": thread, "about": about, "idle": idle, "waited": 0}


def _copy(outcome: Outcome) -> Outcome:
    """Return an outcome for one waiter. An error that two threads raise would show the frames of both."""
    copied = copy.copy(outcome)
    if isinstance(copied, Exception) and isinstance(outcome, Exception):
        copied.__cause__ = outcome.__cause__
    return copied


def _key_of(spec: QueueSpec) -> tuple[str, Kind, str | None]:
    return spec.parent, spec.kind, spec.compat
