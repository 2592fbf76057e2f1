"""
The messages whose tasks need a lock, in the worker's main process, until they go to the pool.

`WaitingTask` is one of them, from the moment that it asks for its lock. `WaitingTasks` are those of a worker that wait
without a slot, and what Celery counts for them.
"""

from __future__ import annotations

import enum
import functools
import math
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from celery.worker import state

from django_zklock import exceptions, signals
from django_zklock.contrib.celery.messages import (
    CONFLICTS_HEADER,
    LONGEST_DELAY,
    WAITED_HEADER,
    count_in,
    delay_before,
    headers_of,
    received_at,
)
from django_zklock.core import clock
from django_zklock.core.execution.owner import Owner
from django_zklock.core.execution.waiters import Routine
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.zk import process
from django_zklock.decorators.context import FunctionContext
from django_zklock.exceptions import LockBusy, ZkLockError, ZooKeeperUnavailable

RETRY_AFTER: Final = 1.0  # seconds until a task that waits without limit asks again for ZooKeeper


class MessageWaiter:
    """Waits for one value on behalf of a task; the dispatcher's loop continues the routine of the task."""

    def __init__(self, task: WaitingTask) -> None:
        self._task = task
        self.value: Any = None

    def set(self, value: Any) -> bool:
        """Set the value; on the protocol's thread."""
        self.value = value
        self._task.dispatcher.is_answered |= not isinstance(value, ZkLockError)
        self._task.dispatcher.schedule(self._task, WaitingTask.step)
        return True

    def on_queued(self) -> None:
        """Pass the slot of the task on, because it has to wait; on the protocol's thread."""
        self._task.dispatcher.is_answered = True
        self._task.dispatcher.schedule(self._task, self._task.dispatcher.pass_slot_on)

    def outcome(self, timeout: float | None) -> Routine[Any]:
        """Return the value, or None if there is none within `timeout` seconds; yields the remaining seconds."""
        self._task.waiter = self
        until = math.inf if timeout is None else clock.now() + timeout
        while self.value is None and (remaining := until - clock.now()) > 0:
            yield remaining
        return self.value


class State(enum.Enum):
    """Say what a `WaitingTask` waits for."""

    QUEUED = "a slot, to ask for its locks"
    ASKING = "the answer whether its locks are free; it has a slot"
    WAITING = "its locks, without a slot"
    ENDED = "the pool, with its locks or with an error"


class WaitingTask:
    """One message whose task needs a lock. All methods run on the dispatcher's loop unless they say otherwise."""

    def __init__(self, request: Any, call: FunctionContext, dispatcher: Any) -> None:
        self.dispatcher = dispatcher  # a `Dispatcher`, whose module imports this one
        self.request = request
        self.locks = call.lock
        self.keys = tuple(spec.key for spec in call.lock.specs)
        self.acquisition = Acquisition(Owner("message", self))
        self.since = time.time()  # when it first asked for its lock
        self.state = State.QUEUED
        self._asked_at: float | None = None  # on clock.now(); None: it does not ask
        self.error: ZkLockError | None = None  # for the process that runs the task, with `resend`
        self.resend: dict[str, Any] = {}
        self._timeout: float | None = call.options["timeout"]
        headers = headers_of(request)
        self._waited = count_in(headers, WAITED_HEADER) / 1000  # seconds of earlier waits, before it gave its lock back
        conflicts = count_in(headers, CONFLICTS_HEADER)
        self._until: float = received_at(request) + dispatcher.longest_wait  # on clock.now()
        self._pause_until = 0.0  # on time.time()
        if request.eta is not None:
            self._pause_until = request.eta.timestamp() + delay_before(request.task, conflicts)
        self._routine: Routine[None] | None = None
        self.waiter: MessageWaiter | None = None  # the last one that it waited for
        self.timer: Any = None  # an entry of the loop

    def ask(self) -> None:
        """Ask for the lock."""
        self._asked_at = clock.now()
        if not self._waited:
            self.since = time.time()
        self._routine = self._acquire()
        self.step()

    def _acquire(self) -> Routine[None]:
        while True:
            try:
                yield from self.acquisition.acquire(self.locks.specs, self._remaining, self._new_waiter)
                return
            except ZooKeeperUnavailable:
                if self._timeout is not None:
                    raise
            yield RETRY_AFTER  # a task without a timeout waits for ZooKeeper, too

    @property
    def _remaining(self) -> float | None:
        """The seconds that remain of the timeout of its locks."""
        timeout = self.locks.specs[-1].timeout
        return None if timeout is None else max(timeout - self._waited, 0.001)  # 0 would mean: do not wait at all

    @property
    def seconds_asking(self) -> float:
        """How long ago it has asked for its locks; 0 if it does not ask."""
        return 0.0 if self._asked_at is None else clock.now() - self._asked_at

    @property
    def milliseconds_waited(self) -> int:
        """How long it has waited for its lock, as the next wait reads it from `WAITED_HEADER`."""
        return int((self._waited + self.seconds_asking) * 1000)

    def _new_waiter(self) -> Any:
        return MessageWaiter(self)

    def step(self) -> None:
        """Continue the wait as far as possible now."""
        if self.state is State.ENDED or self._routine is None:
            return
        self._cancel_timer()
        try:
            remaining = next(self._routine)
        except StopIteration:
            self.state = State.ENDED
            self.dispatcher.end_wait(self)
        except ZkLockError as error:
            self._end_with(error)
        else:
            if remaining < math.inf:
                # A weak reference, because kombu keeps even a cancelled timer until it is due.
                self.timer = self.dispatcher.loop.call_later(remaining, self._on_timer, weakref.ref(self))

    @staticmethod
    def _on_timer(reference: weakref.ref[WaitingTask]) -> None:
        task = reference()
        if task is not None:
            task.timer = None  # the timer of gevent is a greenlet: this one
            task.dispatcher.schedule(task, WaitingTask.step)

    @property
    def has_value(self) -> bool:
        """Whether the value that it waits for is there."""
        return self.waiter is not None and self.waiter.value is not None

    @property
    def is_granted(self) -> bool:
        """Whether it has its locks."""
        return bool(self.acquisition.holds)

    @property
    def has_waited_too_long(self) -> bool:
        """Whether the broker would deliver the message again soon."""
        return clock.now() > self._until

    @property
    def is_pause_over(self) -> bool:
        """
        Whether the task may be sent again if others need its place.

        The pause began when it was sent, and grows with each conflict, as if it were spent without the lock. So of many
        tasks that have no place, most have no pause left when they come, and take no place from tasks without a lock.
        """
        return time.time() > self._pause_until

    def send_again(self, why: str, longest: float = LONGEST_DELAY) -> None:
        """End the wait: the pool process sends the task again, with a delay of at most `longest` seconds."""
        if self.state is not State.ENDED:
            self.resend = {"longest": longest, WAITED_HEADER: self.milliseconds_waited}
            self._end_with(LockBusy(f"The lock {self.keys[0]!r} was not free, and {why}.", lock=self.keys[0]))

    def _end_with(self, error: ZkLockError) -> None:
        public_class = next(kind for kind in type(error).__mro__ if kind.__module__ == exceptions.__name__)
        self.error = public_class(str(error), lock=error.lock)  # of the others, not all can be pickled
        self.cancel()
        self.state = State.ENDED
        self.dispatcher.end_wait(self)

    def _cancel_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            self.dispatcher.loop.cancel(timer)

    def cancel(self) -> None:
        """Leave the queue, or give the locks back; the task may ask again. The call is idempotent."""
        self._cancel_timer()
        self._waited += self.seconds_asking
        self._asked_at = self.waiter = None
        self.state = State.QUEUED
        if self._routine is not None:
            self._routine.close()
        self._routine = None
        self.acquisition.release()


