"""
The life cycle of a task's reservations, in the process that runs the task and in the worker's main process.

A task has up to two reservations, named in the headers of its message. The one of `unique` begins before the task is
sent, and ends when the task starts or is done. The one of `on_conflict="coalesce"` exists while the task waits for its
lock: it ends under the lock, before the work begins, so that a later call waits itself.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from celery import Task, states
from celery.signals import (
    task_failure,
    task_postrun,
    task_prerun,
    task_received,
    task_rejected,
    task_revoked,
    task_unknown,
)

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import locked_of
from django_zklock.contrib.celery.messages import headers_of
from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.reservations import Attached
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.names.template import escape

UNIQUE_HEADER: Final = "zklock_unique"
"""The key of the reservation that a unique task has."""
WAITING_HEADER: Final = "zklock_waiting"
"""The key of the reservation that a task has while it waits for its lock."""
_HEADERS: Final = frozenset((UNIQUE_HEADER, WAITING_HEADER))

_ATTACHED: Final = "zklock_attached"  # attributes of a request
_ENDED: Final = "zklock_ended"


def unique_prefix(task: Task[..., Any]) -> str:
    """Return the prefix of all keys of the reservations of this unique task."""
    return f"task/{escape(str(task.name), what='task name')}/"


def unique_key(task: Task[..., Any], lock_key: str) -> str:
    """Return the key of the reservation of a unique task: its name, and the key of its lock."""
    return unique_prefix(task) + lock_key


def waiting_key(task: Task[..., Any], lock_key: str) -> str:
    """Return the key of the reservation of the one task of its name that waits for a lock."""
    return f"waiting/{escape(str(task.name), what='task name')}/{lock_key}"


def _key(headers: Any, header: str) -> str:
    """Return the key of a reservation in a header of a message; empty if there is none."""
    key = (headers or {}).get(header)
    return key if record.is_key(key) else ""


# --- in the process that runs the task ----------------------------------------------------------------------------


def on_prerun(task: Task[..., Any], task_id: str, **kwargs: object) -> None:
    """Attach this process to the reservation of a unique task."""
    key = _key(task.request.headers, UNIQUE_HEADER)
    if key:
        setattr(task.request, _ATTACHED, reservations.start(key, task_id, late=bool(task.acks_late)))


def on_acquired(task: Task[..., Any], wrapper: object) -> None:
    """
    End the reservations that end when the work begins; the lock of `wrapper` is acquired.

    Raises `ZooKeeperUnavailable` if ZooKeeper does not confirm that: later callers would rely on a task that has begun.
    """
    request: Any = task.request
    if _HEADERS.isdisjoint(request.headers):
        return
    ended: set[str] = request.__dict__.setdefault(_ENDED, set())
    ending = [_key(request.headers, WAITING_HEADER)]
    locked = locked_of(task)
    if locked is not None and locked.wrapper is wrapper and locked.options.get("unique") == "until_start":
        ending.append(_key(request.headers, UNIQUE_HEADER))
    for key in ending:
        if key and key not in ended:
            if not reservations.end(key, str(request.id), reply_timeout=reservations.RESERVE_TIMEOUT):
                raise ZooKeeperUnavailable("ZooKeeper did not confirm that the task no longer waits.", lock=key)
            ended.add(key)


def on_postrun(
    task: Task[..., Any], task_id: str, retval: Any = None, state: str | None = None, **kwargs: object
) -> None:
    """
    End the reservations of a task that has ended; keep those of one that will run again.

    Without a state the process is ending. It does not know whether the task will run again.
    """
    request: Any = task.request
    if _HEADERS.isdisjoint(request.headers or ()):
        return
    ended = request.__dict__.get(_ENDED, ())
    attached: Attached | None = getattr(request, _ATTACHED, None)
    given_back = messages.is_given_back(task, state, retval)
    runs_again = given_back or state in (None, states.RETRY)
    key = _key(request.headers, UNIQUE_HEADER)
    if key and key not in ended:
        if not runs_again:
            # An ignored copy keeps the reservation while another process runs the task, even if it did not attach.
            own = attached or Attached(key, task_id, token="", attachment="none")
            reservations.end(key, task_id, attached=own if state == states.IGNORED else None)
        elif attached is not None:
            reservations.detach(attached, waits=given_back)
    key = _key(request.headers, WAITING_HEADER)
    if key and key not in ended and not runs_again and state != states.IGNORED:
        reservations.end(key, task_id)


# --- in the worker's main process ---------------------------------------------------------------------------------

received: weakref.WeakSet[Any] = weakref.WeakSet()
"""The requests of this worker that have reservations."""


def on_received(request: Any, **kwargs: object) -> None:
    """Remember a request that has reservations: the worker may have to end them."""
    if not _HEADERS.isdisjoint(headers_of(request)):
        received.add(request)


def on_revoked(request: Any, terminated: bool = False, **kwargs: object) -> None:
    """End the reservations of a task that was revoked, before or while it ran, or that has expired."""
    end_all(request.headers, request.id, has_run=terminated)


def on_failure(task_id: str, exception: BaseException, sender: Task[..., Any], **kwargs: object) -> None:
    """End the reservations of a task whose process died, or was killed at a time limit."""
    if messages.died(sender, exception):
        for request in [request for request in received if request.id == task_id]:
            end_all(headers_of(request), task_id, has_run=True)


def on_discarded(message: Any, id: Any = None, **kwargs: object) -> None:
    """End the reservations of a message that Celery discards: its task is unknown, or its content is refused."""
    if isinstance(message.headers, dict):
        end_all(message.headers, message.headers.get("id", id))


def end_all(headers: Any, task_id: object, *, has_run: bool = False) -> None:
    """End the reservations of a task in the background; unless it `has_run` here, keep those that a worker runs."""
    for key in [_key(headers, header) for header in _HEADERS]:
        if key:
            attached = None if has_run else Attached(key, str(task_id), token="", attachment="none")
            reservations.end(key, str(task_id), attached=attached, reply_timeout=0)


task_prerun.connect(on_prerun, dispatch_uid="zklock.reservations_on_prerun")
task_postrun.connect(on_postrun, dispatch_uid="zklock.reservations_on_postrun")
task_received.connect(on_received, dispatch_uid="zklock.reservations_on_received")
task_revoked.connect(on_revoked, dispatch_uid="zklock.reservations_on_revoked")
task_failure.connect(on_failure, dispatch_uid="zklock.reservations_on_failure")
task_unknown.connect(on_discarded, dispatch_uid="zklock.reservations_on_unknown")
task_rejected.connect(on_discarded, dispatch_uid="zklock.reservations_on_rejected")
