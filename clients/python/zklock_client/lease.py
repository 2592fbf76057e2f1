"""A lease as its client sees it."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zklock_client.errors import LockLost, LockNotHeld, printable
from zklock_client.v1 import lock_coordinator_pb2 as pb

if TYPE_CHECKING:
    from zklock_client.connection import Keeper

SHORTEST_PAUSE: Final = 0.1
"""Seconds between two requests that keep the same lease, at least; and between two tries to open a stream."""
USABLE: Final = 0.9
"""The share of a lease that is used. The rest gives the work time to stop after a loss, before the lease is over."""
LONGEST_CALL: Final = 0.1
"""The share of a lease that may be over when it begins. After a longer call, it is kept before it begins."""
RAN_OUT: Final = "its lease is over, and was not kept in time"

logger = logging.getLogger("zklock_client")

now: Callable[[], float] = functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Return seconds on the boot-time clock. On Linux, the monotonic clock stops while the machine is suspended."""


class Lease:
    """
    A lock that a coordinator holds for this program.

    Its properties may be read on any thread. They ask the clock, not the network. It is the boot-time clock, counted
    from the moment before a request was sent: neither a wrong wall clock nor a slow reply makes a lease look longer.
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.lease_id = ""
        """A secret: everybody who knows it can keep and release the lease."""
        self.token = 0
        """The fencing token. It rises with each grant of the lock."""
        self.path = ""
        """The path of the znode."""
        self.signed_token = ""
        """The signed token, if it was asked for. It expires with the lease as it was granted."""
        self.release_requested = ""
        """Why an operator, or a coordinator that is about to end, wants the lock back. Empty while nobody does."""
        self.lost_reason = ""
        self.on_lost: Callable[[Lease], object] | None = None
        self._until = -math.inf  # by `now()`; written on the client's loop
        self.is_released = False
        self._pid = os.getpid()
        # From here on, all is used on the client's loop only.
        self.keeper: Keeper | None = None
        self.acquiring: asyncio.Task[None] | None = None
        self.is_due = False  # a request that keeps it is about to be sent
        self.unanswered_since = math.inf  # by `now()`: the first request to keep it that has no answer yet
        self._timer: asyncio.TimerHandle | None = None
        self._certain = asyncio.Event()  # set when the end of the lease is known, or it is over

    def __repr__(self) -> str:
        return f"<lease of {self.resource!r}, token {self.token}, {self.remaining:.1f} s left>"

    @property
    def remaining(self) -> float:
        """Seconds for which the lock may be used, even if the lease is not kept any longer; 0.0 if it is over."""
        if self.is_released or self.lost_reason or self._pid != os.getpid():
            return 0.0
        return max(0.0, self._until - now())

    @property
    def valid(self) -> bool:
        """Whether the lock is held now."""
        return self.remaining > 0

    @property
    def lost(self) -> bool:
        """Whether the lock was lost before it was released."""
        return bool(self.lost_reason) or not (self.is_released or self.valid)

    def check(self) -> None:
        """Raise `LockLost` unless the lock is held now; `LockNotHeld` if it was released."""
        if self.lost:
            raise LockLost(f"The lock {self.resource!r} was lost: {self.lost_reason or RAN_OUT}.", lock=self.resource)
        if self.is_released:
            raise LockNotHeld(f"The lock {self.resource!r} was released.", lock=self.resource)

    # --- on the client's loop ---------------------------------------------------------------------------------------

    async def begin(self, keeper: Keeper, response: pb.RecordLockResponse, sent: float) -> None:
        """Record the grant, and wait until the end of the lease is certain. Raises `LockLost`."""
        self.lease_id, self.token = response.lease_id, response.fencing_token
        self.path, self.signed_token = response.acquired_znode_path, response.signed_token
        self.keeper = keeper
        keeper.leases[self.lease_id] = self
        duration = response.lease_duration_ms / 1000 * USABLE
        if now() - sent < duration * LONGEST_CALL:
            self._until = sent + duration
            self._certain.set()
            # The coordinator tells of a loss from the first request on. A short block does without.
            self._keep_in(SHORTEST_PAUSE)
        else:  # the request has waited: only the answer to a keep-alive tells from when on the duration counts
            self._until = now() + duration
            self._keep()
            await self._certain.wait()
            self.check()

    def _keep(self) -> None:
        assert self.keeper is not None
        if self.valid:
            self.keeper.keep(self)
            self._plan()
        else:
            self.keeper.connection.suspect = True
            self.run_out()

    def _plan(self) -> None:
        """Plan the next renewal: after a third of the time that is left, and at the end of the lease at the latest."""
        self._keep_in(max(self.remaining / 3, SHORTEST_PAUSE))

    def _keep_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(self.remaining, seconds), self._keep)

    def update(self, state: pb.LeaseState) -> None:
        """Process a message of the coordinator."""
        self.unanswered_since = math.inf
        if state.state == pb.LeaseState.STATE_OVER:
            self.lose(state.detail.rstrip("."))
        elif self.valid:  # otherwise its user was told that it is over
            if state.release_requested:
                self.release_requested = printable(state.detail)
            until = (state.sent_at + state.lease_duration_ms * USABLE) / 1000
            if until > self._until or not self._certain.is_set():
                self._until = until
                self._certain.set()

    def run_out(self) -> None:
        """Mark the lease as lost because its time is over."""
        self.lose(f"{RAN_OUT} ({self.release_requested})" if self.release_requested else RAN_OUT)

    def lose(self, reason: str) -> None:
        """Mark the lease as lost, and call its callbacks once."""
        if not self.lost_reason:
            self.lost_reason = reason = printable(reason)
            self.end()
            logger.warning("the lock %r, token %d, was lost: %s", self.resource, self.token, reason)
            if self.on_lost is not None:
                call(self.on_lost, self)

    def end(self) -> None:
        """End this lease in the client: stop its timer, and stop renewing it."""
        self._certain.set()
        if self._timer is not None:
            self._timer.cancel()
        if self.keeper is not None:
            self.keeper.forget(self)


def call(on_lost: Callable[[Lease], object], lease: Lease) -> None:
    """Call a user's function, and log the error that it raises."""
    try:
        on_lost(lease)
    except Exception:
        logger.exception("on_lost of the lock %r has failed", lease.resource)
