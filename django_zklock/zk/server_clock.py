"""The wall clock of the ZooKeeper server."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from django_zklock import clock

if TYPE_CHECKING:
    from django_zklock.zk.session import Session

CLOCK_NODE: Final = "!clock"
"""The name of the znode by which the leader tells the time. It begins like a marker, so it is part of no key."""

_LATEST: Final = 253402300799.0  # seconds since 1970: the end of the year 9999


class ServerClock:
    """
    The wall clock of ZooKeeper, for one session; on the loop's thread.

    The leader stamps each write, and some replies contain the stamp. The boot-time clock counts on from there, so the
    two clocks of different machines are never compared. The result is late by the travel time of the reply. It is
    never early, unless the leader's clock jumps or another server becomes the leader. `latest` is never late.
    """

    def __init__(self, session: Session) -> None:
        self._offset: float | None = None  # of the server's clock from `clock.now()`
        self._round_trip = 0.0  # of the write with the stamp, in seconds

    def record(self, stamp: float, sent_at: float) -> None:
        """Record the stamp (seconds since 1970) of a write, sent at `clock.now()`, whose reply has just arrived."""
        arrived = clock.now()
        self._offset = stamp - arrived
        self._round_trip = arrived - sent_at

    def now(self) -> float | None:
        """Return the server's time in seconds since 1970, or None if no reply of this session contained one."""
        return None if self._offset is None else clock.now() + self._offset

    def latest(self) -> float | None:
        """Return the latest that the server's time can be, as if the reply had needed no time; None likewise."""
        return None if self._offset is None else clock.now() + self._offset + self._round_trip


def to_datetime(seconds: float) -> datetime:
    """Return seconds since 1970 as a time in UTC; the nearest possible if a znode has an impossible time."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LATEST), timezone.utc)
