"""The heartbeat: one quorum check for each process that holds locks, every sixth of the session timeout."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable

from django_zklock.core import clock, hooks
from django_zklock.core.log import Logger
from django_zklock.core.zk import troubles
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.lease import BEAT_SHARE, LEASE_SHARE
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.zk")

NODES_PER_BEAT = 100  # with more, each heartbeat checks the next 100; any of them proves the session


class Heartbeat:
    """
    Check the znodes of all holders of this process with one request, and report each znode that is gone.

    Each success extends the lease. The heartbeat runs on the loop's thread, and only while there is a holder. A process
    that only waits sends none, because it has no lock that it could lose.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nodes: dict[str, Callable[[], None]] = {}  # by path: called when the znode is gone
        self._timer = NEVER
        self._outstanding = False

    @property
    def due_in(self) -> float:
        """
        In how many seconds a heartbeat is due: a sixth of the session timeout after the last acknowledged write.

        The creates of waiters count, too. So the first heartbeat of a holder may be due soon.
        """
        session = self._session
        return session.lease.until - clock.now() - (LEASE_SHARE - BEAT_SHARE) * session.timeout

    def add(self, path: str, on_missing: Callable[[], None]) -> None:
        """Check a znode from now on; call `on_missing()` when it is gone."""
        self._nodes[path] = on_missing
        due_in = self.due_in
        if due_in <= 0:
            self.beat()
        elif not self._timer.pending:
            self._timer = self._session.loop.call_later(due_in, self._on_timer)

    def remove(self, path: str) -> None:
        """Stop checking a znode. The timer goes on: a lock in a loop creates and cancels no timers."""
        self._nodes.pop(path, None)

    def beat(self) -> None:
        """Send a heartbeat now, unless one is under way."""
        if not self._nodes:
            self._timer.cancel()  # it may be that of a longer session timeout
            return
        if self._outstanding or not self._session.connected:
            if not self._timer.pending:
                self._set_timer()
            return
        self._timer.cancel()  # it may be that of a longer session timeout
        self._set_timer()
        paths = list(itertools.islice(self._nodes, NODES_PER_BEAT))
        if len(self._nodes) > NODES_PER_BEAT:
            for path in paths:  # move these to the end
                self._nodes[path] = self._nodes.pop(path)
        self._outstanding = True
        on_checked = functools.partial(self._on_checked, clock.now(), self._session.lease.until)
        self._session.gateway.quorum_check(paths, on_checked)

    def _set_timer(self) -> None:
        self._timer = self._session.loop.call_later(self._session.timeout * BEAT_SHARE, self._on_timer)

    def _on_timer(self) -> None:
        if not self._nodes:
            return
        if self._outstanding:
            self._session.mark_suspect(troubles.LATE_HEARTBEAT)
        self.beat()

    def _on_checked(self, sent_at: float, until: float, reply: str | ZkError | None) -> None:
        self._outstanding = False
        now = clock.now()
        if not isinstance(reply, str):  # else another heartbeat follows at once
            error = "" if reply is None else type(reply).__name__
            hooks.events.heartbeat(self._session, now - sent_at, max(0.0, until - now), error)
        before = self._session.refused
        self._set_refused(reply.code if isinstance(reply, ZkError) else 0)
        if isinstance(reply, ZkError):
            level = logging.WARNING if reply.code and not before else logging.DEBUG
            logger.log(level, "heartbeat failed, the lease ends in %.1f s: %s", max(0.0, until - now), reply)
        elif reply is not None:
            on_missing = self._nodes.pop(reply, None)
            if on_missing is not None:
                on_missing()
            self.beat()  # the check stops at the first missing znode, so there may be more

    def _set_refused(self, code: int) -> None:
        before, self._session.refused = self._session.refused, code
        if code != before:
            for call in self._session.lease.on_changed.values():  # the processes that share the lease tell why it ends
                call()
