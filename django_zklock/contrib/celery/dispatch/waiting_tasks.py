"""The tasks of a worker that wait for their locks without a slot, and what Celery counts for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from celery.worker import state

from django_zklock import signals
from django_zklock.contrib.celery.dispatch.waiting_task import WaitingTask
from django_zklock.core.zk import process


class WaitingTasks:
    """
    The tasks that wait without a slot.

    Celery counts each of them as a message with an ETA: neither as prefetched, nor for autoscale.
    """

    def __init__(self, consumer: Any, sender: type) -> None:
        self._consumer = consumer
        self._sender = sender  # of the signal
        self._raised: dict[WaitingTask, int] = {}  # by how much the prefetch count is higher for each task
        self._keys: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._raised)

    def __iter__(self) -> Iterator[WaitingTask]:
        return iter(list(self._raised))

    def __contains__(self, task: WaitingTask) -> bool:
        return task in self._raised

    def share_key_with(self, task: WaitingTask) -> bool:
        """Return whether another task waits here for a lock that this task needs."""
        return any(self._keys[key] for key in task.keys)

    def add(self, task: WaitingTask) -> None:
        """Add a task that has no slot."""
        qos = self._consumer.qos
        before = qos.value
        qos.increment_eventually()
        if self._consumer.hub is None and self._consumer.connection.transport.driver_type != "amqp":
            qos.update()  # the consumer may wait for messages until this; RabbitMQ's socket is in use by then
        self._raised[task] = qos.value - before
        self._keys.update(task.keys)
        state.reserved_requests.discard(task.request)
        self._send_count()

    def remove(self, task: WaitingTask) -> None:
        """Count a task as prefetched again, if it waits here."""
        if task in self._raised:
            state.task_reserved(task.request)
            self._forget(task)
            self._send_count()
            for callback in self._consumer.on_task_message:
                callback(task.request)  # now the pool may have to grow

    def _forget(self, task: WaitingTask) -> None:
        raised = self._raised.pop(task)
        self._keys.subtract(task.keys)
        self._keys += Counter()  # without those that are 0
        qos = self._consumer.qos
        # After a reconnect, the worker may have a new count, without this task.
        if raised and qos.value > self._consumer.initial_prefetch_count:
            qos.decrement_eventually(raised)

    def clear(self) -> None:
        """Forget all tasks: the connection to the broker is lost, and with it the count."""
        if self._raised:
            self._raised.clear()
            self._keys.clear()
            self._send_count()

    def check(self, tasks: Iterable[WaitingTask]) -> None:
        """
        Forget all but these tasks, as a step may have failed.

        Raise the prefetch count if Celery has reset it after a reconnect, without the tasks that wait.
        """
        for task in self._raised.keys() - set(tasks):
            self._forget(task)
        qos, raised = self._consumer.qos, sum(self._raised.values())
        missing = self._consumer.initial_prefetch_count + raised - qos.value
        if qos.value and raised and missing > 0:
            qos.increment_eventually(missing)

    def _send_count(self) -> None:
        """Send how many tasks wait, if there are receivers."""
        if signals.waiting_tasks_changed.receivers:
            send = functools.partial(signals.waiting_tasks_changed.send_robust, self._sender, waiting=len(self))
            process.current().dispatch(send)
