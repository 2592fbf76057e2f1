"""
The contexts of the decorated function of a task: `TaskContext` if the task runs, `MessageContext` before.

The context of a call decides what happens to a task that does not get its lock, or loses it: the task is sent again,
is skipped, or fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from celery import Task
from celery._state import get_current_task
from celery.exceptions import Ignore

from django_zklock.contrib.celery import connect, messages
from django_zklock.contrib.celery.calls import CallContext, caller_of_call
from django_zklock.contrib.celery.dispatch.pool_process import WaitResult, wait_result
from django_zklock.contrib.celery.dispatch.shared_grants import PAYLOAD
from django_zklock.contrib.celery.introspection import all_functions_of, is_in_task, lock_around
from django_zklock.contrib.celery.messages import (
    CONFLICTS_HEADER,
    COPIES_HEADER,
    COPY_HEADER,
    LATE_HEADER,
    LOST_HEADER,
    WAITED_HEADER,
)
from django_zklock.contrib.celery.unique import lifecycle
from django_zklock.core.log import Logger
from django_zklock.core.protocol import releases
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.spec import Caller
from django_zklock.decorators.context import AcquireAgain, FunctionContext
from django_zklock.exceptions import (
    LockDeadlock,
    LockLost,
    LockNotAcquired,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.locks import trace
from django_zklock.locks.events import events
from django_zklock.locks.transactions import is_of_hook

logger = Logger("django_zklock.celery")

_CALLED: Final = "zklock_called"
"""Attribute of a request: the contexts of the decorated functions that were called in this run."""


class TaskContext(CallContext):
    """
    The call of a task's function by a worker.

    By default it does not wait for the lock: a task that does not get it is sent again. If the main process was granted
    the lock for the task, that grant is used.

    Work begins again only if the task says that it may run twice. Before its work has begun, it is always sent again.
    """

    def __init__(self, task: Task[..., Any], wrapper: Callable[..., Any]) -> None:
        super().__init__(task, "")
        self._wrapper = wrapper
        (task.request.headers or {}).pop(WAITED_HEADER, None)  # that wait is over
        self._wait_result: WaitResult | None = None
        if PAYLOAD in task.request.__dict__:
            caller = Caller(thread=threading.current_thread().name, what=self.what, about=self.about)
            self._wait_result = wait_result(task.request, caller)
        self.on_conflict = "wait" if self._wait_result is not None and self._wait_result.is_granted else "retry"
        self.waits = self._wait_result is None or not self._wait_result.is_lost

    def before_acquire(self) -> None:
        """Use the locks that the main process has acquired, or raise the error that ended its wait."""
        if self._wait_result is None:
            return
        error = self._wait_result.error
        if error is not None and self._wait_result.resend:
            messages.send_again(self._task, CONFLICTS_HEADER, error, **self._wait_result.resend)
        if error is not None:
            raise error
        self._wait_result.hand_over(self.lock)

    def again(self, error: AcquireAgain) -> None:
        """
        Go on in this process, without what the main process has acquired or found. Wait until the task expires.

        A lock around this one is given back meanwhile, unless the task has worked under it. Otherwise two tasks could
        wait for each other.
        """
        super().again(error)
        if self._caller:
            return
        called: dict[Callable[..., Any], TaskContext] = self._task.request.__dict__[_CALLED]
        if any(outer is not self and outer.lock.owned() for outer in called.values()):
            raise error
        called.clear()
        called[self._wrapper] = self
        if self._wait_result is not None:
            self._wait_result.end()
        self._wait_result, self.waits = None, True
        expires = messages.expiry(self._task.app, self._task.request.expires)
        self.timeout = None if expires is None else max(0.0, expires - time.time() - error.args[0])

    def on_acquired(self) -> None:
        """End this run if another run of the task has done the work; else end its reservation, as the work begins."""
        if self._task.request.headers:
            messages.check_returns(self._task)
            messages.check_done(self._task)
            lifecycle.on_acquired(self._task, self._wrapper)

    def on_released(self) -> None:
        """Wait for the release of a part of a chord: the last part, perhaps in another process, sends the body."""
        if self._task.request.chord:
            releases.wait()

    def on_error(self, error: LockNotAcquired | ZooKeeperUnavailable | LockLost) -> Any:
        """Send the task again, too, if its body was part of a deadlock and may run twice: its locks are released."""
        if isinstance(error, LockDeadlock) and self._has_begun and self._may_run_twice(error):
            messages.send_again(self._task, LOST_HEADER, error)
        return super().on_error(error)

    @property
    def _has_worked(self) -> bool:
        """Whether code of the user has run under a lock of this task. Of two decorators, the inner one may follow."""
        called: dict[Any, TaskContext] = self._task.request.__dict__[_CALLED]
        return any(call._has_begun and not lock_around(wrapper.__wrapped__) for wrapper, call in called.items())

    def _may_run_twice(self, error: ZkLockError) -> bool:
        """
        Return whether the work may begin again after this error.

        `acks_late` says so, as a worker may die. But the end of a `max_hold` would come again each time. And after the
        COMMIT, only what follows it has failed.
        """
        if is_of_hook(error):
            return False
        is_bounded = any(spec.max_hold is not None for spec in self.lock.specs)
        default = "retry" if self._task.acks_late and not is_bounded else "fail"
        return self.options.get("on_lost", default) == "retry" and not self._is_spent(LOST_HEADER)

    def without_lock(self, error: ZkLockError) -> Any:
        """
        Return the result of a task that did not get its lock or lost it, or raise what ends this run.

        If ZooKeeper is not available, nothing is skipped.
        """
        if self._has_worked and not self._may_run_twice(error):
            self._caller = "task"
            return super().without_lock(error)
        if isinstance(error, LockLost):
            self._send_again_after_loss(error)
        if isinstance(error, LockNotAcquired):
            if not self.waits:
                self._send_again_after_loss(error)
            self._send_again_if_its_own(error)
            if self.options["on_conflict"] == "skip":
                return self._skip(str(error))
        return self._send_again_or_raise(error)

    def _send_again_after_loss(self, error: ZkLockError) -> NoReturn:
        """
        Send the task again because its lock was lost.

        If its work had not begun, it waits again, after a delay. Without one, the next run might end before the RETRY
        of this run is stored.
        """
        if self._has_worked:
            messages.send_again(self._task, LOST_HEADER, error)
        messages.send_again(self._task, LATE_HEADER, error, longest=messages.FIRST_DELAY)

    def _send_again_or_raise(self, error: ZkLockError) -> NoReturn:
        if self._is_repeated(error) and not self._is_spent(CONFLICTS_HEADER):
            messages.send_again(self._task, CONFLICTS_HEADER, error)
        raise error

    def _send_again_if_its_own(self, error: LockNotAcquired) -> None:
        """
        Send the task again if another run of it has the lock, or may have it. That is not what its policy is for.

        The run of a copy may have died, and its lock ends with its session. The run before a `Task.retry` is about to
        release the lock.
        """
        if "redelivered" in self.about:
            came: Any = (self._task.request.headers or {}).get(COPY_HEADER, time.time())  # its outer lock has asked
            messages.send_again(self._task, COPIES_HEADER, error, **{COPY_HEADER: came})
        if error.ahead is not None and self._is_run_before(error.ahead) and not self._is_spent(CONFLICTS_HEADER):
            messages.send_again(self._task, CONFLICTS_HEADER, error)

    def _is_run_before(self, contender: ContenderInfo) -> bool:
        """Return whether this is the run that has sent this one, by `Task.retry`, and is about to release the lock."""
        retries: Any = self._task.request.retries  # of a message
        before = (self.about["id"], str(retries - 1) if isinstance(retries, int) else None)
        return (contender.about.get("id"), contender.about.get("retries")) == before

    def _skip(self, reason: str) -> Any:
        """
        End the task without its work: with the value that its options give, else as REVOKED.

        A result of None would look like the work's own result, and a chain would continue with it.
        """
        if "skip_value" in self.options:
            return self.options["skip_value"]
        messages.revoke(self._task, self._task.request, reason)
        raise Ignore(reason)

    def _is_spent(self, header: str) -> bool:
        """Return whether the task was sent again as often as `max_conflicts` allows, for the reason of this header."""
        most: int | None = self.options.get("max_conflicts")
        return most is not None and messages.count(self._task.request, header) >= most


class MessageContext(FunctionContext):
    """The context of a task that a worker has not begun. Only its defaults and its description of the work are used."""

    kind = CallContext.kind
    policies = CallContext.policies
    timeout = 0.0
    on_conflict = "wait"
    on_conflict_with_timeout = "retry"

    def __init__(self, request: Any) -> None:
        work = messages.describe(request.task, {**request.request_dict, "headers": messages.headers_of(request)})
        super().__init__(work.what, dict(work.about))
        if events.about is not None:
            self.about |= trace.of_header(request.request_dict.get("traceparent"))


def running_task(wrapper: Callable[..., Any]) -> FunctionContext | None:
    """
    Return the context of a call of the decorated function `wrapper` in a run of a task; None if it is plain code.

    The call may be that of a helper, or of the task's own function by itself. The wait and the failure of such a call
    do not concern the task's message. A task with two decorators has two locks, and calls each wrapper once.
    """
    task: Task[..., Any] | None = get_current_task()
    if task is None:
        return None
    if task.run is not wrapper and wrapper not in all_functions_of(task):
        return _handler(wrapper)
    called: dict[Callable[..., Any], FunctionContext] = task.request.__dict__.setdefault(_CALLED, {})
    if wrapper in called:
        return _handler(wrapper)
    if task.request.called_directly:
        # With a `Strategy` of its own, Celery's tracer does not call it, and nobody would get the error.
        caller = "task" if task.Strategy != Task.Strategy else caller_of_call()
        called[wrapper] = CallContext(task, caller)
    elif task.request.is_eager:
        called[wrapper] = CallContext(task, "task" if is_in_task() else "")
    else:
        called[wrapper] = TaskContext(task, wrapper)
    return called[wrapper]


def _handler(wrapper: Callable[..., Any]) -> FunctionContext | None:
    """Return the context of a locked function in a handler, which waits without limit: Celery only logs its error."""
    if caller_of_call() != "task":
        return None
    context = FunctionContext(str(lock_around(wrapper)), {})
    context.timeout = None
    return context


connect()  # in a process that imports Celery after all its functions were decorated
