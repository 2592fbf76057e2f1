"""
Knows how many calls of a task are made one: while one runs, one waits, and stands for all that come meanwhile.

The one that waits has a reservation (`operations.reservations`) of the lock's key among the tasks of its name. It
gives that up when it has the lock and before it begins to work: a call that comes later finds none, and waits itself.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Task, states
from celery.signals import task_failure, task_postrun, task_revoked

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import arguments, locked_of
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER
from django_zklock.exceptions import InvalidLockName, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.operations import reservations
from django_zklock.operations.reservations import Reserved, Taken
from django_zklock.queue.names import escape

logger = logging.getLogger("django_zklock.celery")

WAITING_HEADER = "zklock_waiting"
"""The key of the reservation that the task has while it waits."""

_BEGUN = "zklock_begun"  # attribute of a request: the task waits no more

BELIEVED_FOR = 120.0
"""
Seconds after it was to come again that a task is believed to.

Its message may have been thrown away, and nobody says so. If it was only late, another one waits beside it: one run
more, and no call that is forgotten.
"""


def wait_or_yield(task: Task[..., Any], lock_key: str, error: ZkLockError) -> str | None:
    """
    Send the task again if no other of its name waits for this lock; else return the id of the one that does.

    Raises what ends this run where it is sent again.
    """
    key = _key(task, lock_key)
    request: Any = task.request
    times = messages.counted(request, CONFLICTS_HEADER) + 1
    delay = messages.pause(times)
    try:
        place = reservations.reserve(
            key, str(request.id), late=bool(task.acks_late), until=time.time() + delay + BELIEVED_FOR
        )
    except (ZooKeeperUnavailable, LockTimeout) as unknown:
        messages.come_again(task, CONFLICTS_HEADER, unknown)
    if isinstance(place, Taken):
        return place.task_id
    messages.leave(_send(task, place, {CONFLICTS_HEADER: times, WAITING_HEADER: key}, delay, error), delay, error)


def _send(task: Task[..., Any], place: Reserved, headers: dict[str, Any], delay: float, error: ZkLockError) -> Any:
    try:
        sent = messages.send(task, headers, delay, error)
    except BaseException:
        reservations.withdraw(place)
        raise
    reservations.confirm(place)
    return sent


def begin(task: Task[..., Any]) -> None:
    """Stop waiting, as the work is about to begin; where that can't be made sure of, come again instead."""
    request: Any = task.request
    key = messages.text(request, WAITING_HEADER)
    if not key or hasattr(request, _BEGUN):
        return
    if not reservations.free(key, str(request.id), deadline=reservations.DEADLINE):
        unsure = ZooKeeperUnavailable("ZooKeeper did not confirm that the task no longer waits.", lock=key)
        messages.come_again(task, CONFLICTS_HEADER, unsure)
    setattr(request, _BEGUN, True)


def end(*, task: Task[..., Any], state: str | None = None, retval: Any = None, **_more: Any) -> None:
    """
    Let another one wait instead of one that gave up before it began, as after `max_conflicts`.

    Else those that come next would be skipped in favour of one that never comes.
    """
    request: Any = task.request
    key = messages.text(request, WAITING_HEADER)
    # An ignored one waits no more already, or is a copy; without a state the process is being ended.
    goes_on = state in (None, states.RETRY, states.IGNORED) or messages.is_given_back(task, state, retval)
    if key and not goes_on and not hasattr(request, _BEGUN):
        reservations.free(key, str(request.id))


def on_revoked(request: Any, **_more: Any) -> None:
    """Let another one wait instead of one that was revoked, or has expired; in the worker's main process."""
    key = messages.text(request, WAITING_HEADER)
    if key:
        reservations.free(key, str(request.id), deadline=0)


def on_failure(
    sender: Task[..., Any], task_id: str, exception: BaseException, args: Any = (), kwargs: Any = None, **_more: Any
) -> None:
    """Let another one wait instead of one whose process died while it waited; in the worker's main process."""
    locked = locked_of(sender)
    if locked is None or not messages.died(sender, exception):
        return
    try:
        call = arguments(sender, args, kwargs)
        if locked.options_of(*call).on_conflict == "coalesce":
            reservations.free(_key(sender, locked.key(*call)), task_id, deadline=0)
    except (InvalidLockName, TypeError) as error:
        logger.warning("nobody can tell what task %s has waited for: %s", task_id, error)


def _key(task: Task[..., Any], lock_key: str) -> str:
    return f"waiting/{escape(str(task.name), what='task name')}/{lock_key}"


task_failure.connect(on_failure, dispatch_uid="zklock.on_waiting_lost")
task_postrun.connect(end, dispatch_uid="zklock.on_waiting_over")
task_revoked.connect(on_revoked, dispatch_uid="zklock.on_waiting_revoked")
