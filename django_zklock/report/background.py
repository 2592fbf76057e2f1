"""The present causes, for metrics and health checks. They must not wait, so a thread of its own looks now and then."""

from __future__ import annotations

from collections import Counter
from typing import Final

from django.db import connections

from django_zklock.core import clock, fork
from django_zklock.core.zk import process
from django_zklock.core.zk.outside import Outside
from django_zklock.report import verdict

EVERY: Final = 30.0
"""Seconds between two looks of a process that is asked. Without a question, it does not look."""
REPLY_TIMEOUT: Final = 3.0
HANGS: Final = 20.0
"""Seconds after which a look hangs, for example in the database."""
UNKNOWN: Final = "unknown"
"""Counts as a cause: not all locks and servers were looked at."""


def causes() -> dict[str, int]:
    """
    Return how many incidents the last look has found, by each cause; empty before the first look.

    A process that has not used a lock does not look, as it has no connection. From any thread; it does not wait.
    """
    if process.peek() is None:
        return {}
    before = _looks[-1].begun_at
    if clock.now() - before > EVERY:
        _looks[-1].begin()
    try:
        at, counts = _looks[-1].get(0.0)
    except TimeoutError:
        at, counts = 0.0, {}
    except Exception:  # noqa: BLE001 - the look has failed, and nobody may rely on an older one
        at, counts = clock.now(), _counts({UNKNOWN: 1})
    is_hung = at < before < clock.now() - HANGS
    return {**_counts({}), **counts, UNKNOWN: 1} if is_hung else counts


def _counts(counts: dict[str, int]) -> dict[str, int]:
    return {**dict.fromkeys((*verdict.CAUSES, UNKNOWN), 0), **counts}


def _look() -> tuple[float, dict[str, int]]:
    """Return when the look began, and what it has found."""
    began = clock.now()
    try:
        seen = verdict.now(REPLY_TIMEOUT, max_age=EVERY).verdict
    finally:
        connections.close_all()  # those of this thread
    counts = Counter(incident.cause for incident in seen.incidents)
    return began, _counts({**counts, UNKNOWN: int(not seen.complete)})


_looks: Final = [Outside(_look)]  # the last one is that of this process


def _begin_child() -> None:
    _looks.append(Outside(_look))


fork.in_child(_begin_child)
