"""The last look of this process, for those who must not wait: metrics and health checks."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from django.db import connections

from django_zklock.core import clock, fork
from django_zklock.core.log import Logger
from django_zklock.core.zk import process
from django_zklock.core.zk.outside import Outside
from django_zklock.report import verdict

if TYPE_CHECKING:
    from django_zklock.report.verdict import Verdict

logger = Logger("django_zklock.dashboard")

EVERY: float = 30.0
"""Seconds between two looks of a process whose metrics are read. Without a question, it does not look."""
SHOWN_FOR: Final = 120.0
"""Seconds for which a look is recent."""
REPLY_TIMEOUT: Final = 3.0
HANGS: float = 20.0
"""Seconds after which a look hangs, for example in the database."""
UNKNOWN: Final = "unknown"
"""Counts as a cause: not all locks and servers were looked at."""


class LastLook:
    """The last look of this process at all locks and servers. A thread renews it, for the next one who asks."""

    def __init__(self) -> None:
        self.clear()
        fork.in_child(self.clear)  # its thread is not in the child

    def clear(self) -> None:
        """Forget it."""
        self._at = -math.inf
        self._counts: dict[str, int] = {}
        self._renewal = Outside(self._renew)

    def store(self, seen: Verdict | None) -> None:
        """Remember a look; None if it failed, as nobody may rely on an older one."""
        incidents = Counter(incident.cause for incident in seen.incidents) if seen else {}
        unknown = int(seen is None or not seen.complete)
        self._at, self._counts = clock.now(), {**dict.fromkeys(verdict.CAUSES, 0), **incidents, UNKNOWN: unknown}

    def counts(self) -> dict[str, int]:
        """
        Return at once how many incidents of each cause a recent look has found; empty if there was none.

        If it is old, begin the next one. If that one hangs, as in a query to the tables of events, none follows it.
        """
        fork.notice()
        if clock.now() - max(self._at, self._renewal.begun_at) > EVERY:
            self._renewal.begin()
        with suppress(TimeoutError):
            self._renewal.get(0.0)
        hangs = self._at < self._renewal.begun_at < clock.now() - HANGS
        counts = self._counts if clock.now() - self._at < SHOWN_FOR else {}
        return {**counts, UNKNOWN: 1} if hangs else counts

    def _renew(self) -> None:
        try:
            self.store(verdict.now(REPLY_TIMEOUT).verdict)
        except Exception:
            logger.debug("the locks could not be looked at", exc_info=True)
            self.store(None)
        finally:
            connections.close_all()  # those of this thread


last: Final = LastLook()


def causes() -> dict[str, int]:
    """Return `last.counts()`, or nothing in a process that has not used a lock: it has no connection to look with."""
    return {} if process.peek() is None else last.counts()
