"""
Redelivered messages: what a task does when it finds another copy of itself in the queue of its lock.

A copy is another delivery of the same message. The id alone does not tell: a sender may choose one id for several
calls, and a broadcast queue delivers one message to each worker.

A broker delivers a message again if the first copy is not acknowledged: its worker died, or was only slow (Redis'
visibility timeout, a lost connection). The second copy cannot know which. The znode of a dead process exists until its
session ends, and no longer. So the second copy is sent again until the znode is gone, and then asks the result backend
whether the work is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from celery import Task
from celery.exceptions import Ignore

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import finished_at
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, COPY_HEADER
from django_zklock.core.queue.escaping import printable
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.queue_reader import ContenderInfo

CHECKED_HEADER: Final = "zklock_redelivered_checked"
"""How often the copy has found no result under the lock since it met the other copy."""


def is_copy(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """
    Return whether two descriptions of tasks are those of two deliveries of one message.

    The broker has marked one of them as delivered again. RabbitMQ's messages have no tag; their ids must do.
    """
    ids, tags, marks = (
        [printable(about.get(name, "")) for about in (first, second)] for name in ("id", "message", "redelivered")
    )
    return ids[0] == ids[1] and any(marks) and (tags[0] == tags[1] or not all(tags))


def has_copy(about: Mapping[str, str], queue: Iterable[ContenderInfo]) -> bool:
    """Return whether a copy of the task with this description is in a queue."""
    return any(is_copy(about, contender.about) for contender in queue)


def retry_later(task: Task[..., Any], error: ZkLockError) -> NoReturn:
    """Send this copy again, because another one is in the queue."""
    done = messages.text(task.request, COPY_HEADER) or finished_at(task.backend, str(task.request.id)) or "none"
    headers: dict[str, Any] = {COPY_HEADER: done, CHECKED_HEADER: 0}
    messages.send_again(task, CONFLICTS_HEADER, error, **headers)


def check_done(task: Task[..., Any]) -> None:
    """
    Raise `Ignore` if another copy has done the work; called under the lock, before the work.

    A result is stored only after the lock is released. So a copy that finds no result is sent again once. If it finds
    none the second time either, it does the work.
    """
    before = messages.text(task.request, COPY_HEADER)
    if not before:
        return
    done = finished_at(task.backend, str(task.request.id))
    if done and done != before:
        raise Ignore(f"another copy of task {task.request.id} has done the work")
    if not messages.count(task.request, CHECKED_HEADER):
        released = ZkLockError("another copy of this task has just released the lock")
        messages.send_again(task, CHECKED_HEADER, released, longest=messages.FIRST_DELAY)
