"""The phases of a contender."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What a contender does now."""

    AWAITING = "waits for a session"
    PEEKING = "lists the directory, to see whether the queue is empty"
    IN_LINE = "waits until this process has room for one more in the queue"
    ENTERING = "creates its znode"
    LISTING = "is in the queue, and lists it"
    QUEUED = "is in the queue, and watches its predecessors"
    PROVING = "is first, and waits for a quorum to confirm the session"
    HOLDING = "holds the lock"
    LEAVING = "leaves the queue"
    GONE = "has left the queue"
