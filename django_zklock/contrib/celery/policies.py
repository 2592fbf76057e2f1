"""Knows what becomes of a task that does not get its lock: it is sent again, or skipped, or fails."""

from __future__ import annotations

import random
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Retry

from django_zklock.exceptions import ZkLockError

CONFLICTS_HEADER = "zklock_conflicts"
FIRST_DELAY = 0.5  # seconds before a task is tried again, doubled each time
LONGEST_DELAY = 15.0


def send_again(task: Task[..., Any], request: Any, error: ZkLockError) -> None:
    """
    Publish the task anew, with the retries it has had, and leave by `Retry`.

    Not by `Task.retry`, which counts against the task's own `max_retries`: waiting for a lock is no failure.
    """
    conflicts = int((request.headers or {}).get(CONFLICTS_HEADER, 0)) + 1
    # Half of it by chance, so that tasks that met once do not go on meeting.
    longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(conflicts - 1, 10))
    delay = round(longest * random.uniform(0.5, 1.0), 3)  # noqa: S311
    signature = task.signature_from_request(request, retries=request.retries, countdown=delay)
    signature.options["headers"] = {**(signature.options.get("headers") or {}), CONFLICTS_HEADER: conflicts}
    signature.apply_async()
    raise Retry(exc=error, when=delay, sig=signature) from error  # type: ignore[arg-type]


def skip(task: Task[..., Any], request: Any, error: ZkLockError) -> None:
    """
    End the task as REVOKED.

    A value would pass for the result: a chain would go on with it, and a second copy of a running task would
    hide what the first one returns. Nothing at all would leave `get()` waiting for ever.
    """
    task.backend.mark_as_revoked(str(request.id), str(error), request=request, store_result=not request.ignore_result)
    raise Ignore(str(error)) from error
