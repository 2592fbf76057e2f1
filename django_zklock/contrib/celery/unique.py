"""
Knows how a task is unique from its publishing on: at each way into the broker, in the workers, and at each end.

Every message goes through `Celery.send_task`: those of `delay`, of canvases, of retries, of beat. So this is where a
duplicate is stopped, once `unique` was asked for in a process. (The signal `before_task_publish` could not: Celery logs
what its receivers raise, and sends.) The message carries its key in a header, by which the workers know it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery import Celery, Task, states
from celery._state import get_current_task
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.signals import task_failure, task_postrun, task_prerun, task_revoked
from celery.utils import uuid
from celery.utils.time import maybe_make_aware

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import Locked, arguments, locked_of
from django_zklock.exceptions import AlreadyQueued, InvalidLockName, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.operations import reservations
from django_zklock.operations.reservations import Attached, Reserved, Taken, Uniqueness
from django_zklock.queue.names import escape

logger = logging.getLogger("django_zklock.celery")

HEADER = "zklock_unique"
"""The header of a message that has a reservation; its value is the key of that."""

_ATTACHED = "zklock_attached"  # attribute of a request, in the worker
_FREED = "zklock_freed"  # the same


def unique_of(task: object) -> Locked | None:
    """Return what is known of a task's function, if the task is to be unique."""
    locked = locked_of(task)
    return locked if locked is not None and locked.uniqueness is not None else None


def key_of(task: Task[..., Any], locked: Locked, args: Any, kwargs: Any) -> str:
    """Return the key by which a call of a task is unique: that of its lock, among the tasks of its name."""
    return _prefix(task) + locked.key(*arguments(task, args, kwargs))


def _prefix(task: Task[..., Any]) -> str:
    return f"task/{escape(str(task.name), what='task name')}/"


# --- the publisher ----------------------------------------------------------------------------------------------------


class Publishing:
    """One message of a unique task, on its way into the broker."""

    def __init__(self, app: Celery, task: Task[..., Any], locked: Locked, options: dict[str, Any]) -> None:
        self._app = app
        self._task = task
        self._uniqueness = locked.uniqueness or Uniqueness()
        self._options = options
        promised = options.get("task_id")  # somebody may wait for this id; a UUID will do for Celery, too
        self._promised = str(promised) if promised else None
        self.task_id = self._promised or uuid()
        headers = dict(options.get("headers") or {})
        inherited: Any = headers.pop(HEADER, None)
        self._headers = headers
        self._comes_again = self._promised is not None and (
            (isinstance(inherited, str) and inherited.startswith(_prefix(task))) or self._is_running()
        )
        # What the arguments say could change on the way, where a callable makes the key; the task must keep its own.
        kept = inherited if self._comes_again and isinstance(inherited, str) else None
        self.key = kept or key_of(task, locked, options.get("args"), options.get("kwargs"))

    def _is_running(self) -> bool:
        current: Any = get_current_task()
        return current is not None and current.request.id == self._promised

    def send(self, send: Callable[..., Any]) -> Any:
        """Send the message by `send(**options)` if it is the only one; else say what the task's options want said."""
        found = self._reserve()
        if isinstance(found, Taken):
            return self._duplicate(found)
        options = {**self._options, "task_id": self.task_id, "headers": self._headers}
        if found is None:
            return send(**options)
        options["headers"] = {**self._headers, HEADER: self.key}
        try:
            result = send(**options)
        except BaseException:
            reservations.withdraw(found)
            raise
        reservations.confirm(found)
        return result

    def _reserve(self) -> Reserved | Taken | None:
        try:
            found = reservations.reserve(
                self.key,
                self.task_id,
                late=bool(self._task.acks_late),
                until=self._until(),
                is_over=functools.partial(is_over, self._app),
            )
        except (ZooKeeperUnavailable, LockTimeout) as error:
            if not self._comes_again:
                raise
            logger.warning("task %s comes again without a reservation: %s", self.task_id, error)
            return None
        if isinstance(found, Taken) and self._comes_again:
            # Not sent, it would be lost with all that follows it. It lost its place, or gave it up when it began.
            return None
        return found

    def _until(self) -> float | None:
        now = time.time()
        longest = self._uniqueness.seconds
        ends = [] if longest is None else [now + longest]
        expires = self._options.get("expires", getattr(self._task, "expires", None))
        if isinstance(expires, str):
            expires = datetime.fromisoformat(expires.replace("Z", "+00:00"))
        if isinstance(expires, datetime):
            ends.append(maybe_make_aware(expires, self._app.timezone).timestamp())
        elif expires is not None:
            ends.append(now + float(expires))
        return min(ends, default=None)

    def _duplicate(self, taken: Taken) -> Any:
        error = AlreadyQueued(
            f"Task {self._task.name} is queued or runs with the same key already, as {taken.task_id}.", lock=self.key
        )
        error.task_id = taken.task_id
        error.result = (self._options.get("result_cls") or self._app.AsyncResult)(taken.task_id)
        logger.info("a duplicate was not sent: %s", error)
        if self._promised is not None:
            self._break_promise(self._promised, str(error))
        if self._uniqueness.on_duplicate == "raise":
            raise error
        return error.result

    def _break_promise(self, task_id: str, reason: str) -> None:
        """
        End the id that the caller gave as REVOKED.

        A canvas gives its tasks their ids beforehand, and whoever waits for one that is never sent waits for ever.
        """
        told = self._options
        request = Context(
            {
                "id": task_id,
                "task": self._task.name,
                "args": told.get("args"),
                "kwargs": told.get("kwargs"),
                "group": told.get("group_id"),
                "group_index": told.get("group_index"),
                "chord": told.get("chord"),
                "chain": told.get("chain"),
                "ignore_result": told.get("ignore_result", self._task.ignore_result),
            }
        )
        messages.revoke(self._task, request, reason)


