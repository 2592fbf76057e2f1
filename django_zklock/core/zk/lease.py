"""The lease: for how long this process may trust that its session is alive. And the part of a session that has one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from django_zklock.core import clock
from django_zklock.core.zk import troubles
from django_zklock.core.zk.codes import meaning
from django_zklock.core.zk.loop import NEVER, Loop, users_thread

_Attached = TypeVar("_Attached")

LEASE_SHARE = 0.4  # of the negotiated timeout; see `Lease`
BEAT_SHARE = 1 / 6  # of that timeout, between two heartbeats
RELAY_SHARE = 0.25  # of that timeout; a follower reports a contact within half a tick, which is at most so long
GRAIN_SHARE = 1 / 60  # of that timeout; contacts that are closer together count as one


class LastContact:
    """
    Computes from the replies when the leader last heard of the session on the present connection.

    A follower reports its contacts to the leader every half tick. The leader knows of a connect at once.
    """

    def __init__(self) -> None:
        self._connected = float("-inf")  # when the connect was sent, on clock.now()
        self._replies: deque[tuple[float, float]] = deque()  # (arrived at, request sent at), in their order

    def restart(self, connect_sent_at: float) -> None:
        """Start with a new connection. The old server may not have reported its last contacts to the leader."""
        self._connected = connect_sent_at
        self._replies.clear()

    def record(self, sent_at: float, replied_at: float, timeout: float) -> None:
        """Record a reply to a request or to a ping."""
        replies, grain = self._replies, GRAIN_SHARE * timeout
        if replies and replied_at - replies[-1][0] < grain and sent_at - replies[-1][1] < grain:
            # Both times must be close: after a pause, the reply to an old request would hide the reply to a new one.
            return
        replies.append((replied_at, sent_at))
        while len(replies) > 1 and replies[1][0] < replied_at - timeout:
            replies.popleft()

    def known_to_leader(self, moment: float, timeout: float) -> float:
        """Return the earliest time at which the leader can have last restarted the session timer before `moment`."""
        latest = moment - RELAY_SHARE * timeout
        for replied_at, sent_at in reversed(self._replies):
            if replied_at <= latest:
                return max(self._connected, sent_at)
        return self._connected


class Lease:
    """
    The time for which the locks of a session belong to it.

    Let T be the smallest timeout that a server has granted to this session. The lease ends 0.4 T after the last
    acknowledged quorum write was sent. It never ends later than the leader's session timer, which runs for at least T
    from the last contact that the leader knows of.

    * The leader's timer runs for the timeout of the server that reports the contact. A server with a lower bound sets a
      shorter one when the session moves there. The server before may report its last contact after that. So T never
      rises while the session lasts, and each reconnect asks for T.
    * Only a quorum write counts. A follower that is cut off from its leader still answers pings and reads.
    * The write shows that the leader knew the session after the write was sent. It does not restart the leader's timer.
      The followers do: every half tick they report which sessions they have heard of.
    * A server hears of a client at least every T/3, and T is at least two ticks. So at least 0.417 T of the leader's
      timer (1 - 1/3 - 1/4) remain after a write.
    * A process that was paused may write just before the leader ends the session. So the last contact counts, too.
    """

    def __init__(self, loop: Loop, on_over: Callable[[], None]) -> None:
        self.until = float("-inf")  # on clock.now(); written by the loop's thread, read by any
        self._loop = loop
        self._on_over = on_over
        self._timer = NEVER
        self.on_changed: dict[object, Callable[[], object]] = {}  # by owner: called when `until` has changed

    @property
    def valid(self) -> bool:
        """Whether the lease lasts. Only the clock decides, so a process that was paused sees the end on resume."""
        return clock.now() < self.until

    def extend(self, sent_at: float, timeout: float, heard_at: float) -> bool:
        """
        Extend the lease after an acknowledged write that was sent at `sent_at`. Return whether it ends later now.

        `heard_at`: the earliest time at which the leader can have last restarted the session's timer.
        """
        until, now = min(sent_at + LEASE_SHARE * timeout, heard_at + timeout), clock.now()
        if until <= max(self.until, now):
            return False
        if self.until <= now:
            # After a pause, this may run before the timer reports the end of the lease. Another thread may have read
            # the clock in between, and seen that its lock is lost. A lost lock stays lost.
            self._on_over()
        self._set(until)
        if not self._timer.pending:
            self._arm()
        return True

    def limit(self, sent_at: float, timeout: float) -> None:
        """End the lease in time for this timeout, which a server has set after a connect that was sent at `sent_at`."""
        until = sent_at + LEASE_SHARE * timeout
        if self.valid and until < self.until:
            self._set(until)
            self._timer.cancel()
            self._arm()

    def end(self) -> None:
        """End the lease, because the session is over."""
        self._set(float("-inf"))

    def _set(self, until: float) -> None:
        self.until = until
        for call in self.on_changed.values():
            call()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self.until - clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        if self.valid:
            self._arm()
        else:
            self._on_over()


class GrantSession:
    """
    The part of a session that a grant needs: its id and its lease, its loop, and a thread for users' code.

    `Session` is one. In a Celery pool process, another one stands for the session of the main process.
    """

    session_id: int | None = None
    """None if it is over. The loop's thread writes it; any thread reads it."""
    refused: int = 0
    """The error code with which ZooKeeper has refused the last heartbeat, or 0. Written and read likewise."""
    closing: bool = False
    """Whether this process ends it, in order. Any thread reads it."""

    def __init__(self, loop: Loop) -> None:
        self.pid = os.getpid()  # of the process that it belongs to; a forked child has no part of it
        self.loop = loop
        self.post = loop.post  # runs a call on the loop's thread; for any thread
        self._dispatcher: Loop | None = None
        self._may_start_threads = True
        self._attached: dict[object, Any] = {}

    @property
    def leased_until(self) -> float:
        """When the lease ends, on `clock.now()`. For any thread."""
        raise NotImplementedError

    @property
    def why_over(self) -> str:
        """Why the lease is over, if it is. For any thread."""
        code = self.refused
        return f"{troubles.HEARTBEAT_REFUSED}: {meaning(code)}" if code else troubles.LEASE_OVER

    def dispatch(self, call: Callable[..., object], *args: Any) -> None:
        """Run users' code on a thread of its own, in order. There it cannot delay the protocol. For any thread."""
        self.post(self._dispatch, call, *args)

    def _dispatch(self, call: Callable[..., object], *args: Any) -> None:
        if self._dispatcher is None and self._may_start_threads:
            self._dispatcher = Loop("zklock-signals", users_thread)
            self._dispatcher.start_on(self.loop)
        if self._dispatcher is not None:
            self._dispatcher.post(call, *args)

    def attached(self, kind: Callable[[Any], _Attached]) -> _Attached:
        """Return the one `kind(session)` of this session; create it at the first call. For any thread."""
        attached: _Attached | None = self._attached.get(kind)
        if attached is None:
            attached = self._attached.setdefault(kind, kind(self))
        return attached
