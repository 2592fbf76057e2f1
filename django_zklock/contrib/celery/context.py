"""The contexts of a decorated function: a Celery worker has a message for its task, or calls it as its task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, get_args

from celery import Task
from celery._state import get_current_task

from django_zklock.conf.arguments import TaskPolicy
from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.contrib.celery import connect, messages, policy, redelivery
from django_zklock.contrib.celery.dispatch.result import PAYLOAD, WaitResult, wait_result
from django_zklock.contrib.celery.introspection import functions_of, work_of, work_of_message
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, LATE_HEADER
from django_zklock.contrib.celery.unique import lifecycle
from django_zklock.decorators.context import FunctionContext
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.execution import trace
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks
from django_zklock.locks.protocol.spec import Caller

_CALLED: Final = "zklock_called"  # attribute of a request: the decorated functions that were called in this run


class TaskContext:
    """
    A call of a task's function, mostly by a worker.

    By default it does not wait for the lock, and the task is sent again; unless it has waited in the main process.
    """

    kind = "Celery task"
    policies = get_args(TaskPolicy)
    timeout = 0.0
    on_timeout = "retry"

    def __init__(self, task: Task[..., Any], wrapper: Callable[..., Any]) -> None:
        self._task = task
        self._wrapper = wrapper
        self._by_worker = not (task.request.called_directly or task.request.is_eager)
        work = work_of(task)
        self.what = work.what
        self.about = work.about
        self._waited: WaitResult | None = None
        if PAYLOAD in task.request.__dict__:
            caller = Caller(thread=threading.current_thread().name, what=self.what, about=self.about)
            self._waited = wait_result(task.request, caller)
        self.on_conflict = "wait" if self._waited is not None and self._waited.is_granted else "retry"
        self.waits = self._waited is None or not self._waited.is_lost

    def before_acquire(self, lock: Locks, options: LockOptions) -> None:
        """Do not wait for a lock that another copy of this task holds, and do not share it with that copy."""
        if self._waited is not None and self._take_over(self._waited, lock):
            return
        exclusive = isinstance(lock, Lock) and options.kind != "read" and not isinstance(options.limit, int)
        if self._by_worker and not (exclusive and options.timeout == 0):
            policy.before_acquire(self._task, lock, options)

    def _take_over(self, result: WaitResult, lock: Locks) -> bool:
        """Take over the locks that the main process has acquired; return whether there are any."""
        error = result.error
        if result.resend and error is not None:
            messages.send_again(self._task, CONFLICTS_HEADER, error)
        if error is not None:
            raise error
        result.take(lock)
        return bool(result.held)

    def on_acquired(self) -> None:
        """Check for earlier deliveries, and end reservations. Ends this run if the work is done."""
        if self._by_worker and self._task.request.headers:
            redelivery.check_done(self._task)
            lifecycle.on_acquired(self._task, self._wrapper)

    def without_lock(self, error: ZkLockError, lock: Locks, options: LockOptions) -> Any:
        """Send the task again, or end it. A task that is called eagerly or directly is skipped, or raises."""
        if isinstance(error, LockLost) and self._by_worker:
            policy.on_lost(self._task, error, options)
        if not self.waits and isinstance(error, LockNotAcquired):
            # It waits again. At once, the end of the next run could be stored before the RETRY of this one.
            messages.send_again(self._task, LATE_HEADER, error, longest=messages.FIRST_DELAY)
        if self._by_worker:
            return policy.on_not_acquired(self._task, error, lock, options, self._waited)
        if options.on_conflict == "skip" and isinstance(error, LockNotAcquired):
            return None if options.skip_value is UNSET else options.skip_value
        raise error


class MessageContext(FunctionContext):
    """The context of a decorated function that a worker has a message for; only its defaults and the work are used."""

    kind = TaskContext.kind
    policies = TaskContext.policies
    timeout = 0.0
    on_conflict = "wait"
    on_timeout = "retry"

    def __init__(self, request: Any) -> None:
        retries = request.request_dict.get("retries") or 0
        work = work_of_message(request.task.name or "", request.id, request.delivery_info, retries)
        super().__init__(work.what)
        self.about = dict(work.about)
        if trace.items is not None:
            self.about |= trace.of_header(messages.headers_of(request).get("traceparent"))


def running_task(wrapper: Callable[..., Any]) -> TaskContext | None:
    """
    Return the context of a call of the decorated function `wrapper`; None if a worker does not call it as its task.

    The call may be that of a helper, or of the task's own function by itself. The wait and the failure of such a call
    do not concern the task's message. A task with two decorators has two locks, and calls each wrapper once.
    """
    task: Task[..., Any] | None = get_current_task()
    if task is None:
        return None
    for function, _ in functions_of(task):
        if function is wrapper:
            break
    else:
        return None
    called: set[Callable[..., Any]] = task.request.__dict__.setdefault(_CALLED, set())
    if wrapper in called:
        return None
    called.add(wrapper)
    return TaskContext(task, wrapper)


connect()  # in a process that imports Celery after all its functions were decorated
