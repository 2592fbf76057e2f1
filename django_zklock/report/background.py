"""The last look of this process, for those who must not wait: metrics, health checks, and the frame of the pages."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from django.db import connections

from django_zklock.conf.options import LONG_HELD
from django_zklock.core import clock, fork
from django_zklock.core.log import Logger
from django_zklock.core.zk import process
from django_zklock.core.zk.outside import Outside
from django_zklock.report import verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_zklock.inspection import EnsembleReport, Snapshot
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a look. Without one, nothing is known."""

    at: float = -math.inf
    counts: Mapping[str, int] = field(default_factory=dict)
    """Incidents by their causes, and `UNKNOWN`."""
    incidents: int = 0
    locks: str = ""
    servers: str = ""
    is_short: bool = False
    """Whether some servers do not run."""
    state: str = ""


class LastLook:
    """The last look of this process at all locks and servers. A thread renews it, for the next one who asks."""

    def __init__(self) -> None:
        self.clear()
        fork.in_child(self.clear)  # its thread is not in the child

    def clear(self) -> None:
        """Forget it."""
        self._figures = Figures()
        self._long_held = LONG_HELD
        self._renewal = Outside(self._renew)

    def store(self, snapshot: Snapshot, servers: EnsembleReport, seen: Verdict) -> None:
        """Remember a look."""
        running = max(sum(server.serves for server in servers.servers), int(snapshot.answers))
        count = len(servers.servers)
        causes = Counter(incident.cause for incident in seen.incidents)
        self._figures = Figures(
            at=clock.now(),
            counts=_counts({**causes, UNKNOWN: int(not seen.complete)}),
            incidents=len(seen.incidents),
            locks=str(snapshot.total),
            servers=f"{running}/{count} !" if running < count else str(count),
            is_short=running < count,
            state=snapshot.state,
        )

    def get(self, every: float, long_held: float = LONG_HELD) -> Figures:
        """
        Return its figures at once. If it is older than so many seconds, begin the next one.

        If that one hangs, as in a query to the tables of events, no second one is started.
        """
        fork.notice()
        self._long_held = long_held
        if clock.now() - max(self._figures.at, self._renewal.begun_at) > every:
            self._renewal.begin()
        with suppress(TimeoutError):
            self._renewal.get(0.0)
        return self._figures

    def recent(self, every: float, long_held: float = LONG_HELD) -> Figures:
        """Return what `get` returns; empty figures if they are too old."""
        figures = self.get(every, long_held)
        return figures if clock.now() - figures.at < SHOWN_FOR else Figures()

    @property
    def hangs(self) -> bool:
        """Whether the next one should have ended."""
        return self._figures.at < self._renewal.begun_at < clock.now() - HANGS

    def _renew(self) -> None:
        try:
            self.store(*verdict.now(REPLY_TIMEOUT, long_held=self._long_held))
        except Exception:
            logger.debug("the locks could not be looked at", exc_info=True)
            self._figures = Figures(at=clock.now(), counts=_counts({UNKNOWN: 1}))  # nobody may rely on an older one
        finally:
            connections.close_all()  # those of this thread


last: Final = LastLook()


def causes() -> Mapping[str, int]:
    """
    Return `counts()`, or nothing in a process that has not used a lock.

    Such a process does not look, as it has no connection. From any thread; it does not wait.
    """
    return {} if process.peek() is None else counts()


def counts() -> Mapping[str, int]:
    """Return how many incidents a recent look has found, by each cause; empty if there was none. It begins the next."""
    figures = last.recent(EVERY)
    return {**_counts(figures.counts), UNKNOWN: 1} if last.hangs else figures.counts


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys((*verdict.CAUSES, UNKNOWN), 0), **counts}
