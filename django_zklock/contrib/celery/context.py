"""Knows what a call of a locked task means: which task runs, and what others may know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Task
from celery._state import get_current_task

from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.contrib.celery import callers, coalesce, connect, policy, redelivery
from django_zklock.contrib.celery.introspection import function_of
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.locks.multi import Locks, locks_of

_CALLED = "zklock_called"  # attribute of a request: the locks round its task that were come to in this run of it


class TaskCall:
    """A call of a task by a worker: does not wait, then is sent again."""

    timeout = 0.0
    on_conflict = "retry"

    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task
        self._request = task.request
        self._by_worker = not (self._request.called_directly or self._request.is_eager)
        self.what = what(task)
        self.about = about(task)

    def entering(self, lock: Locks, options: LockOptions) -> None:
        """Refuse to wait for a lock whose holder waits for this task, or is this task."""
        if self._by_worker:
            for each in locks_of(lock):
                callers.refuse_lock_of_caller(self._task, each)
            policy.entering(self._task, lock, options)

    def admitted(self) -> None:
        """Put right what the wait has left, before the work begins; or end this run if the work is done."""
        if self._by_worker:
            coalesce.begin(self._task)
            redelivery.settle(self._task)

    def refused(self, error: ZkLockError, lock: Locks, options: LockOptions) -> Any:
        """Send the task again, or end it; called eagerly or directly, it can only be skipped, or raise."""
        if self._by_worker:
            return policy.refused(self._task, error, lock, options)
        if options.on_conflict == "skip" and isinstance(error, LockNotAcquired):
            return None if options.skip_value is UNSET else options.skip_value
        raise error

    def lost(self, error: LockLost, options: LockOptions) -> Any:
        """Fail, or have it run once more."""
        if self._by_worker:
            policy.lost(self._task, error, options)
        raise error


def about(task: Task[..., Any]) -> dict[str, str]:
    """Return what others in the queue of a lock may know of the running task; never its arguments."""
    request = task.request
    queue = (request.delivery_info or {}).get("routing_key") or ""
    return {
        "task": task.name or "",
        "id": redelivery.short_id(request.id),
        "queue": str(queue),
        "retries": str(request.retries),
    }


def what(task: Task[..., Any]) -> str:
    """Return the running task in a few words."""
    return f"task {task.name} {task.request.id}"


def running_task(wrapper: Callable[..., Any]) -> TaskCall | None:
    """
    Return the task that a worker is running, if this call of a decorated function is what it runs.

    It is not if the function is a helper of it; nor if it is the task's own, called a second time, by itself: what
    that call may wait for, and how it fails, is no concern of the task's message. A task with two decorators has two
    locks, and each of them is come to once.
    """
    task: Task[..., Any] | None = get_current_task()
    if task is None or not _is_run_by(task, wrapper):
        return None
    request: Any = task.request
    called: set[Callable[..., Any]] = request.__dict__.setdefault(_CALLED, set())
    if wrapper in called:
        return None
    called.add(wrapper)
    return TaskCall(task)


def _is_run_by(task: Task[..., Any], wrapper: Callable[..., Any]) -> bool:
    run = function_of(task)
    function = getattr(run, "__func__", run)
    while function is not None and function is not wrapper:
        function = getattr(function, "__wrapped__", None)
    return function is wrapper


connect()  # for a process that imports Celery only after Django was set up
