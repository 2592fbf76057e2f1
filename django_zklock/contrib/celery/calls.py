"""Knows what a call of a locked task means: which task runs, and what others may know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Task
from celery._state import get_current_task

from django_zklock.contrib.celery import connect, policies
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError


class TaskCall:
    """A call of a task by a worker: does not wait, then is sent again."""

    timeout = 0.0
    on_conflict = "retry"

    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task
        self._request = task.request
        self.what = f"task {task.name} {task.request.id}"
        self.about = about(task)

    def refused(self, error: ZkLockError, on_conflict: str) -> None:
        """Send the task again, or end it; called eagerly or directly, it can only raise."""
        if self._request.called_directly or self._request.is_eager:
            if on_conflict == "skip" and isinstance(error, LockNotAcquired):
                return
            raise error
        if on_conflict == "retry":
            policies.send_again(self._task, self._request, error)
        if on_conflict == "skip" and isinstance(error, LockNotAcquired):
            policies.skip(self._task, self._request, error)
        raise error

    def lost(self, error: LockLost, on_conflict: str) -> None:
        """Fail; whether the task may run once more, its own options say."""
        raise error


def about(task: Task[..., Any]) -> dict[str, str]:
    """Return what others in the queue of a lock may know of the running task; never its arguments."""
    request = task.request
    queue = (request.delivery_info or {}).get("routing_key") or ""
    return {"task": task.name or "", "id": str(request.id or ""), "queue": str(queue), "retries": str(request.retries)}


def running_task(wrapper: Callable[..., Any]) -> TaskCall | None:
    """Return the task that a worker is running, if this decorated function is what it runs, not a helper of it."""
    task: Task[..., Any] | None = get_current_task()
    if task is None:
        return None
    run = getattr(task, "_orig_run", task.run)  # autoretry_for puts another function in front
    function = getattr(run, "__func__", run)
    while function is not wrapper:
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return TaskCall(task)


connect()  # for a process that imports Celery only after Django was set up
