"""
With `linger`, this process keeps a lock after a release, so that its next owner gets it without ZooKeeper.

One contender is in ZooKeeper's queue for all owners of this process. They wait in a queue of this process, see
`locks.local_waiters`. This module is what the protocol's thread does: it waits for ZooKeeper, ends an idle lock, looks
for waiters of other processes, writes the present owner into the znode, and forwards events to the owner's grant. If
there is any doubt about the contender's grant when an owner gets the lock, the lingering lock ends, and all waiters
queue again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from django_zklock import clock
from django_zklock.exceptions import UnreadableQueue, ZooKeeperUnavailable
from django_zklock.locks.local_waiters import LocalWaiter, SharedLock, SharedLocks, description
from django_zklock.locks.protocol.contender import Contender, Outcome
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.spec import QueueSpec
from django_zklock.queue import order
from django_zklock.queue.nodes import Kind
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk.client import Watch
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import NamesReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session, SessionObserver

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


class LingeringLock(SharedLock):
    """A lock that this process shares among its owners, until it passes the lock on; and the wait before it."""

    def __init__(self, locks: LingeringLocks, founder: LocalWaiter) -> None:
        super().__init__(locks, founder)
        self.contender = Contender(
            founder.session,
            founder.spec,
            founder.caller._replace(owner=0),
            self._on_outcome,
            waits=founder.waits,
        )
        self.contender.on_queued = founder.report_queued
        self.contender.placed = founder.waits and founder.placed  # then it waits as long, and is not refused any more
        self._locks: LingeringLocks = locks
        # Protocol's thread only.
        self._has_left = False
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        # In the znode: since when the lock is idle, or the fields of the owner.
        self._published: float | Mapping[str, Any] = founder.description
        self._stale_since: float | None = None  # when a check found that the znode is wrong

    def _on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant):
            outcome.is_quiet = True
            self.base = outcome
            outcome.attach(self)
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

    def end(self, done: Callable[[bool], object] | None = None) -> None:
        """Leave ZooKeeper's queue, unless an owner is at work: then its release does that. All waiters queue again."""
        if not any(waiter is not None and waiter.is_granted(self) for waiter in list(self.queue)):
            self.contender.abandon(done)
        if self._has_left:
            return
        self._has_left = True
        self._locks.forget(self)
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._locks.queue_again(self.waiting())

    def waiting(self) -> list[LocalWaiter]:
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        now, first = clock.now(), self.first
        grant = None if first is None else first.grant
        since = self.idle_since if first is None else now if grant is None else grant.since
        present, in_turn = (first or self._last).description, description(os.getpid(), SEVERAL)
        if now - since >= PUBLISH_AFTER:
            state: float | Mapping[str, Any] = self.idle_since
            if grant is not None:
                state = {**present, "waited": self.contender.waited(grant.since)}
            if state != self._published:
                self._publish(state)
        elif self._published in (present, in_turn):
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now
        elif now - self._stale_since >= PUBLISH_AFTER:
            is_same = not isinstance(self._published, float) and {**self._published, "waited": 0} == present
            self._publish(present if is_same else in_turn)

    def publish_owner(self, waiter: LocalWaiter) -> None:
        """Show others in the queue this owner, if it has the lock."""
        if self.first is waiter:
            self._publish(waiter.description)

    def _publish(self, state: float | Mapping[str, Any]) -> None:
        def on_written() -> None:
            self._published, self._stale_since = state, None

        if not isinstance(state, float):
            fields = state
        else:
            idle_since = datetime.now(timezone.utc) - timedelta(seconds=clock.now() - state)
            fields = description(os.getpid(), KEPT, idle=idle_since.isoformat(timespec="milliseconds"))
        self.contender.describe(fields, on_written)

    def _watch_others(self) -> None:
        self._unwatch()
        gateway = self.session.attached(Registry).gateway
        self._watch = gateway.children(self.spec.parent, self._on_names, self._on_children_changed)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _on_children_changed(self, deleted: bool) -> None:
        self._watch = None
        if not self.ended and not self.has_other_waiters:
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
        base, first = self.base, self.first
        grant = first.grant if first is not None else None
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
            if grant.on_release_request is not None:
                grant.on_release_request(grant, request)


class LingeringLocks(SharedLocks, SessionObserver):
    """The lingering locks of one session: one object for each lock at a time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._locks: dict[tuple[str, Kind, str | None], LingeringLock] = {}  # written on the protocol's thread

    def find(self, spec: QueueSpec) -> LingeringLock | None:
        """Return the current lingering lock, or None; from any thread."""
        lock = self._locks.get(_key_of(spec))
        return None if lock is None or lock.ended else lock

    def queue_again(self, waiters: list[LocalWaiter]) -> None:
        """Append these waiters for one lock, in their order, to its current lingering lock, or to a new one."""
        if not waiters:
            return
        spec = waiters[0].spec
        before = self._locks.get(_key_of(spec))
        if before is not None and before.ended:
            before.end()  # its waiters come first; perhaps these are among them
        waiters = [waiter for waiter in waiters if waiter.is_outside]
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

    def waiting(self) -> list[LocalWaiter]:
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
        why = "The ZooKeeper session of this process was closed."
        for lock in list(self._locks.values()):
            for waiter in lock.waiting():
                waiter.conclude(lock, ZooKeeperUnavailable(why, lock=waiter.spec.key))


def _copy(outcome: Outcome) -> Outcome:
    """Return an outcome for one waiter. An error that two threads raise would show the frames of both."""
    copied = copy.copy(outcome)
    if isinstance(copied, Exception) and isinstance(outcome, Exception):
        copied.__cause__ = outcome.__cause__
    return copied


def _key_of(spec: QueueSpec) -> tuple[str, Kind, str | None]:
    return spec.parent, spec.kind, spec.compat
