"""Knows until when a session is certain to be alive, by the local clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from django_zklock.zk import clock
from django_zklock.zk.loop import Loop, Timer

LEASE_SHARE = 0.4  # of the negotiated timeout; see `Lease`
RELAY_SHARE = 0.25  # of it, for a follower to tell the leader whom it has heard of: half a tick, of two at least
GRAIN_SHARE = 1 / 60  # of it; what is answered closer to something else than that is not noted


class Activity:
    """
    When a server is known to have heard of the session on the present connection, by its answers.

    The leader learns it from a follower at the latest half a tick after that, and from the connect itself at once.
    """

    def __init__(self) -> None:
        self._connected = float("-inf")  # when the connect was sent, on clock.now()
        self._answers: deque[tuple[float, float]] = deque()  # (answered at, sent at), in their order

    def restart(self, connect_sent_at: float) -> None:
        """Take note of a new connection; what the server of the old one heard may never have been passed on."""
        self._connected = connect_sent_at
        self._answers.clear()

    def note(self, sent_at: float, answered_at: float, timeout: float) -> None:
        """Take note of an answer, be it to a ping."""
        answers, grain = self._answers, GRAIN_SHARE * timeout
        if answers and answered_at - answers[-1][0] < grain and sent_at - answers[-1][1] < grain:
            # Close in both: after a pause the answer to an old request would hide the one to a new one.
            return
        answers.append((answered_at, sent_at))
        while len(answers) > 1 and answers[1][0] < answered_at - timeout:
            answers.popleft()

    def relayed(self, moment: float, timeout: float) -> float:
        """Return from when on, at the earliest, the leader gives the session its full time, if it heard at `moment`."""
        latest = moment - RELAY_SHARE * timeout
        for answered_at, sent_at in reversed(self._answers):
            if answered_at <= latest:
                return max(self._connected, sent_at)
        return self._connected


class Lease:
    """
    The time for which the locks of a session are its own: 0.4 of the negotiated timeout from the moment of sending the
    last write that a quorum has acknowledged, and never past what the leader has granted by then.

    A follower that is cut off from its leader goes on answering pings and reads, so neither says anything; an
    acknowledged write says that the leader knew the session after it was sent. It does not restart the leader's timer:
    that is done by the follower's reports, half a tick apart, of whom it has heard. A client that is heard of every
    third of the timeout has at least 0.417 T after a write where T is two ticks or more. One that was paused may write
    just before the leader gives it up, so what it was last heard of counts, too.
    """

    def __init__(self, loop: Loop, on_over: Callable[[], None]) -> None:
        self.until = float("-inf")  # on clock.now(); written by the loop's thread, read by any
        self._loop = loop
        self._on_over = on_over
        self._timer: Timer | None = None

    @property
    def valid(self) -> bool:
        """Whether the lease holds now; by the clock alone, so that a paused process learns it on resume."""
        return clock.now() < self.until

    def extend(self, sent_at: float, timeout: float, heard_at: float) -> bool:
        """
        Take note of an acknowledged write that was sent at `sent_at`; return whether it says anything new.

        `heard_at` is when the leader last restarted the session's timer, at the earliest.
        """
        until = min(sent_at + LEASE_SHARE * timeout, heard_at + timeout)
        if until <= max(self.until, clock.now()):
            return False
        if not self.valid:
            # A process that was paused may come here before its timer tells that the lease was over. Who looked at
            # the clock in between has seen a lost lock, and lost is for good.
            self._on_over()
        self.until = until
        if self._timer is None:
            self._arm()
        return True

    def end(self) -> None:
        """The session is over."""
        self.until = float("-inf")

    def _arm(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self.until - clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.valid:
            self._arm()
        else:
            self._on_over()
