"""Knows how a task comes again as the same task: how it is sent, what of its message stays, what is counted in it."""

from __future__ import annotations

import random
from typing import Any, NoReturn

from celery import Task, states
from celery.exceptions import Reject, Retry, TaskRevokedError, TimeLimitExceeded, WorkerLostError

CONFLICTS_HEADER = "zklock_conflicts"
"""How often the task was sent again because others had its lock."""
LOST_HEADER = "zklock_lost"
"""How often it was sent again because it had lost its lock."""

FIRST_DELAY = 0.5  # seconds before a task is tried again, doubled each time
LONGEST_DELAY = 15.0


def counted(request: Any, header: str) -> int:
    """Return what a header of the running task counts."""
    value = (request.headers or {}).get(header, 0)
    return value if isinstance(value, int) else 0


def text(request: Any, header: str) -> str:
    """Return what a header of the running task says; empty if it has none."""
    value = (request.headers or {}).get(header)
    return value if isinstance(value, str) else ""


def pause(times: int) -> float:
    """Return the seconds to wait before the task comes again for that many a time, from 1."""
    longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(times - 1, 10))
    # Half of it by chance, so that tasks that met once do not go on meeting.
    return round(longest * random.uniform(0.5, 1.0), 3)  # noqa: S311


def send(task: Task[..., Any], headers: dict[str, Any], delay: float, error: Exception) -> Any:
    """
    Publish the running task anew, with the retries it has had; return what was sent.

    Not by `Task.retry`, which counts against the task's own `max_retries`: waiting for a lock is no failure. If the
    broker can't take it, a task whose message is not yet acknowledged gives that back, so that it is not lost.
    """
    request: Any = task.request
    signature = task.signature_from_request(request, retries=request.retries, countdown=delay)
    for shown in ("argsrepr", "kwargsrepr"):  # Celery would make them anew, from arguments that are to be hidden
        if getattr(request, shown, None) is not None:
            signature.options[shown] = getattr(request, shown)
    signature.options.setdefault("ignore_result", request.ignore_result)  # before 5.7, Celery leaves it out
    signature.options["headers"] = {**(signature.options.get("headers") or {}), **headers}
    try:
        signature.apply_async()
    except Exception as broken:
        if task.acks_late:
            raise Reject(broken, requeue=True) from broken
        raise broken from error
    return signature


def is_given_back(task: Task[..., Any], state: str | None, ended_with: object) -> bool:
    """Tell whether a task that ended in this state has given its message back to the broker."""
    return state == states.REJECTED and bool(getattr(ended_with, "requeue", False)) and bool(task.acks_late)


def died(task: Task[..., Any], error: BaseException) -> bool:
    """Tell whether a task failed with its process, and does not come again; as the worker's main process sees it."""
    if isinstance(error, TimeLimitExceeded):
        return not task.acks_late or bool(getattr(task, "acks_on_timeout", True))
    return isinstance(error, WorkerLostError)


def revoke(task: Task[..., Any], request: Any, reason: str) -> None:
    """
    Store REVOKED as the end of a task that will not do its work, and tell those who wait for what comes after it.

    Nothing at all would leave `get()` waiting for ever, as it would those who wait for a later step of a chain, or for
    the chord that a step is in. Celery's own `mark_as_revoked` forgets the chain.
    """
    task.backend.mark_as_failure(
        str(request.id),
        TaskRevokedError(reason),
        request=request,
        store_result=not request.ignore_result or bool(task.store_errors_even_if_ignored),
        call_errbacks=False,  # nothing failed
        state=states.REVOKED,
    )


def leave(signature: Any, delay: float, error: Exception) -> NoReturn:
    """End this run of a task that was sent again, so that Celery shows it as one that retries."""
    raise Retry(exc=error, when=delay, sig=signature) from error  # type: ignore[arg-type]


def come_again(
    task: Task[..., Any], header: str, error: Exception, *, longest: float = LONGEST_DELAY, **headers: Any
) -> NoReturn:
    """Publish the running task anew after a pause that grows with what `header` counts, and end this run."""
    times = counted(task.request, header) + 1
    delay = min(pause(times), longest)
    leave(send(task, {header: times, **headers}, delay, error), delay, error)
