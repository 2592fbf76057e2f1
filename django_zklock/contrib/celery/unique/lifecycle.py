"""
The life cycle of a reservation: where the task is sent, in the process that runs it, and in the main process.

A header of the task's message names the key. The reservation begins when the task is sent, and ends when the task
starts or is done. It also ends by itself, after a time.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from celery import Celery, Task, states
from celery._state import get_current_task
from celery.app.task import Context
from celery.signals import (
    task_failure,
    task_postrun,
    task_received,
    task_rejected,
    task_revoked,
    task_unknown,
)
from celery.utils import uuid
from django.core.exceptions import ImproperlyConfigured

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import arguments, functions_of, locked_of, overridden_locks
from django_zklock.contrib.celery.messages import headers_of
from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.reservations import LASTS, is_key
from django_zklock.core.log import Logger
from django_zklock.decorators.locked import LockedFunction
from django_zklock.exceptions import AlreadyQueued, InvalidLockName, LockTimeout, ZooKeeperUnavailable
from django_zklock.names.template import MAX_KEY, escape

logger = Logger("django_zklock.celery")

UNIQUE_HEADER: Final = "zklock_unique"
"""The key of the reservation that a unique task has."""

_ENDED: Final = "zklock_ended"  # attributes of a request
_GOES_ON: Final = "zklock_goes_on"


def unique_prefix(task: Task[..., Any]) -> str:
    """Return the prefix of all keys of the reservations of this unique task."""
    return f"task/{escape(str(task.name), what='task name')}/"


def unique_key(task: Task[..., Any], lock_key: str) -> str:
    """Return the key of a reservation: the name of its task, and the key of its lock, or a digest of a long one."""
    prefix = unique_prefix(task)
    is_short = len(reservations.lock_key(prefix + lock_key)) <= MAX_KEY
    return prefix + (lock_key if is_short else hashlib.sha256(lock_key.encode()).hexdigest())


def key_of_call(task: Task[..., Any], locked: LockedFunction, message: Mapping[str, Any]) -> str:
    """Return the key of the reservation of a call with the `args` and `kwargs` of a message."""
    call = arguments(task, message.get("args"), message.get("kwargs"))
    try:
        return unique_key(task, locked.key(*call))
    except InvalidLockName as error:
        if next(functions_of(task)).function is locked.wrapper:
            raise
        raise InvalidLockName(
            f"{error} The key of the unique task {task.name} is computed from its message. If a decorator "
            "changes the arguments, put it below @zk_locked, or let a callable compute the key from the message."
        ) from error


def _key(headers: Any) -> str:
    """Return the key of the reservation in the headers of a message; empty if there is none."""
    key = (headers or {}).get(UNIQUE_HEADER)
    return key if is_key(key) else ""


# --- where the task is sent -------------------------------------------------------------------------------------------


class UniqueMessage:
    """The message of a unique task that is about to be sent: by a new call, or again, as by `retry` and `replace`."""

    def __init__(self, app: Celery, task: Task[..., Any], locked: LockedFunction, options: dict[str, Any]) -> None:
        self._app = app
        self._task = task
        self._lock_options = locked.options
        given = options.get("task_id")  # the caller may wait for this id. Celery takes a UUID, too
        self._has_given_id = bool(given)
        self.task_id = str(given) if given else uuid()
        self._headers = dict(options.get("headers") or {})
        self._options = {**options, "task_id": self.task_id, "headers": self._headers}
        inherited = _key(self._headers)
        self._headers.pop(UNIQUE_HEADER, None)
        current: Any = get_current_task()
        self._running = current.request if current is not None and current.request.id == self.task_id else None
        """The request of the task that sends itself again."""
        keeps_key = self._has_given_id and inherited.startswith(unique_prefix(task))
        self._is_sent_again = keeps_key or self._running is not None
        # A callable could compute another key from arguments that have changed. The task must keep its own.
        self.key = inherited if keeps_key else key_of_call(task, locked, options)

    def send(self, send: Callable[..., Any]) -> Any:
        """Send the message by `send(**options)`, unless it is a duplicate. Return what the sender of the task gets."""
        if self._is_sent_again:
            return self._send_again(send)
        with self._reserved() as other:
            return self._send_with_key(send) if other is None else self._duplicate(other)

    def _send_again(self, send: Callable[..., Any]) -> Any:
        """Send it in any case, as the task must not be lost. Another one has its key if its reservation has ended."""
        with ExitStack() as stack:
            try:
                other = stack.enter_context(self._reserved())
            except (ZooKeeperUnavailable, LockTimeout) as error:
                logger.warning("task %r is sent again without a reservation: %s", self.task_id, error)
                return send(**self._options)
            if other is not None:
                return send(**self._options)
            result = self._send_with_key(send)
        if self._running is not None and _key(self._running.headers) == self.key:
            setattr(self._running, _GOES_ON, True)  # the end of that run keeps the reservation
        return result

    def _send_with_key(self, send: Callable[..., Any]) -> Any:
        self._headers[UNIQUE_HEADER] = self.key
        return send(**self._options)

    def _reserved(self) -> AbstractContextManager[str | None]:
        return reservations.reserved(
            self.key,
            self.task_id,
            task=str(self._task.name),
            seconds=self._seconds(),
            again=self._is_sent_again,
            has_ended=self._has_ended,
        )

    def _has_ended(self, task_id: str) -> bool:
        # A stored result for its own id is that of an earlier call.
        return task_id != self.task_id and messages.finished_at(self._app.backend, task_id) is not None

    def _seconds(self) -> float:
        """Return for how long the reservation lasts: from the time at which the task may begin, until it expires."""
        now = time.time()
        eta = self._options.get("countdown") or self._options.get("eta")
        begin = messages.expiry(self._app, eta) or now
        expires = messages.expiry(self._app, self._options.get("expires", getattr(self._task, "expires", None)))
        lasts = self._lock_options.get("unique_for")
        end = max(begin, now) + (LASTS if lasts is None else lasts)
        return (end if expires is None else min(end, expires)) - now

    def _duplicate(self, other: str) -> Any:
        """Return the result of the first task, or raise `AlreadyQueued`."""
        error = AlreadyQueued(
            f"Task {self._task.name} is queued or runs with the same key already, as {other}.", lock=self.key
        )
        error.task_id = other
        error.result = (self._options.get("result_cls") or self._app.AsyncResult)(other)
        logger.info("a duplicate was not sent: %s", error)
        if self._has_given_id and self.task_id != other:
            self._revoke(str(error))
        if self._lock_options.get("on_duplicate") == "raise":
            raise error
        return error.result

    def _revoke(self, reason: str) -> None:
        """Store REVOKED for a task that is not sent: a canvas may wait for the id that it gave to the task."""
        given = self._options
        request = {"id": self.task_id, "task": self._task.name, "group": given.get("group_id")}
        request |= {name: given.get(name) for name in ("args", "kwargs", "group_index", "chord", "chain")}
        request["ignore_result"] = given.get("ignore_result", self._task.ignore_result)
        messages.revoke(self._task, Context(request), reason)


def stop_duplicates() -> None:
    """
    Replace `Celery.send_task`, once in a process, so that duplicates of unique tasks are not sent.

    Every message goes through it: those of `delay`, canvases, retries and beat. The signal `before_task_publish` would
    not do: Celery logs what its receivers raise, and sends the message.
    """
    original = Celery.send_task
    if hasattr(original, "__zk_locked__"):
        return
    parameters = inspect.signature(original).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(original)
    def send_task(self: Celery, *args: Any, **options: Any) -> Any:
        options.update(zip(positional[1:], args, strict=False))
        name = options.pop("name")
        task = options.get("task_type") or _registered(self, name)
        locked = locked_of(task)
        if task is not None and locked is None:
            _refuse_overridden(task)
        if task is None or locked is None or not locked.options.get("unique"):
            return original(self, name, **options)
        return UniqueMessage(self, task, locked, options).send(functools.partial(original, self, name))

    send_task.__zk_locked__ = True  # type: ignore[attr-defined]
    Celery.send_task = send_task  # type: ignore[method-assign, assignment]


def _refuse_overridden(task: Task[..., Any]) -> None:
    """Raise `ImproperlyConfigured` if the task overrides a unique method: only the override could compute its key."""
    for locked in overridden_locks(task):
        if locked.options.get("unique"):
            raise ImproperlyConfigured(
                f"The task {task.name} overrides {locked}, whose @zk_locked has unique=, so its key is not known "
                "before it runs. Put @zk_locked on the override."
            )


def _registered(app: Any, name: str) -> Task[..., Any] | None:
    # An application that was not used yet has an incomplete list of tasks.
    tasks: Mapping[str, Task[..., Any]] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks.get(name)


# --- in the process that runs the task ----------------------------------------------------------------------------


def on_acquired(task: Task[..., Any], wrapper: object) -> None:
    """
    End the reservation of a task that is unique until its work begins; the lock of `wrapper` is acquired.

    Raises `ZooKeeperUnavailable` if ZooKeeper does not confirm that: later callers would rely on a task that has begun.
    """
    request: Any = task.request
    key, locked = _key(request.headers), locked_of(task)
    if not key or hasattr(request, _ENDED) or locked is None or locked.wrapper is not wrapper:
        return
    if locked.options.get("unique") == "until_start":
        problem = reservations.end(key, str(request.id), reply_timeout=reservations.RESERVE_TIMEOUT)
        if problem is not None:
            raise ZooKeeperUnavailable(f"It is not confirmed that the task no longer waits. {problem}", lock=key)
        setattr(request, _ENDED, True)


def on_postrun(
    task: Task[..., Any], task_id: str, retval: Any = None, state: str | None = None, **kwargs: object
) -> None:
    """
    End the reservation of a task that has ended; keep that of one that will run again.

    Without a state the process is ending. It does not know whether the task will run again.
    """
    request: Any = task.request
    key = _key(request.headers)
    if not key or hasattr(request, _ENDED):
        return
    if state in (None, states.RETRY) or hasattr(request, _GOES_ON) or messages.is_given_back(task, state, retval):
        return
    reservations.end(key, task_id)


# --- in the worker's main process ---------------------------------------------------------------------------------

received: weakref.WeakSet[Any] = weakref.WeakSet()
"""The requests of this worker that have a reservation."""


def on_received(request: Any, **kwargs: object) -> None:
    """Remember a request that has a reservation: the worker may have to end it."""
    if UNIQUE_HEADER in request.message.headers:
        received.add(request)


def on_revoked(request: Any, **kwargs: object) -> None:
    """End the reservation of a task that was revoked, before or while it ran, or that has expired."""
    end_in_background(request.headers, request.id)


def on_failure(task_id: str, exception: BaseException, sender: Task[..., Any], **kwargs: object) -> None:
    """End the reservation of a task whose process died, or was killed at a time limit."""
    if messages.died(sender, exception):
        for request in [request for request in received if request.id == task_id]:
            end_in_background(headers_of(request), task_id)


def on_discarded(message: Any, id: Any = None, **kwargs: object) -> None:
    """End the reservation of a message that Celery discards: its task is unknown, or its content is refused."""
    if isinstance(message.headers, dict):
        end_in_background(message.headers, message.headers.get("id", id))


def end_in_background(headers: Any, task_id: object) -> None:
    """End the reservation of a task in the background."""
    key = _key(headers)
    if key:
        reservations.end(key, str(task_id), reply_timeout=0)


task_postrun.connect(on_postrun, dispatch_uid="zklock.reservations_on_postrun")
task_received.connect(on_received, dispatch_uid="zklock.reservations_on_received")
task_revoked.connect(on_revoked, dispatch_uid="zklock.reservations_on_revoked")
task_failure.connect(on_failure, dispatch_uid="zklock.reservations_on_failure")
task_unknown.connect(on_discarded, dispatch_uid="zklock.reservations_on_unknown")
task_rejected.connect(on_discarded, dispatch_uid="zklock.reservations_on_rejected")
