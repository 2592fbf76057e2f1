"""
The queue of this process for a lock that it keeps with `linger`, and how one owner passes the lock on to the next one.

Each owner has a `LocalWaiter`; the first in the queue has the lock while the lock is here. A waiter is appended and
removed by a single operation, which no signal and no other thread interrupts. Every thread that changes the queue calls
`grant_first()`, which is idempotent. So the lock is passed on without the protocol's thread: two switches of threads
for each grant would take a third of its time. Each owner has a grant of its own, with the token of the znode.
"""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from django_zklock import clock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.protocol.contender import Busy, Contender, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.queue.operator_hold import OperatorHold
from django_zklock.zk.session import Session


class LocalGrant(Grant):
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


class LocalWaiter:
    """One owner in the queue of this process; the owner uses it as its contender."""

    def __init__(
        self,
        locks: SharedLocks,
        spec: QueueSpec,
        caller: Caller,
        on_outcome: Callable[[Outcome], object],
        *,
        waits: bool,
    ) -> None:
        self.session = locks.session
        self._locks = locks
        self.spec = spec
        self.caller = caller
        self.on_queued: Callable[[], object] | None = None  # called once if it has to wait
        self.lock: SharedLock | None = None
        self.gone = False
        self.since: float | None = None  # when the caller began to wait, on clock.now()
        self._on_outcome: Callable[[Outcome], object] | None = on_outcome  # may be called again with the same outcome
        self.waits = waits
        # The outcome, by lock. It is written once, by `setdefault`; None: queue again. `join` replaces this dict after
        # `lock`, so read the dict first.
        self._outcomes: dict[SharedLock | None, Outcome | None] = {}
        self._was_placed = False
        self._pid = os.getpid()  # the process of this machine that does the work

    def __repr__(self) -> str:
        return f"<waiter for {self.spec.key!r}>"

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue. If the lock is here and free, it is granted before this returns."""
        lock = self._locks.find(self.spec)
        if lock is None:
            self.session.post(self.queue_again)
        else:
            lock.append(self)
            self.wait_or_conclude_busy(lock)
            if not self.session.connected:
                self.session.post(
                    self.session.loop.call_later, self.session.options.connect_timeout, self.on_no_session
                )

    def abandon(self, done: Callable[[bool], object] | None = None) -> None:
        """
        Pass the lock on, or leave the queue. It is idempotent.

        `done` is called as by `Contender.abandon`; at once if the lock is kept here.
        """
        self.gone = True
        lock = self.lock
        if lock is not None:
            grant = self.grant
            if grant is not None:
                if lock.first is self and lock.ends_on_release(self.spec, grant):
                    lock.ended = True
                grant.released = True
                if grant.has_observers:
                    self.session.post(grant.tell_released)
            lock.remove(self)
            if lock.ended:
                self.session.post(lock.end, done)
                return
        if done is not None:
            done(True)

    def downgrade(self, *, asked: bool = False) -> None:
        """Make the write lock a read lock; see `Contender.downgrade`. The lingering lock ends with it."""
        lock, grant = self.lock, self.grant
        if lock is not None and grant is not None:
            lock.contender.downgrade(asked=asked)
            grant.kind = Kind.READ

    def set_process(self, pid: int) -> None:
        """Show others in the queue that this process of the machine does the work."""
        self._pid = pid
        if self.lock is not None:
            self.session.post(self.lock.publish_owner, self)

    def grant_now(self, lock: SharedLock) -> None:
        """Take the lock as the first in the queue. It is idempotent, and called by any thread."""
        outcomes, on_outcome = self._outcomes, self._on_outcome
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
            self._on_outcome = self.on_queued = None  # they refer to the hold, which may be dropped without a release
            if lock.base is not None and lock.base.has_events:
                self.session.post(lock.forward_events)  # they may have come just before the grant

    # --- read by the owner ----------------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant | None:
        """Its grant, once it has the lock."""
        outcome = self._outcomes.get(self.lock)
        return outcome if isinstance(outcome, Grant) else None

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for its outcome; from any thread."""
        return self.waits and not self.gone and self._on_outcome is not None

    @property
    def description(self) -> Mapping[str, Any]:
        """The fields of the znode's payload while it has the lock."""
        return description(self._pid, self.caller.what, self.caller.thread, self.caller.about)

    @property
    def placed(self) -> bool:
        """Whether the position of this process in ZooKeeper's queue is known, or was before it queued again."""
        lock = self.lock
        return self._was_placed or (lock is not None and (lock.base is not None or lock.contender.placed))

    @property
    def ahead(self) -> Payload | None:
        """The contender just ahead, if it is known; None once it has the lock."""
        if self.lock is None or self.grant is not None:
            return None
        first = self.lock.first
        if self.lock.base is None or first is None or first is self:
            return self.lock.contender.ahead
        caller, host = first.caller, socket.gethostname()
        return Payload(
            guid="",
            host=host,
            pid=os.getpid(),
            thread=caller.thread,
            what=caller.what,
            since="",
            template="",
            about=caller.about,
        )

    @property
    def guid(self) -> str:
        """The guid of the znode of this process; empty if it has none."""
        return "" if self.lock is None else self.lock.contender.guid

    @property
    def operator(self) -> OperatorHold | None:
        """An operator hold ahead, if one is known."""
        return None if self.lock is None else self.lock.contender.operator

    @property
    def in_local_queue(self) -> bool:
        """Whether many other callers of this process wait."""
        return self.lock is not None and self.lock.contender.in_local_queue

    # --- on the protocol's thread, unless `LingeringLocks.find` found a lock ------------------------------------------

    def queue_again(self) -> None:
        """Join the current lock, or create one."""
        self._locks.queue_again([self])

    @property
    def is_outside(self) -> bool:
        """Whether it wants the lock, and is in no queue."""
        return not self.gone and (self.lock is None or self.lock.ended)

    def join(self, lock: SharedLock) -> None:
        """Belong to this lock from now on."""
        self._was_placed = self.placed
        self.lock = lock
        self._outcomes = {}  # last, so that no outcome of an earlier lock gets in

    def is_waiting(self, lock: SharedLock) -> bool:
        """Return whether it still waits for this lock."""
        return not self.gone and self.lock is lock and self._outcomes.get(lock) is None

    def is_granted(self, lock: SharedLock) -> bool:
        """Return whether it has the lock. If not, it does not get it from this object any more."""
        return self.lock is lock and isinstance(self._outcomes.setdefault(lock, None), Grant) and not self.gone

    def on_no_session(self) -> None:
        """Give up if there is still no connection; those that came before the outage wait on."""
        lock = self.lock
        if lock is not None and self.is_waiting(lock) and not self.session.connected:
            why = self.session.explain(self.session.options.connect_timeout)
            self.conclude(lock, ZooKeeperUnavailable(why, lock=self.spec.key))

    def wait_or_conclude_busy(self, lock: SharedLock) -> None:
        """Wait, unless the owner does not, or too many of this process wait already."""
        if lock in self._outcomes or lock.ended:
            return
        busy = Busy(max(0, len(lock.queue) - 2) if self.waits else None)  # without itself, and the first
        if self.is_refused(busy):
            self.conclude(lock, busy)
        else:
            self.report_queued()

    def is_refused(self, outcome: Outcome) -> bool:
        """Return True if this owner must accept the shared contender's refusal."""
        if not isinstance(outcome, Busy) or not self.waits:
            return True
        waiters, most = outcome.waiters, self.spec.max_waiters
        return waiters is not None and most is not None and waiters >= most

    def report_queued(self) -> None:
        """Tell the owner that it has to wait."""
        on_queued, self.on_queued = self.on_queued, None
        if on_queued is not None:
            on_queued()

    def conclude(self, lock: SharedLock, outcome: Outcome) -> None:
        """End the wait with this outcome, unless the owner has the lock."""
        outcomes, on_outcome = self._outcomes, self._on_outcome
        if self.lock is lock and outcomes.setdefault(lock, outcome) is outcome and on_outcome is not None:
            self.gone = True
            lock.remove(self)
            on_outcome(outcome)


