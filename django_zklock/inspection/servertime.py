"""
Knows what time it is by ZooKeeper's clock, by which all nodes are dated.

The clock of this machine may differ from it by minutes, and may be set at any moment. So ages are the difference of two
times of ZooKeeper's own clock: what it said once, as it dated a write, and what this machine's clock, the one that
nobody sets, has counted since.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Final

from django_zklock.zk import clock
from django_zklock.zk.clock import CLOCK_NODE, ServerClock
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.session import Session

MARGIN: Final = 1.0  # seconds by which the clock here may be ahead, as it counts on by itself since then
ASK_AGAIN: Final = 300.0  # seconds until it is asked again: its clock may have been set, or another server leads


class ServerTime:
    """The time of the server of one session; on the protocol's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_at: float | None = None

    def refresh(self, gateway: Gateway) -> None:
        """
        Ask ZooKeeper for the time, if that was not done lately; costs it one write.

        If it refuses, as this account may only read, ages are told by this machine's clock, as far as no node that has
        been seen is younger than that.
        """
        now = clock.now()
        if self._asked_at is not None and now - self._asked_at < ASK_AGAIN:
            return
        self._asked_at = now

        def told(answer: object) -> None:
            if isinstance(answer, (OutcomeUnknown, SessionGone, NodeMissing)):
                self._asked_at = None  # it did not refuse

        gateway.sync_clock(f"{self._session.options.base}/{CLOCK_NODE}", told)

    def at(self, moment: float, youngest: float = 0.0) -> float:
        """
        Return seconds since 1970 by ZooKeeper's clock, at a moment of `clock.now()`.

        `youngest` is the time of a node that was there by then.
        """
        now = self._session.attached(ServerClock).now()
        return max((time.time() if now is None else now) - clock.now() + moment, youngest)

    def passed(self) -> float:
        """Return a time that has passed by ZooKeeper's clock for certain, in seconds since 1970; 0 if it told none."""
        now = self._session.attached(ServerClock).now()
        return 0.0 if now is None else now - MARGIN


def moment(seconds: float) -> datetime:
    """Return the time of day, in UTC; the nearest that there is for what nobody's clock shows."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253402300799.0), timezone.utc)
