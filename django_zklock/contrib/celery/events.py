"""Worker events about the locks of tasks: waiting, acquired, lost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from celery import current_app

from django_zklock.locks.hold import Hold, held_of
from django_zklock.signals import lock_acquired, lock_lost, lock_waiting

EVENTS_OF: Final = "ZKLOCK_EVENTS_OF"
"""Environment variable: the name of the worker whose processes send events. Forked and spawned processes inherit it."""


def choose_worker(name: str) -> None:
    """Send events in the name of this worker, also from its pool processes; none if the name is empty."""
    os.environ.pop(EVENTS_OF, None)
    if name:
        os.environ[EVENTS_OF] = name
    listen()


def listen() -> None:
    """Connect to the signals of locks if events are sent, else disconnect: each receiver takes time at each lock."""
    for signal, receiver in ((lock_waiting, on_waiting), (lock_acquired, on_acquired), (lock_lost, on_lost)):
        if os.environ.get(EVENTS_OF):
            signal.connect(receiver, dispatch_uid=f"zklock.{receiver.__name__}")
        else:
            signal.disconnect(receiver, dispatch_uid=f"zklock.{receiver.__name__}")


def on_waiting(*, lock: str, ahead: str, about: Mapping[str, str], **kwargs: object) -> None:
    """Report that a task waits for a lock."""
    _send("task-lock-waiting", about, lock=lock, ahead=ahead)


def on_acquired(*, lock: str, hold: Hold, waited: float, **kwargs: object) -> None:
    """Report that a task has acquired a lock."""
    _send("task-lock-acquired", held_of(hold).grant.about, lock=lock, waited=waited, token=hold.token)


def on_lost(*, lock: str, hold: Hold, reason: str, **kwargs: object) -> None:
    """Report that a task has lost a lock."""
    _send("task-lock-lost", held_of(hold).grant.about, lock=lock, reason=reason, token=hold.token)


def _send(kind: str, about: Mapping[str, str], **fields: object) -> None:
    """Send an event about a task; on the thread for signals, where it delays no lock."""
    if "task" not in about:
        return
    with current_app.events.default_dispatcher(hostname=os.environ.get(EVENTS_OF)) as dispatcher:
        dispatcher.send(kind, uuid=about.get("id", ""), name=about["task"], **fields)


listen()  # in a process that a worker has spawned
