"""Prepare a worker when it starts, and close the session when one of its processes ends."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

from celery.signals import (
    task_received,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
)

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.dispatch import DISPATCHER
from django_zklock.core.log import Logger
from django_zklock.core.zk import process

logger = Logger("django_zklock.celery")

EVENTLET: Final = (
    "django-zklock does not work in the eventlet pool, whose authors have deprecated it. Start the worker with "
    "--pool=gevent, --pool=threads or --pool=prefork."
)


def begin_worker(*, sender: Any, **kwargs: object) -> None:
    """Prepare the remote control, the dispatcher and the pool of a worker."""
    pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))
    if pool.endswith("eventlet"):
        sys.exit(EVENTLET)  # Celery logs any other exception of a receiver, and goes on
    import_module("django_zklock.contrib.celery.control")  # only now: it imports all of a worker
    if pool.endswith("thread"):
        logger.warning(
            "in the threads pool, work that has lost its lock is aborted at its next bytecode, so not during "
            "time.sleep() or a wait for a socket or a child process, as in the prefork pool; call hold.check() before "
            "anything that cannot be undone"
        )
    task_received.connect(messages.record_received, dispatch_uid="zklock.record_received")
    set_ready = import_module("django_zklock.contrib.celery.dispatch.pool_process").set_ready
    worker_process_init.connect(set_ready, dispatch_uid="zklock.set_ready")
    worker_process_shutdown.connect(set_ready, dispatch_uid="zklock.set_ready")
    sender.app.steps["consumer"].add(import_module("django_zklock.contrib.celery.dispatch.dispatcher").Dispatcher)
    sender.app.steps["consumer"].add(import_module("django_zklock.contrib.celery.redis_restore").RedisRestore)


def close_session(*, sender: Any, **kwargs: object) -> None:
    """End the session of a process that ends, so that its locks are released at once. A test's own process goes on."""
    dispatcher = getattr(getattr(sender, "consumer", None), DISPATCHER, None)
    if dispatcher is None or dispatcher.ends_process:
        process.end()


worker_init.connect(begin_worker, dispatch_uid="zklock.begin_worker")
# A process of a prefork pool ends without its exit handlers. The process of another pool runs them, but late.
worker_process_shutdown.connect(close_session, dispatch_uid="zklock.close_session")
worker_shutdown.connect(close_session, dispatch_uid="zklock.close_session")
