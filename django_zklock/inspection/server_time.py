"""
Tell the time by ZooKeeper's clock, which dates all znodes.

The clock of this machine may differ by minutes, and may be set at any moment. So an age is the difference of two times
of ZooKeeper's clock: the last one that ZooKeeper has sent, plus the time since then by a monotonic clock.
"""

from __future__ import annotations

import time
from typing import Final

from django_zklock.core import clock
from django_zklock.core.zk.errors import NodeMissing, OutcomeUnknown, SessionGone
from django_zklock.core.zk.gateway import CLOCK_NODE, Gateway
from django_zklock.core.zk.session import Session

MARGIN: Final = 1.0  # seconds by which the monotonic clock may run ahead between two requests
REFRESH_INTERVAL: Final = 300.0  # seconds; the server's clock may be set, or another server may become the leader


class ServerTime:
    """The time of a session's server; used on the protocol's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_at: float | None = None

    def refresh(self, gateway: Gateway) -> None:
        """
        Ask ZooKeeper for the time, if the last request is too old. That costs one write.

        If this account may only read, ZooKeeper refuses. Then `at` uses the clock of this machine.
        """
        now = clock.now()
        if self._asked_at is not None and now - self._asked_at < REFRESH_INTERVAL:
            return
        self._asked_at = now

        def on_reply(reply: object) -> None:
            if isinstance(reply, (OutcomeUnknown, SessionGone, NodeMissing)):
                self._asked_at = None  # ZooKeeper did not refuse, so ask again

        gateway.sync_clock(f"{self._session.options.base}/{CLOCK_NODE}", on_reply)

    def at(self, moment: float, youngest: float = 0.0) -> float:
        """
        Return seconds since 1970 by ZooKeeper's clock, at a moment of `clock.now()`.

        The result is not less than `youngest`, the time of a znode that existed at that moment.
        """
        now = self._session.gateway.clock.now()
        return max((time.time() if now is None else now) - clock.now() + moment, youngest)

    def passed(self) -> float:
        """Return a time that has certainly passed by ZooKeeper's clock, in seconds since 1970; 0 if it is unknown."""
        now = self._session.gateway.clock.now()
        return 0.0 if now is None else now - MARGIN
