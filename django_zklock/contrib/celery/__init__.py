"""Knows what a lock means to a Celery task: which task runs, how it is sent again, and when its process ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery import Task
from celery._state import get_current_task
from celery.exceptions import Ignore, Retry
from celery.signals import worker_process_shutdown, worker_shutdown

from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.zk import process

if TYPE_CHECKING:
    from django_zklock.contrib.celery.beat import ZkScheduler

__all__ = ["ZkScheduler"]

CONFLICTS_HEADER = "zklock_conflicts"
FIRST_DELAY = 0.5  # seconds before a task is tried again, doubled each time
LONGEST_DELAY = 15.0


class TaskCall:
    """A call of a task by a worker: does not wait, then is sent again."""

    timeout = 0.0
    on_conflict = "retry"

    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task
        self._request = task.request
        self.what = f"task {task.name} {task.request.id}"

    def refused(self, error: ZkLockError, on_conflict: str) -> None:
        """Send the task again, or end it; called eagerly or directly, it can only raise."""
        if self._request.called_directly or self._request.is_eager:
            if on_conflict == "skip" and isinstance(error, LockNotAcquired):
                return
            raise error
        if on_conflict == "retry":
            self._send_again(error)
        if on_conflict == "skip" and isinstance(error, LockNotAcquired):
            self._skip(error)
        raise error

    def lost(self, error: LockLost, on_conflict: str) -> None:
        """Fail; whether the task may run once more, its own options say."""
        raise error

    def _send_again(self, error: ZkLockError) -> None:
        """
        Publish the task anew, with the retries it has had, and leave by `Retry`.

        Not by `Task.retry`, which counts against the task's own `max_retries`: waiting for a lock is no failure.
        """
        conflicts = int((self._request.headers or {}).get(CONFLICTS_HEADER, 0)) + 1
        # Half of it by chance, so that tasks that met once do not go on meeting.
        longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(conflicts - 1, 10))
        delay = round(longest * random.uniform(0.5, 1.0), 3)  # noqa: S311
        signature = self._task.signature_from_request(self._request, retries=self._request.retries, countdown=delay)
        signature.options["headers"] = {**(signature.options.get("headers") or {}), CONFLICTS_HEADER: conflicts}
        signature.apply_async()
        raise Retry(exc=error, when=delay, sig=signature) from error  # type: ignore[arg-type]

    def _skip(self, error: ZkLockError) -> None:
        """
        End the task as REVOKED.

        A value would pass for the result: a chain would go on with it, and a second copy of a running task would
        hide what the first one returns. Nothing at all would leave `get()` waiting for ever.
        """
        self._task.backend.mark_as_revoked(
            str(self._request.id), str(error), request=self._request, store_result=not self._request.ignore_result
        )
        raise Ignore(str(error)) from error


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


def close_session(**kwargs: object) -> None:
    """End the session of a worker process that ends, so that what it held is free at once."""
    process.reset()


# A pool process leaves without running exit handlers; the other pools' process runs them, but late.
worker_process_shutdown.connect(close_session, dispatch_uid="zklock.close_session")
worker_shutdown.connect(close_session, dispatch_uid="zklock.close_session")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the scheduler when somebody asks for it: a worker has no use for `celery.beat`."""
        if name != "ZkScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("django_zklock.contrib.celery.beat").ZkScheduler
