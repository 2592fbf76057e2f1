"""Knows until when a session is certain to be alive, by the local clock."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock.zk import clock
from django_zklock.zk.loop import Loop, Timer

LEASE_SHARE = 0.4  # of the negotiated timeout; see `Lease`


class Lease:
    """
    The time for which the locks of a session are its own: 0.4 of the negotiated timeout from the moment of sending the
    last write that a quorum has acknowledged.

    A follower that is cut off from its leader goes on answering pings and reads, so neither says anything; an
    acknowledged write says that the leader knew the session after it was sent. The leader's own timer is restarted by
    the follower's reports, half a tick apart, which leaves at least 0.417 T after a write in every legal configuration.
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

    def extend(self, sent_at: float, timeout: float) -> bool:
        """Take note of an acknowledged write that was sent at `sent_at`; return whether it says anything new."""
        until = sent_at + LEASE_SHARE * timeout
        if until <= self.until:
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
