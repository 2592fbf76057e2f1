"""
The contexts of calls of a task's function without a message, which could be sent again.

Celery makes some of these calls in a run of another task: error handlers, items of `map`. Other code makes the rest.
"""

from __future__ import annotations

import threading
from typing import Any, get_args

from celery import Task
from django.db import connections

from django_zklock.conf.arguments import TaskPolicy
from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import celery_calls
from django_zklock.core.log import Logger
from django_zklock.decorators.context import AcquireAgain, FunctionContext
from django_zklock.exceptions import LockDeadlock, LockNotAcquired, ZkLockError

logger = Logger("django_zklock.celery")


class CallContext(FunctionContext):
    """
    A call of a task's function as a function, or by `apply()`.

    Celery at most logs an error of a call that it makes itself. So such a call waits as long as a task would: in the
    slot of the task that runs, or in a thread if Celery makes it in the worker's main process, which must not wait. Any
    other caller gets the error.
    """

    kind = "Celery task"
    policies = get_args(TaskPolicy)
    timeout: float | None = 0.0
    on_conflict = on_conflict_with_timeout = "retry"

    def __init__(self, task: Task[..., Any], caller: str) -> None:
        work = messages.work_of(task)
        super().__init__(work.what, dict(work.about))
        self._task = task
        self._caller = caller
        self.waits = caller != "worker"

    def without_lock(self, error: ZkLockError) -> Any:
        """Return the result of a call that did not get its lock, or has lost it; or raise."""
        if self._caller == "worker" and not self._has_begun:
            request: Any = self._task.request
            HandlerThread(None, self._task, self._task.name, request.args, request.kwargs).start()
            return None
        if self.options["on_conflict"] == "skip" and isinstance(error, LockNotAcquired):
            return self._skip(str(error))
        in_slot = self._caller == "task" and not self._has_begun
        if in_slot and self._is_repeated(error) and not isinstance(error, LockDeadlock):
            raise AcquireAgain(0.0 if isinstance(error, LockNotAcquired) else messages.FIRST_DELAY)
        raise error

    def _skip(self, reason: str) -> Any:
        return self.options.get("skip_value")

    def _is_repeated(self, error: ZkLockError) -> bool:
        """Return whether the policy of the call has it try again."""
        policy = self.options["on_conflict"]
        is_final = isinstance(error, LockNotAcquired) and not isinstance(error, LockDeadlock)
        return self.is_again or policy == "retry" or (policy == "wait" and not is_final)


class HandlerThread(threading.Thread):
    """A thread of the main process that calls an error handler, which waits for its lock. The process waits for it."""

    def run(self) -> None:
        """Call the handler as Celery does."""
        try:
            super().run()
        except Exception:
            logger.exception("the error handler %r has failed", self.name)
        finally:
            connections.close_all()


def caller_of_call() -> str:
    """Return "task" if Celery makes the present call in the run of a task, "worker" if outside of it; else ""."""
    return "task" if isinstance(threading.current_thread(), HandlerThread) else celery_calls()
