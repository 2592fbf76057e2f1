"""One message of a worker that waits for its locks, in the worker's main process."""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from django_zklock import clock, exceptions
from django_zklock.contrib.celery.introspection import work_of_message
from django_zklock.contrib.celery.line.loops import EventLoop
from django_zklock.contrib.celery.line.result import own_grants, take_over
from django_zklock.contrib.celery.redelivery import COPY_HEADER, copy_of
from django_zklock.decorators.context import FunctionContext
from django_zklock.decorators.locked import LockedCall
from django_zklock.exceptions import LockBusy, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution import trace
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import Routine
from django_zklock.locks.base import Entry, take
from django_zklock.locks.held import HeldLock
from django_zklock.locks.multi import keys_of, locks_of
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.queue_reader import read_queue
from django_zklock.zk import process

RETRY_AFTER: Final = 1.0  # seconds until a task that waits without limit asks again for ZooKeeper
SLOT_WITHIN: Final = 1.0  # seconds for which a task may have its locks and no process

logger = logging.getLogger("django_zklock.celery")


class MessageContext(FunctionContext):
    """The context of a decorated function that a worker has a message for; only its defaults and the work are used."""

    timeout = 0.0
    on_conflict = "wait"
    on_timeout = "retry"

    def __init__(self, request: Any) -> None:
        retries = request.request_dict.get("retries") or 0
        work = work_of_message(request.task.name or "", request.id, request.delivery_info, retries)
        super().__init__(work.what)
        self.about = dict(work.about)
        if trace.items is not None:
            self.about |= trace.of_header(headers_of(request).get("traceparent"))


class MessageWaiter:
    """Waits for one value on behalf of a message; the worker's event loop continues the routine."""

    def __init__(self, on_value: Callable[[Any], object]) -> None:
        self._on_value = on_value
        self.value: Any = None

    def set(self, value: Any) -> bool:
        """Set the value; on the protocol's thread."""
        self.value = value
        self._on_value(value)
        return True

    def outcome(self, timeout: float | None) -> Routine[Any]:
        """Return the value, or None if there is none within `timeout` seconds; yields the seconds that are left."""
        until = None if timeout is None else clock.now() + timeout
        while self.value is None:
            left = None if until is None else until - clock.now()
            if left is not None and left <= 0:
                break
            yield left
        return self.value


