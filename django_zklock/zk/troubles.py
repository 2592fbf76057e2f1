"""The reasons why a session cannot be trusted: the network or the servers fail, or this process has paused."""

from __future__ import annotations

from typing import Final

SESSION_OVER: Final = "the ZooKeeper session is over"
LEASE_OVER: Final = "the lease is over: no quorum has confirmed the session in time"
CONNECTION_BROKE: Final = "the connection broke"
CONNECTION_SUSPENDED: Final = "the connection to ZooKeeper is suspended"
UNCLEAR_REPLY: Final = "ZooKeeper's reply to a write was unclear"
NO_ANSWER: Final = "ZooKeeper does not answer"
LATE_HEARTBEAT: Final = "the heartbeat is late"
MAIN_PROCESS_SUSPECT: Final = "no quorum confirms the session of the worker's main process at the moment"

ALL: Final = (
    SESSION_OVER,
    LEASE_OVER,
    CONNECTION_BROKE,
    CONNECTION_SUSPENDED,
    UNCLEAR_REPLY,
    NO_ANSWER,
    LATE_HEARTBEAT,
    MAIN_PROCESS_SUSPECT,
)
"""The reasons of losses that are no decision of a person or of `max_hold`."""
