"""One message of a worker that waits for its locks, in the worker's main process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from django_zklock import exceptions, signals
from django_zklock.contrib.celery.context import TaskContext
from django_zklock.contrib.celery.introspection import work_of_message
from django_zklock.contrib.celery.line import borrowed
from django_zklock.contrib.celery.line.loops import EventLoop
from django_zklock.contrib.celery.redelivery import copy_of
from django_zklock.decorators.locked import LockedCall
from django_zklock.exceptions import LockBusy, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import Routine
from django_zklock.locks import notify
from django_zklock.locks.base import Entry, take
from django_zklock.locks.held import HeldLock
from django_zklock.locks.multi import keys_of, locks_of
from django_zklock.locks.queue_reader import read_queue
from django_zklock.zk import process

RETRY_AFTER: Final = 1.0  # seconds until a task that waits without limit asks again for ZooKeeper

logger = logging.getLogger("django_zklock.celery")


class MessageContext(TaskContext):
    """The context of a decorated function that a worker has a message for; only its defaults and the work are used."""

    on_conflict = "wait"

    def __init__(self, request: Any) -> None:
        retries = request.request_dict.get("retries") or 0
        work = work_of_message(request.task.name or "", request.id, request.delivery_info, retries)
        self.what, self.about = work.what, work.about


class MessageWaiter:
    """Waits for one value on behalf of a message; the worker's event loop continues the routine."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self.value: Any = None

    def set(self, value: Any) -> bool:
        """Set the value; on the protocol's thread."""
        self.value = value
        self._wake()
        return True

    def outcome(self, timeout: float | None) -> Routine[Any]:
        """Return the value, or None if there is none within `timeout` seconds; yields the seconds that are left."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.value is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            yield left
        return self.value


class WaitingTask:
    """
    One message that waits for its locks.

    Its steps run on the worker's event loop. The message may be lost meanwhile, with the connection to the broker: then
    the place is kept for a while, for the copy that the broker delivers.
    """

    def __init__(
        self,
        request: Any,
        call: LockedCall,
        loop: EventLoop,
        go_on: Callable[[WaitingTask], object],
        *,
        longest: float | None,
    ) -> None:
        self.request: Any = request  # None without a message
        self.locks = call.lock
        self.since = time.time()
        self.granted_at = 0.0  # on time.monotonic()
        self.entry = Entry(Owner("message", self))
        self.facts: dict[str, Any] = {}  # for the process that runs the task
        self.prefetch = 0  # by how much the prefetch count is higher for this
        self.over = False  # it waits no more
        self.mutex = threading.RLock()  # its steps may run in a thread of timers
        self._id = request.id
        self._loop = loop
        self._go_on = go_on  # called when it waits no more: it has its locks, or gets none
        self._timeout = call.timeout
        self._until = None if longest is None else time.monotonic() + longest
        self._routine = self._wait(redelivered=bool(request.delivery_info.get("redelivered")))
        self._timer: Any = None

    def _wait(self, *, redelivered: bool) -> Routine[None]:
        while True:
            try:
                if redelivered and (yield from self._has_copy()):
                    return  # it must not wait behind the other copy; the pool process decides what it does
                yield from take(self.locks, self.entry, self._waiter)
                return
            except ZooKeeperUnavailable:
                if self._timeout is not None:
                    raise
                self.entry.acquisitions.clear()
            yield RETRY_AFTER  # it waits for ZooKeeper, too

    def _has_copy(self) -> Routine[bool]:
        self.facts["looked"] = True
        for lock in locks_of(self.locks):
            session, spec = process.current(), lock.spec
            queue = yield from read_queue(session, spec.key, spec.parent, self._waiter())
            if copy_of(self._id, queue) is not None:
                return True
        return False

    def _waiter(self) -> Any:
        return MessageWaiter(lambda: self._loop.call_soon(self.step))

    def step(self) -> None:
        """Wait, as far as that goes now."""
        with self.mutex:
            if self.over:
                return
            self._cancel_timer()
            try:
                left = next(self._routine)
            except StopIteration:
                self._end()
            except ZkLockError as error:
                self._end_with(error)
            except Exception:
                logger.exception("task %s cannot wait for its lock here", self._id)
                self._end()
            else:
                self._sleep(left)

    def _sleep(self, left: float | None) -> None:
        if self._until is not None:
            most = self._until - time.monotonic()
            if most <= 0:
                self.send_again("the broker would deliver the message again soon")
                return
            left = most if left is None else min(left, most)
        if left is not None:
            self._timer = self._loop.call_later(left, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None  # the timer of gevent is a greenlet: this one
        self.step()

    def send_again(self, why: str) -> None:
        """Have the task sent again instead."""
        self.leave()
        key = keys_of(self.locks)[0]
        self.facts["again"] = True
        self._end_with(LockBusy(f"The lock {key!r} was not free, and {why}.", lock=key))

    def _end_with(self, error: ZkLockError) -> None:
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == exceptions.__name__)
        self.facts |= {"error": public.__name__, "text": str(error), "lock": error.lock}
        self._end()

    def _end(self) -> None:
        self.over = True
        self.granted_at = time.monotonic()
        self._go_on(self)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._loop.cancel(timer)

    def leave(self) -> None:
        """Give up the place, and what was granted; doing it again changes nothing."""
        with self.mutex:
            self._cancel_timer()
            self.over = True
            self._routine.close()
            self.entry.undo()

    def hand_over(self, owner: Owner) -> list[HeldLock]:
        """Give the locks to a thread or greenlet of this process, which takes them once more; called there."""
        parts = []
        if all(held.grant.why_invalid() is None for held in self.entry.held):
            for held in self.entry.held:
                part = borrowed.listed(HeldLock(held.contender, held.grant, owner, held.policy))
                held.grant.begun = True
                notify.send(part, signals.lock_acquired, waited=time.time() - self.since)
                parts.append(part)
        self.entry.undo()
        return parts