class WaitingTask:
    """
    One message that waits for its locks.

    Its steps run on the worker's event loop. The message may be lost meanwhile, with the connection to the broker: then
    the place is kept for a while, for the copy that the broker delivers.

    A grant that no process begins to use within a second is given back: the work that fills the pool may need it. The
    protocol's thread sees to that, since the event loop may be at work itself.
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
        self.granted_at = 0.0  # when it went to the pool, on clock.now()
        self.entry = Entry(Owner("message", self))
        self.facts: dict[str, Any] = {}  # for the process that runs the task
        self.prefetch = 0  # by how much the prefetch count is higher for this
        self.over = False  # it waits no more
        self.mutex = threading.RLock()  # its steps may run in a thread of timers
        self._id = request.id
        self._loop = loop
        self._go_on = go_on  # called when its wait is over: it has its locks, or gets none
        self._timeout = call.timeout
        self._until = None if longest is None else received_at(request) + longest
        self._routine = self._wait(looks=self._may_have_copy(request))
        self._timer: Any = None

    def _may_have_copy(self, request: Any) -> bool:
        """Return whether to look for a copy of the task in the queue; a shared lock would be granted to both."""
        redelivered = request.delivery_info.get("redelivered") or COPY_HEADER in headers_of(request)
        return bool(redelivered) or any(each.spec.shares for each in locks_of(self.locks))

    def _wait(self, *, looks: bool) -> Routine[None]:
        while True:
            try:
                if looks and (yield from self._has_copy()):
                    return  # it must not wait behind the other copy; the pool process decides what it does
                yield from take(self.locks, self.entry, self._waiter)
                return
            except ZooKeeperUnavailable:
                if self._timeout is not None:
                    raise
                self.entry.acquisitions.clear()
            yield RETRY_AFTER  # it waits for ZooKeeper, too

    def _has_copy(self) -> Routine[bool]:
        for lock in locks_of(self.locks):
            session, spec = process.current(), lock.spec
            queue = yield from read_queue(session, spec.key, spec.parent, self._waiter())
            if copy_of(self._id, queue) is not None:
                return True
        self.facts["looked"] = True
        return False

    def _waiter(self) -> Any:
        return MessageWaiter(self._on_value)

    def _on_value(self, value: object) -> None:
        if isinstance(value, Grant) and len(self.entry.acquisitions) == len(locks_of(self.locks)):
            self.limit_slot()
        self._loop.call_soon(self.step)

    def limit_slot(self) -> None:
        """Give the locks back if no process begins to use them in time; from any thread."""
        session = process.current()
        session.post(session.loop.call_later, SLOT_WITHIN, self._give_back)

    def _give_back(self) -> None:
        if own_grants.pop(id(self), None) is not None:
            self.leave()
            return
        with self.mutex:
            if self.over or self.request is None:
                return
            self.facts["late"] = True
            self.leave()
        self._loop.call_soon(functools.partial(self._go_on, self))

    def step(self) -> None:
        """Wait, as far as that goes now."""
        with self.mutex:
            if self.over:
                return
            self._cancel_timer()
            try:
                left = next(self._routine)
            except StopIteration:
                self.over = True
            except ZkLockError as error:
                self._end_with(error)
            except Exception:
                logger.exception("task %s cannot wait for its lock here", self._id)
                self.leave()
            else:
                if left is not None:
                    # kombu's timers stay until they are due, also those that were cancelled.
                    self._timer = self._loop.call_later(left, functools.partial(_run_timer, weakref.ref(self)))
        if self.over:
            self._go_on(self)

    def on_timer(self) -> None:
        """The time is over that the routine wanted to wait."""
        self._timer = None  # the timer of gevent is a greenlet: this one
        self.step()

    def end_if_too_long(self) -> None:
        """Have the task sent again if the broker would deliver its message again soon."""
        if self._until is not None and clock.now() > self._until:
            self.send_again("the broker would deliver the message again soon")
            self._go_on(self)

    def send_again(self, why: str) -> None:
        """Have the pool process send the task again; the caller has it go there."""
        with self.mutex:
            if not self.over:
                key = keys_of(self.locks)[0]
                self.facts["again"] = True
                self._end_with(LockBusy(f"The lock {key!r} was not free, and {why}.", lock=key))

    def _end_with(self, error: ZkLockError) -> None:
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == exceptions.__name__)
        self.facts |= {"error": public.__name__, "text": str(error), "lock": error.lock}
        self.leave()

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
            self.entry.acquisitions.clear()

    def hand_over(self) -> list[HeldLock]:
        """Give the locks to a thread or greenlet of this process, which takes them once more; called there."""
        taken = []
        if all(held.grant.why_invalid() is None for held in self.entry.held):
            waited = time.time() - self.since
            for acquisition in self.entry.acquisitions:
                held = acquisition.held
                assert held is not None
                taken.append(take_over(held.contender, held.grant, acquisition.spec, waited))
        self.entry.undo()
        return taken


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers of a message, those of the sender too."""
    return {**request.request_dict, **(request.request_dict.get("headers") or {})}


def _run_timer(reference: weakref.ref[WaitingTask]) -> None:
    task = reference()
    if task is not None:
        task.on_timer()


_RECEIVED: Final = "_zklock_received"  # attribute of a request


def note_received(*, request: Any, **kwargs: object) -> None:
    """Note when a message came: it is unacknowledged from then on, also before its ETA."""
    setattr(request, _RECEIVED, clock.now())


def received_at(request: Any) -> float:
    """Return when a message came, on `clock.now()`."""
    found: float = getattr(request, _RECEIVED, 0.0) or clock.now()
    return found
