"""The phases of a contender."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where a contender is."""

    AWAITING = "waits for a session"
    PEEKING = "looks whether the queue is empty"
    IN_LINE = "waits until this process has room for one more in the queue"
    ENTERING = "takes its place in the queue"
    LISTING = "is in the queue, and lists it"
    QUEUED = "is in the queue, and watches the one ahead"
    PROVING = "is first, and waits for a quorum to confirm the session"
    HOLDING = "holds the lock"
    LEAVING = "gives its place up"
    GONE = "is out"
