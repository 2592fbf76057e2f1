"""Knows what a worker says of locks: as it begins, of its pool; then, in events of the tasks that take them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from celery import current_app
from celery.signals import worker_init

from django_zklock.locks.hold import Hold
from django_zklock.signals import lock_acquired, lock_lost, lock_waiting

logger = logging.getLogger("django_zklock.celery")

EVENTS_OF: Final = "ZKLOCK_EVENTS_OF"
"""Environment variable: the name of the worker whose processes send events; forked and spawned ones inherit it."""


def begin_worker(*, sender: Any, **kwargs: object) -> None:
    """
    As a worker begins: answer `inspect zklocks`, and send events if it sends those of its tasks.

    It does with `-E`, or the setting `worker_send_task_events`.
    """
    import_module("django_zklock.contrib.celery.control")  # not before: it imports all of a worker
    if str(getattr(sender.pool_cls, "__module__", sender.pool_cls)).endswith("thread"):
        logger.warning(
            "in the threads pool, work that has lost its lock is stopped at its next bytecode, so not before a call "
            "into C returns; call hold.check() before what cannot be undone, or use the prefork pool"
        )
    if sender.task_events:
        os.environ[EVENTS_OF] = str(sender.hostname)
    else:
        os.environ.pop(EVENTS_OF, None)
    listen()


def listen() -> None:
    """Listen to locks if events are to be sent; nobody listens otherwise, so that locks cost no more than before."""
    for signal, receiver in ((lock_waiting, on_waiting), (lock_acquired, on_acquired), (lock_lost, on_lost)):
        if os.environ.get(EVENTS_OF):
            signal.connect(receiver, dispatch_uid=f"zklock.{receiver.__name__}")
        else:
            signal.disconnect(receiver, dispatch_uid=f"zklock.{receiver.__name__}")


def on_waiting(*, lock: str, ahead: str, about: Mapping[str, str], **kwargs: object) -> None:
    """Tell that a task has to wait for a lock."""
    _send("task-lock-waiting", about, lock=lock, ahead=ahead)


def on_acquired(*, lock: str, hold: Hold, waited: float, **kwargs: object) -> None:
    """Tell that a task has a lock."""
    _send("task-lock-acquired", hold._grant.about, lock=lock, waited=waited, token=hold.token)


def on_lost(*, lock: str, hold: Hold, reason: str, **kwargs: object) -> None:
    """Tell that a task has lost a lock."""
    _send("task-lock-lost", hold._grant.about, lock=lock, reason=reason, token=hold.token)


def _send(kind: str, about: Mapping[str, str], **fields: object) -> None:
    """Send an event about a task; on the thread for signals, where it delays no lock."""
    if "task" not in about:
        return
    with current_app.events.default_dispatcher(hostname=os.environ.get(EVENTS_OF)) as dispatcher:
        dispatcher.send(kind, uuid=about.get("id", ""), name=about["task"], **fields)


worker_init.connect(begin_worker, dispatch_uid="zklock.begin_worker")
listen()  # in a process that was spawned by a worker
