"""
Knows which tasks wait for the running one under a lock, so that one which needs that lock is told, and does not wait.

That a task waits for another can be known only where it says so: inside `allow_join_result()`, without which Celery
forbids to. What is sent there under a lock names the tasks that wait, and at which of their tries: one that was tried
again since does not wait for what its former try has sent.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from typing import Any
from urllib.parse import quote

from celery import Task
from celery._state import get_current_task, task_join_will_block  # type: ignore[attr-defined]
from celery.signals import before_task_publish, task_prerun

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.copies import short_id
from django_zklock.exceptions import LockHeldByCaller
from django_zklock.locks.hold import holds_any
from django_zklock.locks.lock import Lock
from django_zklock.locks.looking import in_the_way_for_ever
from django_zklock.queue.nodes import Payload

CALLERS_HEADER = "zklock_callers"
"""The tries of tasks that hold a lock and wait for this one, joined by spaces; the nearest one last."""

MOST_CALLERS = 8

_MAY_NOT_JOIN = "zklock_may_not_join"  # attribute of a request: Celery forbids this task to wait for others


def refuse_lock_of_caller(task: Task[..., Any], lock: Lock) -> None:
    """
    Raise `LockHeldByCaller` if a task that waits for this one leaves no room in the lock.

    Where both share it, as readers or with a permit for each, there is room.
    """
    callers = messages.text(task.request, CALLERS_HEADER).split()
    if not callers:
        return
    holder = in_the_way_for_ever(lock, lambda each: _is_try_of(each.payload, callers))
    if holder is None or holder.payload is None:
        return
    about = holder.payload.about
    raise LockHeldByCaller(
        f"The lock {lock.key!r} is held by task {about.get('task')}[{about.get('id')}], which waits for the result of "
        f"{task.name}[{task.request.id}], so neither would ever go on. Let the caller let go of the lock first, or "
        "call the work as a function: the lock is its owner's to take again.",
        lock=lock.key,
    )


def _is_try_of(payload: Payload | None, callers: Container[str]) -> bool:
    return payload is not None and _try_of(payload.about, payload.pid) in callers


def note_rules(task: Task[..., Any], **_more: Any) -> None:
    """Note whether Celery forbids this task to wait for others, as it does where that blocks a process."""
    setattr(task.request, _MAY_NOT_JOIN, task_join_will_block())


def name_callers(headers: Any = None, **_more: Any) -> None:
    """Write into a message which tasks wait for it under a lock."""
    task: Any = get_current_task()
    if task is None or not isinstance(headers, dict) or task_join_will_block():
        return
    request = task.request
    if not getattr(request, _MAY_NOT_JOIN, False) or headers.get("id") == request.id:
        return
    callers = messages.text(request, CALLERS_HEADER).split()
    if holds_any():
        callers.append(_try_of({"id": short_id(request.id), "retries": str(request.retries)}, os.getpid()))
    if callers:
        headers[CALLERS_HEADER] = " ".join(dict.fromkeys(callers[-MOST_CALLERS:]))


def _try_of(about: Mapping[str, str], pid: int) -> str:
    """Return what tells this try of a task from others of the same; in one word, whatever its id is."""
    return f"{quote(about.get('id', ''))}/{about.get('retries', '')}/{pid}"


task_prerun.connect(note_rules, dispatch_uid="zklock.note_rules")
before_task_publish.connect(name_callers, dispatch_uid="zklock.name_callers")
