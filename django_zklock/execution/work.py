"""Knows what work the caller is in the middle of, if whoever started it has said so, such as a Celery worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

# A context variable, so that it goes along into the asyncio tasks, greenlets and threads that the work begins by way of
# asyncio, gevent and asgiref.
_current: ContextVar[Work | None] = ContextVar("zklock_work", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One piece of work, from its begin to its end; two are never equal."""

    what: str
    """It in a few words, as others in the queue of a lock may see it; never its arguments."""
    about: Mapping[str, str]
    """The same, item by item: of a task "task" and "id"."""


def current() -> Work | None:
    """Return the work that the caller is part of."""
    return _current.get()


def begin(work: Work | None) -> Work | None:
    """Say that the caller is part of this work from now on; return what it was part of."""
    before = _current.get()
    _current.set(work)
    return before


def logged(about: Mapping[str, str]) -> dict[str, str]:
    """Return what a log record is to know of the work, under the names that Celery's own log formatter gives it."""
    return {"task_name": about["task"], "task_id": about.get("id", "")} if "task" in about else {}


def noted(about: Mapping[str, str]) -> str:
    """Return what the message of a log record says of the work, after a blank; nothing if there is none."""
    return f" [task {about['task']} {about.get('id', '')}]" if "task" in about else ""
