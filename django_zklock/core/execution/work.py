"""The work that the caller is part of, such as a Celery task: for log records and for the payload in the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

# A context variable: asyncio, gevent and asgiref pass it on to the tasks, greenlets and threads that the work starts.
_current: ContextVar[Work | None] = ContextVar("zklock_work", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One piece of work, from begin to end. Two objects are never equal."""

    what: str
    """A short description for others in the queue of a lock, without arguments."""
    about: Mapping[str, str]
    """Short texts for programs that read the queue: "task" and "id" for a task."""


current: Callable[[], Work | None] = _current.get
"""Return the work that the caller is part of."""


def begin(work: Work | None) -> Work | None:
    """Make the caller part of this work; return the work that it was part of before."""
    before = _current.get()
    _current.set(work)
    return before
