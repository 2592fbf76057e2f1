"""Release what a task has acquired and not released when it ends."""

from __future__ import annotations

from typing import Any, Final

from celery import Task
from celery.signals import task_postrun, task_prerun

from django_zklock.contrib.celery.introspection import work_of
from django_zklock.execution import abort, work
from django_zklock.locks.leaks import LeakGuard

_GUARD: Final = "_zklock_guard"  # attributes of a request
_BEFORE: Final = "_zklock_before"


@abort.shielded
def begin(*, task: Task[..., Any], **kwargs: object) -> None:
    """Record what is held when the task begins, and make it the current work."""
    request = task.request
    current = work_of(task)
    setattr(request, _GUARD, LeakGuard(current))
    setattr(request, _BEFORE, work.begin(current))


@abort.shielded
def end(*, task: Task[..., Any], **kwargs: object) -> None:
    """Release what the task has left, however it ended."""
    request = task.request
    guard = getattr(request, _GUARD, None)
    if guard is None:
        return  # `begin` was interrupted
    try:
        guard.release_leaked()
    except BaseException:
        guard.release_leaked()  # interrupted, for example by a soft time limit, so do the rest
        raise
    finally:
        work.begin(getattr(request, _BEFORE, None))


task_prerun.connect(begin, dispatch_uid="zklock.begin")
task_postrun.connect(end, dispatch_uid="zklock.end")