class WaitingTasks:
    """
    The tasks that wait without a slot.

    Celery counts each of them as a message with an ETA: neither as prefetched, nor for autoscale. On quorum queues, the
    broker counts it as prefetched all the same. `worker_eta_task_limit` does not count it.
    """

    def __init__(self, consumer: Any, sender: type) -> None:
        self._consumer = consumer
        self._sender = sender  # of the signal
        self._eta_limit: int | None = consumer.app.conf.get("worker_eta_task_limit")  # Celery 5.6 and later
        self._tasks: dict[WaitingTask, None] = {}  # in the order in which they came
        self._keys: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[WaitingTask]:
        return iter(list(self._tasks))

    def __contains__(self, task: WaitingTask) -> bool:
        return task in self._tasks

    def share_key_with(self, task: WaitingTask) -> bool:
        """Return whether another task waits here for a lock that this task needs."""
        return any(self._keys[key] for key in task.keys)

    def add(self, task: WaitingTask) -> None:
        """Add a task that has no slot."""
        self._tasks[task] = None
        self._raise_limit()
        qos = self._consumer.qos
        qos.increment_eventually()
        if self._consumer.hub is None and self._consumer.connection.transport.driver_type != "amqp":
            qos.update()  # the consumer may wait for messages until this; RabbitMQ's socket is in use by then
        self._keys.update(task.keys)
        state.reserved_requests.discard(task.request)
        self._send_count()

    def remove(self, task: WaitingTask) -> None:
        """Count a task as prefetched again, if it waits here."""
        if task in self._tasks:
            state.task_reserved(task.request)
            self._forget(task)
            self._send_count()
            for callback in self._consumer.on_task_message:
                callback(task.request)  # now the pool may have to grow

    def _forget(self, task: WaitingTask) -> None:
        del self._tasks[task]
        self._keys.subtract(task.keys)
        self._keys += Counter()  # without those that are 0
        qos = self._consumer.qos
        # After a reconnect, the worker may have a new count, without this task.
        if qos.value > self._consumer.initial_prefetch_count:
            qos.decrement_eventually()
        self._raise_limit()

    def _raise_limit(self) -> None:
        """Raise the limit for messages with an ETA by these tasks, which have a limit of their own."""
        if self._eta_limit is not None:
            limit = max(self._eta_limit, self._consumer.initial_prefetch_count)
            self._consumer.qos.max_prefetch = limit + len(self._tasks)

    def clear(self) -> None:
        """Forget all tasks: the connection to the broker is lost, and with it the count."""
        if self._tasks:
            self._tasks.clear()
            self._keys.clear()
            self._send_count()

    def check(self, tasks: Iterable[WaitingTask]) -> None:
        """
        Forget all but these tasks, as a step may have failed.

        Raise the prefetch count if Celery has reset it after a reconnect, without the tasks that wait. At
        `worker_eta_task_limit`, Celery lowers it after tasks with an ETA for which it was not raised.
        """
        for task in self._tasks.keys() - set(tasks):
            self._forget(task)
        qos = self._consumer.qos
        missing = self._consumer.initial_prefetch_count + len(self) - qos.value
        if qos.value and missing > 0:
            qos.increment_eventually(missing)

    def _send_count(self) -> None:
        """Send how many tasks wait, if there are receivers."""
        if signals.waiting_tasks_changed.receivers:
            send = functools.partial(signals.waiting_tasks_changed.send_robust, self._sender, waiting=len(self))
            process.current().dispatch(send)
