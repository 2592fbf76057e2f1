"""Knows how the lease is kept up: one quorum request per process every sixth of the session timeout."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import BEAT_SHARE

logger = logging.getLogger("django_zklock.zk")

NODES_PER_BEAT = 100  # more nodes than that take turns; any one of them proves the session


class Heartbeat:
    """
    Vouches for the nodes it was told to keep, all in one request, and finds out when one of them is gone.

    Runs on the loop's thread, and only while there is a node to keep: an idle process writes nothing. Nodes that
    wait in a queue are kept, too, so that the lease is valid at the moment the lock falls to them.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._session = gateway.session
        self._nodes: dict[str, Callable[[], None]] = {}  # path -> what to call when it is gone
        self._timer: Timer | None = None
        self._outstanding = False

    def keep(self, path: str, on_missing: Callable[[], None]) -> None:
        """Vouch for a node from now on."""
        self._nodes[path] = on_missing
        self._arm()

    def drop(self, path: str) -> None:
        """Vouch for it no more."""
        self._nodes.pop(path, None)

    def beat(self) -> None:
        """Vouch now."""
        if self._outstanding or not self._nodes or not self._session.connected:
            return
        paths = list(itertools.islice(self._nodes, NODES_PER_BEAT))
        if len(self._nodes) > NODES_PER_BEAT:
            for path in paths:  # to the end of the line
                self._nodes[path] = self._nodes.pop(path)
        self._outstanding = True
        self._gateway.vouch(paths, self._on_answer)
        self._arm()

    def _arm(self) -> None:
        # The timer is left to run out when the last node goes, so taking and releasing a lock costs no timers.
        if self._timer is None:
            self._timer = self._session.loop.call_later(self._session.timeout * BEAT_SHARE, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._nodes:
            return
        if self._outstanding:
            self._session.doubt("the heartbeat is late")
        self.beat()
        self._arm()

    def _on_answer(self, answer: Any) -> None:
        self._outstanding = False
        if isinstance(answer, ZkError):
            logger.debug("heartbeat failed: %s", answer)
        elif answer is not None:
            on_missing = self._nodes.pop(answer, None)
            if on_missing is not None:
                on_missing()
            self.beat()  # one that is missing hides the rest
