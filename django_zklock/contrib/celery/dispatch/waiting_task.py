"""One message whose task needs a lock, in the worker's main process, until it goes to the pool."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from django_zklock import clock, exceptions
from django_zklock.contrib.celery.dispatch.loops import EventLoop, run_logged
from django_zklock.contrib.celery.dispatch.result import take_over
from django_zklock.contrib.celery.introspection import work_of_message
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
from django_zklock.locks.queue_reader import read_queue
from django_zklock.zk import process

RETRY_AFTER: Final = 1.0  # seconds until a task that waits without limit asks again for ZooKeeper

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

    def __init__(self, on_value: Callable[[], object], on_queued: Callable[[], object]) -> None:
        self._on_value = on_value
        self.on_queued = on_queued
        self.value: Any = None

    def set(self, value: Any) -> bool:
        """Set the value; on the protocol's thread."""
        self.value = value
        self._on_value()
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
    One message whose task needs a lock.

    The message may be lost with the connection to the broker. Then the contender stays in the queue for a while, for
    the copy that the broker delivers. All runs on the dispatcher's loop, except for `leave` while there is no message.
    """

    def __init__(self, request: Any, call: LockedCall, *, longest: float | None) -> None:
        """Raises `InvalidLockName`."""
        self.request: Any = request  # None without a message
        self.locks = call.lock
        self.keys = keys_of(call.lock)
        self.entry = Entry(Owner("message", self))
        self.since = time.time()  # when it first asked for its lock
        self.asked_at: float | None = None  # on clock.now(), since it has had a slot for asking; None: it does not ask
        self.has_slot = False
        self.is_queued = False  # it waits for its lock without a slot
        self.is_over = False  # its wait has come to locks or an error
        self.payload: dict[str, Any] = {}  # for the process that runs the task
        self.prefetch = 0  # by how much the prefetch count is higher for this
        self._id = request.id
        self._timeout = call.timeout
        self._waited = 0.0  # seconds, before it gave its lock back
        self._until = None if longest is None else received_at(request) + longest
        redelivered = request.delivery_info.get("redelivered") or COPY_HEADER in headers_of(request)
        # A copy of the task must not wait behind this one, and a shared lock would be granted to both.
        self._checks_copies = bool(redelivered) or any(lock.spec.shares for lock in locks_of(self.locks))
        self._routine: Routine[None] | None = None
        self._timer: Any = None
        self._waits_for: MessageWaiter | None = None  # the last one

    def ask(
        self,
        loop: EventLoop,
        step: Callable[[WaitingTask], object],
        on_over: Callable[[WaitingTask], object],
        on_queued: Callable[[WaitingTask], object],
    ) -> None:
        """
        Ask for the lock. `step` is called to call `step`, and to catch what that raises.

        `on_over` is called when the wait is over, `on_queued` when it is clear that it is long.
        """
        self._loop, self._on_over = loop, on_over
        self._step_caught = functools.partial(step, self)
        self._on_queued = functools.partial(self._call_soon, functools.partial(on_queued, self))
        self.asked_at = clock.now()
        if not self._waited:
            self.since = time.time()
        self._routine = self._acquire()
        self.step()

    def _acquire(self) -> Routine[None]:
        while True:
            try:
                if self._checks_copies and (yield from self._has_copy()):
                    return  # it must not wait behind the other copy; the pool process decides what it does
                yield from take(self.locks, self.entry, self._waiter, waited=self._waited)
                return
            except ZooKeeperUnavailable:
                if self._timeout is not None:
                    raise
                self.entry.acquisitions.clear()
                self._on_queued()
            yield RETRY_AFTER  # it waits for ZooKeeper, too

    def _has_copy(self) -> Routine[bool]:
        for lock in locks_of(self.locks):
            queue = yield from read_queue(process.current(), lock.spec.key, lock.spec.parent, self._waiter())
            if copy_of(self._id, queue) is not None:
                return True
        self.payload["checked_copies"] = True
        return False

    def _waiter(self) -> Any:
        self._waits_for = MessageWaiter(functools.partial(self._call_soon, self._step_caught), self._on_queued)
        return self._waits_for

    def _call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` on the loop; on the protocol's thread, which would give up the lock if this raised."""
        run_logged(functools.partial(self._loop.call_soon, call))

    @property
    def has_value(self) -> bool:
        """Whether what it waits for has come, but `step` was not called yet."""
        return self._waits_for is not None and self._waits_for.value is not None

    def step(self) -> None:
        """Wait, as far as that goes now."""
        if self.is_over or self.request is None or self._routine is None:
            return
        self._cancel_timer()
        try:
            left = next(self._routine)
        except StopIteration:
            self.is_over = True
        except ZkLockError as error:
            self._end_with(error)
        except Exception:
            logger.exception("task %s cannot wait for its lock here", self._id)
            self.leave()
            self.is_over = True
        else:
            if left is not None:
                # kombu's timers stay until they are due, also those that were cancelled.
                self._timer = self._loop.call_later(left, functools.partial(_run_timer, weakref.ref(self)))
        if self.is_over:
            self._on_over(self)

    def on_timer(self) -> None:
        """The time is over that the routine wanted to wait."""
        self._timer = None  # the timer of gevent is a greenlet: this one
        self._step_caught()

    @property
    def is_granted(self) -> bool:
        """Whether it has its locks."""
        return bool(self.entry.held)

    @property
    def is_too_long(self) -> bool:
        """Whether the broker would deliver the message again soon."""
        return self._until is not None and clock.now() > self._until

    def send_again(self, why: str) -> None:
        """End the wait: the pool process sends the task again."""
        if not self.is_over:
            self.payload["resend"] = True
            self._end_with(LockBusy(f"The lock {self.keys[0]!r} was not free, and {why}.", lock=self.keys[0]))

    def _end_with(self, error: ZkLockError) -> None:
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == exceptions.__name__)
        own = [acquisition.contender.guid for acquisition in self.entry.acquisitions if acquisition.contender]
        self.payload |= {"error": public.__name__, "text": str(error), "lock": error.lock, "own": own}
        self.leave()
        self.is_over = True

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            run_logged(functools.partial(self._loop.cancel, timer))

    def leave(self) -> None:
        """Leave the queue, or give the locks back; the task may ask again. The call is idempotent."""
        self._cancel_timer()
        if self._routine is not None:
            self._routine.close()
            self._routine = None
        if self.asked_at is not None:
            self._waited += clock.now() - self.asked_at
            self.asked_at = None
        self.is_over = False
        self.entry.undo()
        self.entry.acquisitions.clear()

    def hand_over(self) -> list[HeldLock]:
        """Give the locks to a thread or greenlet of this process, which takes them once more; called there."""
        taken = []
        if all(held.grant.why_invalid() is None for held in self.entry.held):
            for acquisition in self.entry.acquisitions:
                held = acquisition.held
                assert held is not None
                taken.append(take_over(held.contender, held.grant, acquisition.spec, time.time() - self.since))
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
    received: float = getattr(request, _RECEIVED, 0.0) or clock.now()
    return received