def is_over(app: Celery, task_id: str) -> bool:
    """Tell whether the result of a task is there; False where no backend could tell."""
    backend = app.backend
    if isinstance(backend, DisabledBackend) or backend.as_uri().startswith("rpc://"):
        return False
    try:
        return backend.get_state(task_id) in states.READY_STATES
    except Exception as error:  # noqa: BLE001 - whatever a backend's client raises; the reservation then stands
        logger.warning("the result backend can't tell whether task %s has ended: %r", task_id, error)
        return False


def stop_duplicates() -> None:
    """Have every message of every application go through `Publishing`, if its task is unique; once in a process."""
    original = Celery.send_task
    if hasattr(original, "__zk_locked__"):
        return
    positional = [
        name for name, each in inspect.signature(original).parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]

    @functools.wraps(original)
    def send_task(self: Celery, *args: Any, **options: Any) -> Any:
        options.update(zip(positional[1:], args, strict=False))
        name = options.pop("name")
        task = options.get("task_type") or _registered(self, name)
        locked = unique_of(task)
        if locked is None or task is None:
            return original(self, name, **options)
        return Publishing(self, task, locked, options).send(functools.partial(original, self, name))

    send_task.__zk_locked__ = True  # type: ignore[attr-defined]
    Celery.send_task = send_task  # type: ignore[method-assign, assignment]


def _registered(app: Any, name: str) -> Task[..., Any] | None:
    # An application that was not used yet does not know its tasks yet.
    tasks: Mapping[str, Task[..., Any]] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks.get(name)


# --- the process that runs the task -----------------------------------------------------------------------------------


def begun(locked: Locked) -> None:
    """
    Free the key of the task that runs, which has its lock now, if it is unique only until then.

    Raises `ZooKeeperUnavailable` if that can't be made sure of: those who call the task from now on would be told that
    it is still to begin.
    """
    task: Any = get_current_task()
    if task is None or locked_of(task) is not locked or locked.uniqueness is None or locked.uniqueness.done:
        return
    key = _reserved_key(task.request)
    if key is None or hasattr(task.request, _FREED):
        return
    if not reservations.free(key, str(task.request.id), deadline=reservations.DEADLINE):
        raise ZooKeeperUnavailable("ZooKeeper did not confirm that the task no longer waits.", lock=key)
    setattr(task.request, _FREED, True)


def attach(task: Task[..., Any], task_id: str, **_more: Any) -> None:
    """Say that this process is behind a task from now on."""
    key = _reserved_key(task.request)
    if key is not None:
        setattr(task.request, _ATTACHED, reservations.start(key, task_id, late=bool(task.acks_late)))


def detach(task: Task[..., Any], task_id: str, retval: Any = None, state: str | None = None, **_more: Any) -> None:
    """Say that this process is no longer behind a task, and free its key unless it comes again."""
    key = _reserved_key(task.request)
    if key is None or hasattr(task.request, _FREED):
        return
    attached: Attached | None = getattr(task.request, _ATTACHED, None)
    waits = messages.is_given_back(task, state, retval)
    # Without a state the process is being ended, and whether the task comes again is not for it to say.
    if not waits and state not in (None, states.RETRY):
        # A copy of a task that runs elsewhere is ignored, and says nothing about that one; also if it could not attach.
        mine = attached or Attached(key, task_id, token="", attachment="none")
        reservations.free(key, task_id, attached=mine if state == states.IGNORED else None)
    elif attached is not None:
        reservations.leave(attached, waits=waits)


def _reserved_key(request: Any) -> str | None:
    key = (getattr(request, "headers", None) or {}).get(HEADER)
    return key if isinstance(key, str) else None


# --- the worker's main process ----------------------------------------------------------------------------------------


def on_revoked(request: Any, **_more: Any) -> None:
    """Free the key of a task that was revoked, before or while it ran, or that has expired."""
    key = _reserved_key(request)
    if key is not None:
        reservations.free(key, str(request.id), deadline=0)


def on_failure(
    sender: Task[..., Any], task_id: str, exception: BaseException, args: Any = (), kwargs: Any = None, **_more: Any
) -> None:
    """Free the key of a task whose process could not: it died, or was ended by a time limit."""
    locked = unique_of(sender)
    if locked is None or not messages.died(sender, exception):
        return
    request = sender.request
    key = _reserved_key(request) if request.id == task_id else None
    try:
        reservations.free(key or key_of(sender, locked, args, kwargs), task_id, deadline=0)
    except (InvalidLockName, TypeError) as error:
        logger.warning("the key of task %s can't be freed: %s", task_id, error)
    except ZkLockError:
        logger.exception("the key of task %s can't be freed", task_id)


stop_duplicates()
task_prerun.connect(attach, dispatch_uid="zklock.attach")
task_postrun.connect(detach, dispatch_uid="zklock.detach")
task_revoked.connect(on_revoked, dispatch_uid="zklock.on_revoked")
task_failure.connect(on_failure, dispatch_uid="zklock.on_failure")
