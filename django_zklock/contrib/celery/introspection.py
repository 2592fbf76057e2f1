"""Find the decorated function of a Celery task, describe its work, and tell when its result was stored."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from celery import Task, states
from celery.backends.base import DisabledBackend

from django_zklock.contrib.celery import messages
from django_zklock.execution.work import Work
from django_zklock.log import Logger

if TYPE_CHECKING:
    from django_zklock.decorators.locked import LockedFunction

logger = Logger("django_zklock.celery")

_SHOWN: Final = 64  # characters of an id
_WORK: Final = "zklock_work"  # attribute of a request


def functions_of(task: Any) -> list[tuple[Callable[..., Any], list[Any]]]:
    """
    Return the functions that a call of the task goes through, outermost first, with the `self` of a bound task.

    Agents for monitoring put a proxy around the task, or replace its attribute `run`. So this begins with the `run` of
    the task that the app has under that name, and follows `__wrapped__`. Then it does the same with the class's `run`.
    """
    registered = getattr(getattr(task, "app", None), "_tasks", {}).get(getattr(task, "name", None), task)
    bind = getattr(inspect.getattr_static(registered.__class__, "run", None), "__get__", None)
    functions = []
    for run in (getattr(registered, "run", None), bind and bind(registered)):
        function = run
        bound: list[Any] = []
        while function is not None:
            bound = [function.__self__] if hasattr(function, "__self__") else bound
            functions.append((getattr(function, "__func__", function), bound))
            function = getattr(function, "__wrapped__", None)
    return functions


def locked_of(task: object) -> LockedFunction | None:
    """Return the lock around a task's function; None if it is not decorated."""
    return _locked_and_bound(task)[0]


def arguments(task: object, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the decorated function when its task is called with these."""
    return (*_locked_and_bound(task)[1], *(args or ())), dict(kwargs or {})


def _locked_and_bound(task: object) -> tuple[LockedFunction | None, list[Any]]:
    for function, bound in functions_of(task):
        locked: LockedFunction | None = getattr(function, "zk_locked", None)  # other decorators copy it
        if locked is not None and locked.wrapper is function:
            return locked, bound
    return None, []


def work_of(task: Task[..., Any]) -> Work:
    """Return the description of the running task for others in the queue of a lock, without its arguments."""
    request: Any = task.request
    work: Work | None = request.__dict__.get(_WORK)
    if work is None:
        delivery = messages.delivery_of(request.headers, request.properties, request.delivery_info)
        work = work_of_message(task.name or "", request.id, request.retries, delivery)
        setattr(request, _WORK, work)
    return work


def work_of_message(name: str, task_id: object, retries: object, delivery: Mapping[str, str]) -> Work:
    """Return the description of a task, running or not."""
    about = {
        "task": name,
        "id": short_id(task_id),
        "retries": str(retries),
        **delivery,
    }
    return Work(f"task {name} {task_id}", about)


def short_id(task_id: object) -> str:
    """Return a task's id as the queue of a lock shows it. Ids that callers choose may be long."""
    text = str(task_id or "")
    if len(text) <= _SHOWN:
        return text
    # Long ids with the same beginning stay different. Otherwise two tasks would look like copies of one.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{text[: _SHOWN - 33]}…{digest}"


def finished_at(backend: Any, task_id: str) -> str:
    """Return when the final result of a task was stored; an empty text if there is none, or no backend can tell."""
    if isinstance(backend, DisabledBackend) or backend.as_uri().startswith("rpc://"):
        return ""
    try:
        meta = backend.get_task_meta(task_id, cache=False)
    except Exception as error:  # noqa: BLE001 - any error of a backend's client
        logger.warning("the result backend cannot tell whether task %r has ended: %r", task_id, error)
        return ""
    return str(meta.get("date_done") or "unknown") if meta.get("status") in states.READY_STATES else ""
