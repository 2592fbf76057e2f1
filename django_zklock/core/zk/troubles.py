"""The reasons why a session cannot be trusted: the network or the servers fail, or this process has paused."""

from __future__ import annotations

from typing import Final

from django_zklock.core.queue.escaping import gettext_noop

SESSION_OVER: Final = gettext_noop("the ZooKeeper session is over")
LEASE_OVER: Final = gettext_noop("the lease is over: no quorum has confirmed the session in time")
HEARTBEAT_REFUSED: Final = "the lease is over: ZooKeeper refused the heartbeat"  # a colon and the error follow
CONNECTION_BROKE: Final = gettext_noop("the connection broke")
UNCLEAR_REPLY: Final = gettext_noop("ZooKeeper's reply to a write was unclear")
NO_ANSWER: Final = gettext_noop("ZooKeeper does not answer")
LATE_HEARTBEAT: Final = gettext_noop("the heartbeat is late")
ZNODE_DELETED: Final = gettext_noop("its znode was deleted by another session")
MAIN_PROCESS_SUSPECT: Final = gettext_noop("no quorum confirms the session of the worker's main process at the moment")

ALL: Final = (
    SESSION_OVER,
    LEASE_OVER,
    CONNECTION_BROKE,
    UNCLEAR_REPLY,
    NO_ANSWER,
    LATE_HEARTBEAT,
    MAIN_PROCESS_SUSPECT,
)
"""The reasons of losses that are no decision of a person or of `max_hold`."""
