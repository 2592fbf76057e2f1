"""Knows what time it is by ZooKeeper's clock, as far as it has told; the clocks of two machines are never compared."""

from __future__ import annotations

from typing import Final

from django_zklock.zk import clock
from django_zklock.zk.session import Session

CLOCK_NODE: Final = "!clock"
"""The name of the node by which the leader tells the time. It begins like a marker, so it is part of no key."""


class ServerClock:
    """
    The server's wall clock, carried on by the local steady one; one for each session, on the protocol's thread.

    Each write is stamped by the leader, and some answers name the stamp. What is carried on from there is late by the
    way of that answer, never early, as long as the leader's clock does not jump and no other leads.
    """

    def __init__(self, session: Session) -> None:
        self._ahead: float | None = None

    def note(self, told: float) -> None:
        """Take note of the stamp of a write of which the answer has just come; seconds since 1970."""
        self._ahead = told - clock.now()

    def now(self) -> float | None:
        """Return the time, in seconds since 1970; None if the server has not told any in this session."""
        return None if self._ahead is None else clock.now() + self._ahead
