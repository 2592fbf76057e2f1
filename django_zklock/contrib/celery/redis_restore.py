"""
Restore the messages that a worker has not acknowledged when it loses its connection to Redis.

Kombu restores them as it closes the connection. If Redis is down then, they stay in the hash `unacked` for the
visibility timeout, an hour by default (celery/celery#1307). Celery 5.7 also closes twice. The second time, and at a
late acknowledgement, Kombu's `_connparams` raises an AttributeError, which ends the worker. No ticket is known.
"""

from __future__ import annotations

import functools
from typing import Any

from celery import bootsteps
from celery.worker.state import active_requests

from django_zklock.core import clock
from django_zklock.core.log import Logger

logger = Logger("django_zklock.celery")


class RedisRestore(bootsteps.StartStopStep):
    """Restores the lost messages as soon as there is a new connection. A running task keeps its message."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._lost: dict[str, float] = {}  # when its connection was lost, by delivery tag; the oldest message first

    def start(self, consumer: Any) -> None:
        """Restore the newest message first: each one goes to the front of its queue."""
        channel = consumer.connection.default_channel
        if not hasattr(getattr(channel, "qos", None), "restore_by_tag"):
            return
        self._qos = channel.qos  # of the present connection
        consumer.connection.collect = functools.partial(self._collect, consumer, channel, consumer.connection.collect)
        try:
            while self._lost:
                tag, lost_at = next(reversed(self._lost.items()))
                # Later, another worker may have the message: any worker restores it after the visibility timeout.
                if clock.now() - lost_at < self._qos.visibility_timeout / 2:
                    self._qos.restore_by_tag(tag)
                del self._lost[tag]
        except Exception:
            logger.exception("%d messages stay unacknowledged until the next connection", len(self._lost))

    def _collect(self, consumer: Any, channel: Any, collect: Any, *args: Any, **options: Any) -> None:
        """Celery calls this when it has lost the connection, and ignores all errors."""
        try:
            cancels = consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss
            kept = channel.qos._dirty | {request.message.delivery_tag for request in active_requests if not cancels}
            self._lost |= {tag: clock.now() for tag in channel.qos._delivered if tag not in kept}
            channel.do_restore = False
            channel.basic_ack = lambda tag, **_options: self._qos.ack(tag)
            channel.basic_reject = lambda tag, **options: self._qos.reject(tag, **options)  # noqa: PLW0108 - the later qos
        finally:
            collect(*args, **options)
