"""
Stop a duplicate of a unique task where it is sent.

Every message goes through `Celery.send_task`: those of `delay`, canvases, retries and beat. It is replaced as soon as a
function has the option `unique`. (The signal `before_task_publish` would not do: Celery logs what its receivers raise,
and sends the message.) A header of the message names its reservation for the worker.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task
from celery._state import get_current_task
from celery.app.task import Context
from celery.utils import uuid

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import arguments, finished_at, functions_of, locked_of
from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.lifecycle import UNIQUE_HEADER, unique_key, unique_prefix
from django_zklock.contrib.celery.unique.reservations import Duplicate, Reserved
from django_zklock.core.log import Logger
from django_zklock.decorators.locked import LockedFunction
from django_zklock.exceptions import AlreadyQueued, InvalidLockName, LockTimeout, ZooKeeperUnavailable

logger = Logger("django_zklock.celery")


class UniqueMessage:
    """The message of a unique task that is about to be sent."""

    def __init__(self, app: Celery, task: Task[..., Any], locked: LockedFunction, options: dict[str, Any]) -> None:
        self._app = app
        self._task = task
        self._on_duplicate = locked.options.get("on_duplicate")
        self._unique_for: float | None = locked.options.get("unique_for")
        self._options = options
        given = options.get("task_id")  # the caller may wait for this id. Celery takes a UUID, too
        self._given_id = str(given) if given else None
        self.task_id = self._given_id or uuid()
        self._headers = dict(options.get("headers") or {})
        inherited: Any = self._headers.pop(UNIQUE_HEADER, None)
        if not (record.is_key(inherited) and inherited.startswith(unique_prefix(task))):
            inherited = ""
        self._sent_again = self._given_id is not None and (bool(inherited) or self._is_running())
        # A callable could compute another key from arguments that have changed. The task must keep its own.
        self.key = inherited if self._sent_again and inherited else self._key(locked)

    def _is_running(self) -> bool:
        current: Any = get_current_task()
        return current is not None and current.request.id == self._given_id

    def _key(self, locked: LockedFunction) -> str:
        call = arguments(self._task, self._options.get("args"), self._options.get("kwargs"))
        try:
            return unique_key(self._task, locked.key(*call))
        except InvalidLockName as error:
            if next(functions_of(self._task)).function is locked.wrapper:
                raise
            raise InvalidLockName(
                f"{error} The key of the unique task {self._task.name} is computed from its message. If a decorator "
                "changes the arguments, put it below @zk_locked, or let a callable compute the key from the message."
            ) from error

    def send(self, send: Callable[..., Any]) -> Any:
        """Send the message by `send(**options)`, unless it is a duplicate. Return what the sender of the task gets."""
        reservation = self._reserve()
        if isinstance(reservation, Duplicate):
            return self._duplicate(reservation)
        options = {**self._options, "task_id": self.task_id, "headers": self._headers}
        if reservation is None:
            return send(**options)
        self._headers[UNIQUE_HEADER] = self.key
        with reservations.confirmed(reservation):
            return send(**options)

    def _reserve(self) -> Reserved | Duplicate | None:
        """Return the reservation. None: the task is sent again without one, because it must not be lost."""
        try:
            reservation = reservations.reserve(
                self.key,
                self.task_id,
                again=self._sent_again,
                late=bool(self._task.acks_late),
                until=self._until(),
                # A stored result for its own id is that of an earlier call.
                has_ended=lambda task_id: task_id != self.task_id and bool(finished_at(self._app.backend, task_id)),
            )
        except (ZooKeeperUnavailable, LockTimeout) as error:
            if not self._sent_again:
                raise
            logger.warning("task %r is sent again without a reservation: %s", self.task_id, error)
            return None
        # Another task may have the key: this task's reservation has ended, perhaps when its work began.
        return None if isinstance(reservation, Duplicate) and self._sent_again else reservation

    def _until(self) -> float | None:
        """Return when the reservation ends if no process runs the task, in seconds since 1970; None: never."""
        ends = [
            None if self._unique_for is None else time.time() + self._unique_for,
            messages.expiry(self._app, self._options.get("expires", getattr(self._task, "expires", None))),
        ]
        return min((end for end in ends if end is not None), default=None)

    def _duplicate(self, other: Duplicate) -> Any:
        """Return the result of the first task, or raise `AlreadyQueued`."""
        error = AlreadyQueued(
            f"Task {self._task.name} is queued or runs with the same key already, as {other.task_id}.", lock=self.key
        )
        error.task_id = other.task_id
        error.result = (self._options.get("result_cls") or self._app.AsyncResult)(other.task_id)
        logger.info("a duplicate was not sent: %s", error)
        if self._given_id not in (None, other.task_id):
            self._revoke(self._given_id, str(error))
        if self._on_duplicate == "raise":
            raise error
        return error.result

    def _revoke(self, task_id: str, reason: str) -> None:
        """Store REVOKED for a task that is not sent: a canvas may wait for the id that it gave to the task."""
        given = self._options
        names = {"group": "group_id", **{name: name for name in ("args", "kwargs", "group_index", "chord", "chain")}}
        request = {"id": task_id, "task": self._task.name, **{key: given.get(name) for key, name in names.items()}}
        request["ignore_result"] = given.get("ignore_result", self._task.ignore_result)
        messages.revoke(self._task, Context(request), reason)


def stop_duplicates() -> None:
    """Replace `Celery.send_task`, once in a process, so that duplicates of unique tasks are not sent."""
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
        if task is None or locked is None or not locked.options.get("unique"):
            return original(self, name, **options)
        return UniqueMessage(self, task, locked, options).send(functools.partial(original, self, name))

    send_task.__zk_locked__ = True  # type: ignore[attr-defined]
    Celery.send_task = send_task  # type: ignore[method-assign, assignment]


def _registered(app: Any, name: str) -> Task[..., Any] | None:
    # An application that was not used yet has an incomplete list of tasks.
    tasks: Mapping[str, Task[..., Any]] = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks.get(name)


stop_duplicates()
