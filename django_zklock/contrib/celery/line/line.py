"""
The line of one worker: the messages that wait for a lock in its main process.

A message comes here when Celery would give it to the pool: after its ETA and its rate limit. It waits unacknowledged,
and does not count as prefetched. When its locks are granted, it goes to the pool. A task that gets no lock goes to the
pool, too, and ends there as one that has waited there would.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, Final

import billiard
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker import state

from django_zklock import clock, signals
from django_zklock.contrib.celery.introspection import arguments, locked_of
from django_zklock.contrib.celery.line import result
from django_zklock.contrib.celery.line.loops import event_loop_of, is_pool
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.contrib.celery.line.pool_grants import PoolGrants, has_ended
from django_zklock.contrib.celery.line.result import FACTS
from django_zklock.contrib.celery.line.waiting_task import MessageContext, WaitingTask, headers_of
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, LATE_HEADER, LOST_HEADER
from django_zklock.decorators.locked import LockedCall, LockedFunction
from django_zklock.locks.protocol.directory import Directory
from django_zklock.zk import process

logger = logging.getLogger("django_zklock.celery")

MOST_WAITING: Final = 1000
"""Messages that wait in one worker, unless the setting `zklock_max_waiting` says otherwise."""
MOST_IN_QUEUE: Final = 128
"""Those of them in the queue of one key, each with a znode. So many take turns with other workers in exact order."""
LOOK_EVERY: Final = 0.25  # seconds between two looks for tasks that were revoked, or have expired
KEPT: Final = 5.0  # seconds for which a place is kept whose message was lost with the connection to the broker
VISIBILITY_TIMEOUT: Final = {"redis": 3600.0, "sqs": 1800.0}
"""Seconds, by broker, after which it delivers an unacknowledged message again, unless an option says otherwise."""
CONSUMER_TIMEOUT: Final = 1800.0  # RabbitMQ's


class Line:
    """The messages of one worker that wait for locks. All runs on `loop`, unless it says otherwise."""

    def __init__(self, consumer: Any) -> None:
        self.tasks: dict[str, WaitingTask] = {}  # by id
        self.loop = event_loop_of(consumer)
        self._consumer = consumer
        self._to_pool: Callable[[Any], object] = consumer.on_task_request
        self._in_pool: dict[str, Any] = {}  # by id: the requests that came from here
        self._lost: dict[str, WaitingTask] = {}  # by id: places without a message
        self._connections = 0
        self._looks = -1  # during which of them `_look` runs
        Directory.most_waiting = MOST_IN_QUEUE
        # Pool processes that are forked read the lease from a page. Threads and greenlets share the session itself.
        self._pool_grants: PoolGrants | None = None
        if is_pool(consumer.pool, "prefork") and _forks(consumer.app):
            result.page = GrantPage()
            self._pool_grants = PoolGrants(result.page)
            consumer.on_task_request = self.accept
        elif is_pool(consumer.pool, "solo", "thread", "gevent", "eventlet"):
            consumer.on_task_request = self.accept

    # --- in -----------------------------------------------------------------------------------------------------------

    def accept(self, request: Any) -> object:
        """Give a message to the pool, or have it wait for its lock first."""
        locked = locked_of(request.task)
        call = self._call(locked, request) if locked is not None else None
        if call is None or _is_stopping() or self._has_copy(request) or self._has_fixed_prefetch:
            return self._to_pool(request)
        task = self._lost.pop(request.id, None) or WaitingTask(
            request, call, self.loop, self.go_on, longest=self._longest
        )
        with task.mutex:
            task.request = request
            self.tasks[request.id] = task
            self._wait(task)
        if len(self.tasks) > self._most_waiting:
            task.send_again(f"{self._most_waiting} tasks of this worker wait already")
        if task.over:  # refused, or granted while it had no message
            self.go_on(task)
        else:
            if self._pool_grants is not None:
                self.loop.call_soon(self._pool_grants.share_lease)
            self.loop.call_soon(task.step)
        return None

    def _call(self, locked: LockedFunction, request: Any) -> LockedCall | None:
        """Return the call whose locks to wait for; None if it does not wait, or only the pool process can tell."""
        request.request_dict.pop(FACTS, None)
        if not locked.binder.is_static or locked.is_async:
            return None
        try:
            call = locked.call(*arguments(request.task, request.args, request.kwargs), MessageContext(request))
        except Exception:  # noqa: BLE001 - the pool process raises the same, and there it ends the task
            return None
        return call if call.timeout != 0 else None

    def _has_copy(self, request: Any) -> bool:
        """
        Return whether another delivery of this message is here. It must not wait behind that.

        A message that the task has sent again is another one. It may come before the end of the run that sent it.
        """
        in_pool = self._in_pool.get(request.id)
        return request.id in self.tasks or (not has_ended(in_pool) and _times_sent(in_pool) == _times_sent(request))

    @property
    def _has_fixed_prefetch(self) -> bool:
        """Whether messages that wait would keep others from coming: so it is with RabbitMQ's quorum queues."""
        consumer = self._consumer
        driver = consumer.connection.transport.driver_type
        if driver != "amqp" or hasattr(consumer, "qos_global"):
            return driver == "amqp" and consumer.qos_global is False
        # Celery before 5.7
        return bool(consumer.app.conf.worker_detect_quorum_queues) and detect_quorum_queues(consumer.app, driver)[0]

    @functools.cached_property
    def _most_waiting(self) -> int:
        return int(self._consumer.app.conf.get("zklock_max_waiting", MOST_WAITING))

    @functools.cached_property
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

    def _wait(self, task: WaitingTask) -> None:
        """Count a message that waits as one with an ETA: neither as prefetched, nor for autoscale."""
        qos = self._consumer.qos
        before = qos.value
        qos.increment_eventually()
        task.prefetch = qos.value - before
        state.reserved_requests.discard(task.request)
        self._tell()
        if self._looks != self._connections:
            self._looks = self._connections
            self.loop.call_soon(functools.partial(self._look, self._connections))

    # --- out ----------------------------------------------------------------------------------------------------------

    def go_on(self, task: WaitingTask) -> None:
        """Give a message to the pool that no longer waits; a second call changes nothing."""
        with task.mutex:
            request = task.request
            if request is None or self.tasks.pop(request.id, None) is None:
                return  # its copy has not come yet, or it has gone on
            self._take_out(task)  # first: a request that is not reserved counts as over
            if task.entry.held:
                self._hand_over(task)
            request.request_dict[FACTS] = {**task.facts, "worker": os.getpid()}
            self._in_pool[request.id] = request
        self.loop.call_apart(functools.partial(self._give_to_pool, task, request))

    def _hand_over(self, task: WaitingTask) -> None:
        """Let the process or thread that runs the task take its locks."""
        task.granted_at = clock.now()
        if self._pool_grants is None:
            task.facts["number"] = id(task)
            result.own_grants[id(task)] = task
            task.limit_slot()
            return
        grants = self._pool_grants.add(task)
        if grants is None:
            task.facts["late"] = True
            task.leave()
        else:
            task.facts["grants"] = grants

    def _give_to_pool(self, task: WaitingTask, request: Any) -> None:
        try:
            for callback in self._consumer.on_task_message:
                callback(request)  # now the pool may have to grow
            self._to_pool(request)
        except Exception:
            logger.exception("the pool does not take task %s, which goes back to the broker", request.id)
            task.leave()
            state.task_ready(request)
            request.reject(requeue=True)

    def _take_out(self, task: WaitingTask) -> None:
        if task.request not in state.reserved_requests:
            state.task_reserved(task.request)
        qos = self._consumer.qos
        # A worker that has connected again may have a new count, without this.
        if task.prefetch and qos.value > self._consumer.initial_prefetch_count:
            qos.decrement_eventually(task.prefetch)
        task.prefetch = 0
        self._tell()

    def _tell(self) -> None:
        """Send how many messages wait, if anybody asks."""
        if signals.line_changed.receivers:
            process.current().dispatch(
                functools.partial(signals.line_changed.send_robust, Line, waiting=len(self.tasks))
            )

    def _look(self, connection: int) -> None:
        """End what was revoked, has expired or has waited too long; again and again, while connected."""
        if connection != self._connections:
            return  # a later one does so
        self.loop.call_later(LOOK_EVERY, functools.partial(self._look, connection))
        self._keep_prefetch_count()
        for task_id, task in list(self.tasks.items()):
            try:
                task.end_if_too_long()
                self._end_if_revoked(task)
            except Exception:
                logger.exception("task %s should wait no longer, but cannot be ended", task_id)
        for task_id in [task_id for task_id, request in self._in_pool.items() if has_ended(request)]:
            del self._in_pool[task_id]

    def _keep_prefetch_count(self) -> None:
        """Raise the prefetch count if Celery has set it again after a reconnect, without the messages that wait."""
        qos, waiting = self._consumer.qos, sum(task.prefetch for task in list(self.tasks.values()))
        missing = self._consumer.initial_prefetch_count + waiting - qos.value
        if qos.value and waiting and missing > 0:
            qos.increment_eventually(missing)

    def _end_if_revoked(self, task: WaitingTask) -> None:
        with task.mutex:
            request = task.request
            if task.over or request is None:
                return
            concerned = request.expires or request.id in state.revoked or state.revoked_stamps
            if concerned and request.revoked() and self.tasks.pop(request.id, None) is not None:
                task.leave()
                self._take_out(task)
                state.task_ready(request)

    def stop(self, *, restarts: bool) -> None:
        """
        Forget all messages: the broker delivers them again.

        If the worker `restarts`, their places are kept for a while. That does not depend on the event loop, which does
        not run while the worker tries to connect.
        """
        self._connections += 1
        for task_id, task in list(self.tasks.items()):
            with task.mutex:
                if self.tasks.pop(task_id, None) is None:
                    continue  # it has gone on
                state.requests.pop(task_id, None)
                task.request = None
                task.prefetch = 0
                self._lost[task_id] = task
            if restarts:
                session = process.current()
                session.post(session.loop.call_later, KEPT, functools.partial(self._give_up, task_id, task))
            else:
                self._give_up(task_id, task)
        if not restarts:
            for number in list(result.own_grants):  # a pool that stops drops what has not begun
                granted = result.own_grants.pop(number, None)
                if granted is not None:
                    granted.leave()
        self._tell()

    def _give_up(self, task_id: str, task: WaitingTask) -> None:
        if self._lost.get(task_id) is task and self._lost.pop(task_id, None) is not None:
            task.leave()

    def close(self) -> None:
        """The worker ends, and its pool has stopped."""
        if self._pool_grants is not None:
            self._pool_grants.close()


def _times_sent(request: Any) -> tuple[Any, ...]:
    """Return how often a task was sent again, and why."""
    headers = headers_of(request)
    return tuple(headers.get(name) for name in ("retries", CONFLICTS_HEADER, LATE_HEADER, LOST_HEADER))


def _forks(app: Any) -> bool:
    """Return whether pool processes are forked, and inherit the memory of the main process."""
    return (app.conf.get("worker_pool_start_method") or billiard.get_start_method() or "fork") == "fork"


def _is_stopping() -> bool:
    should_stop: Any = state.should_stop  # the exit status, which may be 0
    return should_stop is not None