class SharedLock(GrantObserver):
    """
    The owners that wait for one contender of this process, and the hand-over of its lock among them.

    All methods here run on any thread. `locks.lingering` has those of the protocol's thread.
    """

    contender: Contender

    def __init__(self, locks: SharedLocks, founder: LocalWaiter) -> None:
        self.queue: deque[LocalWaiter | None] = deque()  # None: the protocol's thread, to end an idle lock
        self.ended = False  # written by the first in the queue, if the lock is here
        self.base: Grant | None = None  # the contender's; None while this process waits for the lock
        self.has_other_waiters: bool | None = None  # whether another process waits for the lock; None: not known yet
        self.idle_since = clock.now()
        self.session = founder.session
        self.spec = founder.spec
        self._locks = locks
        self._linger = founder.spec.linger
        self._checks_at = math.inf  # on clock.now(): when the protocol's thread next checks for how long it was idle
        self._last = founder  # the last waiter that had the lock

    def append(self, waiter: LocalWaiter) -> None:
        """Append a waiter; it has the lock at once if it is the first."""
        waiter.join(self)
        self.queue.append(waiter)
        if waiter.gone:
            self.remove(waiter)
        elif self.ended:
            self.session.post(waiter.queue_again)
        else:
            self.grant_first()

    def remove(self, waiter: LocalWaiter) -> None:
        """Remove a waiter, and grant the lock to the first one then. It is idempotent."""
        self._linger, self.idle_since = waiter.spec.linger, clock.now()
        if waiter.grant is not None:
            self._last = waiter
        try:
            self.queue.remove(waiter)
        except ValueError:
            pass
        self.grant_first()
        if self.first is None:  # no waiter is first; the queue is empty, or the protocol's thread is the first
            if self.base is None or self.has_other_waiters:
                self.session.post(self.end_if_idle)
            elif self.idle_since + self._linger < self._checks_at:  # an earlier owner had a longer `linger`
                self.session.post(self.check_idle)

    def grant_first(self) -> None:
        """Grant the lock to the first in the queue, if the lock is here."""
        first = self.first  # read before `ended`: the one that ends this sets that before it leaves the queue
        if first is not None and self.base is not None and not self.ended:
            first.grant_now(self)

    @property
    def first(self) -> LocalWaiter | None:
        """The waiter that has the lock, or will have it next."""
        try:
            return self.queue[0]
        except IndexError:
            return None

    def new_grant(self, caller: Caller) -> Grant | None:
        """Return a grant for this caller; None if the lock may be lost."""
        return None if self.base is None or self.may_be_lost else LocalGrant(self.base, caller)

    @property
    def may_be_lost(self) -> bool:
        """Whether it is uncertain that this process has the lock."""
        base = self.base
        return base is None or self.session.suspect or base.why_invalid() is not None

    def ends_on_release(self, spec: QueueSpec, grant: Grant) -> bool:
        """Return whether the lock leaves this process when the owner with this grant releases it."""
        base = self.base
        if base is None or base.has_events or base.node_gone or self.session.closing:
            return True  # the lease is not looked at: `new_grant` does that for the next owner
        if grant.lost_reason is not None or grant.overdue or grant.kind is not spec.kind:
            return True
        if len(self.queue) == 1 and (self.has_other_waiters or self._locks.are_too_many):
            return True
        return self.has_other_waiters is not False and clock.now() - base.since >= spec.linger

    # --- on the protocol's thread, see `LingeringLock` --------------------------------------------------------------

    def end(self, done: Callable[[bool], object] | None = None) -> None:
        raise NotImplementedError

    def end_if_idle(self) -> None:
        raise NotImplementedError

    def check_idle(self) -> None:
        raise NotImplementedError

    def publish_owner(self, waiter: LocalWaiter) -> None:
        raise NotImplementedError

    def forward_events(self) -> None:
        raise NotImplementedError


class SharedLocks:
    """The shared locks of one session, as their waiters use them; see `LingeringLocks`."""

    session: Session

    @property
    def are_too_many(self) -> bool:
        raise NotImplementedError

    def find(self, spec: QueueSpec) -> SharedLock | None:
        raise NotImplementedError

    def queue_again(self, waiters: list[LocalWaiter]) -> None:
        raise NotImplementedError


def description(
    pid: int, what: str, thread: str = "", about: Mapping[str, str] = MappingProxyType({}), idle: str = ""
) -> Mapping[str, Any]:
    """Return the fields of a payload that change from owner to owner."""
    return {"pid": pid, "what": what, "thread": thread, "about": about, "idle": idle, "waited": 0}
