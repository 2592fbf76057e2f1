"""
Messages that a worker had not acknowledged when it lost Redis go back to their queues as soon as it is connected again.

Kombu tries that while it closes the lost connection. If Redis is down, as in a restart, the messages then stay in the
hash `unacked` for the visibility timeout, an hour by default (celery/celery#1307). With Celery 5.7 the worker may also
end. It calls `Connection.collect()`, which gives up if a channel cannot be closed, and takes the transport apart. Then
it calls `close()`, which closes the channel and restores its messages: `_connparams` raises an AttributeError,
"'NoneType' object has no attribute 'hostname'". No ticket is known.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from django_zklock import clock

logger = logging.getLogger("django_zklock.celery")


class RedisRestore(bootsteps.StartStopStep):
    """Have Kombu restore nothing on a lost connection, and restore it on the next one."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._lost: dict[str, float] = {}  # delivery tag: when its connection was lost; the oldest message comes first

    def start(self, consumer: Any) -> None:
        """Restore the newest message first: each one goes to the front of its queue."""
        connection = consumer.connection
        connection.collect = functools.partial(self._collect, connection, connection.collect)
        try:
            while self._lost:
                qos = connection.default_channel.qos
                tag, lost_at = next(reversed(self._lost.items()))
                # Later, another worker may have the message: any worker restores it after the visibility timeout.
                if clock.now() - lost_at < qos.visibility_timeout / 2:
                    qos.restore_by_tag(tag)
                del self._lost[tag]
        except Exception:
            logger.exception("%d messages stay unacknowledged until the next connection", len(self._lost))

    def _collect(self, connection: Any, collect: Callable[..., None], *args: Any, **options: Any) -> None:
        """Celery calls this when it has lost the connection, and ignores all errors."""
        try:
            for channel in getattr(connection.transport, "channels", ()):
                qos = channel._qos
                if hasattr(qos, "restore_by_tag"):
                    self._lost |= {tag: clock.now() for tag in qos._delivered if tag not in qos._dirty}
                    channel.do_restore = False
        finally:
            collect(*args, **options)
