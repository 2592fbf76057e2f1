"""
The line of one worker: the messages that wait for a lock in its main process.

A message comes here when Celery would give it to the pool: after its ETA and its rate limit. It waits unacknowledged,
and does not count as prefetched. When its locks are granted, it goes to the pool. A task that gets no lock goes to the
pool, too, and ends there as one that has waited there would.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

import billiard
from celery.worker import state

from django_zklock.contrib.celery.introspection import arguments, locked_of
from django_zklock.contrib.celery.line import borrowed
from django_zklock.contrib.celery.line.at_work import PoolGrants, has_ended
from django_zklock.contrib.celery.line.borrowed import GRANTS
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.contrib.celery.line.waiting import MessageContext, WaitingTask
from django_zklock.decorators.locked import LockedCall, LockedFunction

logger = logging.getLogger("django_zklock.celery")

MOST_WAITING: Final = 1000
"""Messages that wait in one worker, unless the setting `zklock_max_waiting` says otherwise."""
LOOK_EVERY: Final = 0.25  # seconds between two looks for tasks that were revoked, or have expired
KEPT: Final = 5.0  # seconds for which a place is kept whose message was lost with the connection to the broker
VISIBILITY_TIMEOUT: Final = {"redis": 3600.0, "sqs": 1800.0}
"""Seconds, by broker, after which it delivers an unacknowledged message again, unless an option says otherwise."""
CONSUMER_TIMEOUT: Final = 1800.0  # RabbitMQ's


class Line:
    """The messages of one worker that wait for locks. All runs on the worker's event loop, unless it says otherwise."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._to_pool: Callable[[Any], object] = consumer.on_task_request
        has_processes = type(consumer.pool).__module__ == "celery.concurrency.prefork"
        if not has_processes or _forks(consumer.app):  # else each process of the pool takes its locks itself
            consumer.on_task_request = self.accept
        self.tasks: dict[str, WaitingTask] = {}  # by id
        self._lost: dict[str, tuple[WaitingTask, float]] = {}  # by id: places without a message, and until when
        # Pool processes that are forked read the lease from a page. Threads and greenlets share the session itself.
        borrowed.page = GrantPage() if has_processes else None
        self._pool_grants = PoolGrants(borrowed.page) if borrowed.page is not None else None
        self._looks: Any = None  # the entry of the timer
        self._ready: list[Callable[[], object]] = []
        self._waker, self._bell = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._bell, False)

    # --- in -----------------------------------------------------------------------------------------------------------

    def accept(self, request: Any) -> object:
        """Give a message to the pool, or have it wait for its lock first."""
        locked = locked_of(request.task)
        call = self._call(locked, request) if locked is not None else None
        if call is None or _is_stopping() or self._has_copy(request):
            return self._to_pool(request)
        task, _ = self._lost.pop(request.id, (None, 0.0))
        if task is None:
            task = WaitingTask(self, request, call.lock, timeout=call.timeout, longest=self._longest)
        with task.mutex:
            task.request = request
            self.tasks[request.id] = task
            if len(self.tasks) > self._most_waiting:
                task.send_again(f"{self._most_waiting} tasks of this worker wait already")
            elif task.over:  # it was granted while it had no message
                self.go_on(task)
            else:
                task.step()
            if request.id in self.tasks:
                state.reserved_requests.discard(request)
                self._consumer.qos.increment_eventually()
        return None

    def _has_copy(self, request: Any) -> bool:
        """Return whether another message of the same task is here. It must not wait behind that."""
        return (
            request.id in self.tasks
            or any(each.id == request.id and each is not request for each in state.active_requests)
            or (self._pool_grants is not None and self._pool_grants.has(request.id))
        )

    @property
    def _most_waiting(self) -> int:
        return int(self._consumer.app.conf.get("zklock_max_waiting", MOST_WAITING))

    def _call(self, locked: LockedFunction, request: Any) -> LockedCall | None:
        """Return the call whose locks to wait for; None if it does not wait, or only the pool process can tell."""
        request.request_dict.pop(GRANTS, None)
        if not locked.binder.is_static:
            return None
        try:
            call = locked.call(*arguments(request.task, request.args, request.kwargs), MessageContext(request))
        except Exception:  # noqa: BLE001 - the pool process raises the same, and there it ends the task
            return None
        return call if call.timeout != 0 else None

    @property
    def _longest(self) -> float | None:
        """Half of the time after which the broker would deliver a waiting message again, in seconds; None: never."""
        conf = self._consumer.app.conf
        driver = self._consumer.connection.transport.driver_type
        given = conf.get("zklock_longest_wait")
        if given is not None:
            return float(given)
        if driver == "amqp":
            return CONSUMER_TIMEOUT / 2
        timeout = (conf.broker_transport_options or {}).get("visibility_timeout", VISIBILITY_TIMEOUT.get(driver))
        return None if timeout is None else float(timeout) / 2

    # --- out ----------------------------------------------------------------------------------------------------------

    def go_on(self, task: WaitingTask) -> None:
        """Give a message to the pool that waits no more."""
        request = task.request
        if request is None:
            return  # its copy has not come yet
        facts: Any = None
        if task.error is not None:
            facts = {
                "error": type(task.error).__name__,
                "text": str(task.error),
                "lock": task.error.lock,
                "again": task.to_send_again,
            }
        elif task.entry.held and self._pool_grants is not None:
            facts = self._pool_grants.add(task)
        elif task.entry.held:
            facts = id(task)
            borrowed.own_grants[facts] = task
        if facts is None:
            task.entry.undo()
        else:
            request.request_dict[GRANTS] = facts
        self._take_out(task)
        self._to_pool(request)

    def _take_out(self, task: WaitingTask) -> None:
        self.tasks.pop(task.request.id, None)
        if task.request not in state.reserved_requests:
            state.task_reserved(task.request)
            self._consumer.qos.decrement_eventually()

    def look(self) -> None:
        """End what was revoked or has expired, and give back what nobody came for."""
        for task in list(self.tasks.values()):
            with task.mutex:
                if not task.over and task.request.revoked():
                    task.leave()
                    self._take_out(task)
                    state.task_ready(task.request)
        now = time.monotonic()
        for task_id, (task, until) in list(self._lost.items()):
            if now >= until:
                del self._lost[task_id]
                task.leave()
        for number, granted in list(borrowed.own_grants.items()):
            if has_ended(granted.request) and borrowed.own_grants.pop(number, None) is not None:
                granted.leave()

    def stop(self, *, restarts: bool) -> None:
        """Forget all messages: the broker delivers them again. If the worker `restarts`, their places are kept."""
        if self._looks is not None:
            self._looks.cancel()
        until = time.monotonic() + KEPT
        for task_id, task in list(self.tasks.items()):
            with task.mutex:
                del self.tasks[task_id]
                state.requests.pop(task_id, None)
                task.request = None
                self._lost[task_id] = task, until
        if not restarts:
            for task, _ in self._lost.values():
                task.leave()
            self._lost.clear()

    def close(self) -> None:
        """The worker ends, and its pool has stopped."""
        if self._pool_grants is not None:
            self._pool_grants.close()

    # --- the event loop -----------------------------------------------------------------------------------------------

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` on the worker's event loop; from any thread."""
        if self._consumer.hub is None:
            self._consumer.timer.call_after(0, call)
            return
        self._ready.append(call)
        with contextlib.suppress(BlockingIOError):  # it is full, so it will be read
            os.write(self._bell, b"!")

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        """Run `call()` on the worker's event loop after so many seconds; return an entry to cancel."""
        return self._consumer.timer.call_after(seconds, call)

    def register(self, hub: Any) -> None:
        """Have an event loop run what is called soon."""
        hub.add_reader(self._waker, self._run_ready)

    def begin(self) -> None:
        """Begin to look after the waiting; the worker is connected."""
        self._looks = self._consumer.timer.call_repeatedly(LOOK_EVERY, self.look)

    def _run_ready(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._waker, 4096)) == 4096:
                pass
        ready, self._ready = self._ready, []
        for call in ready:
            call()


def _forks(app: Any) -> bool:
    """Return whether pool processes are forked, and inherit the memory of the main process."""
    return (app.conf.get("worker_pool_start_method") or billiard.get_start_method() or "fork") == "fork"


def _is_stopping() -> bool:
    should_stop: Any = state.should_stop  # the exit status, which may be 0
    return should_stop is not None
