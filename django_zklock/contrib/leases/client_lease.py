"""A lease as its client sees it, and the stream that keeps all leases from one coordinator."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc

from django_zklock.clock import now
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2_grpc as pb_grpc
from django_zklock.exceptions import LockLost, LockNotHeld

SHORTEST_PAUSE: Final = 0.1
"""Seconds between two requests that keep the same lease, at least; and between two tries to open a stream."""
RAN_OUT: Final = "its lease is over, and was not kept in time"
CHANNEL_OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # connecting may take so long
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # or a call that waits would not notice that its coordinator is gone
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # newer versions of gRPC wait for the longer of the two
    ("grpc.http2.max_pings_without_data", 0),
]

logger = logging.getLogger("django_zklock.leases")


class ClientLease:
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
        self.on_lost: Callable[[ClientLease], object] | None = None
        self._until = -math.inf  # by `now()`; written on the client's loop
        self.is_released = False
        self._pid = os.getpid()
        # From here on, all is used on the client's loop only.
        self.connection: Connection | None = None
        self.acquiring: asyncio.Task[None] | None = None
        self.is_due = False  # a request that keeps it is about to be sent
        self._timer: asyncio.TimerHandle | None = None
        self._certain = asyncio.Event()  # the lease is over, or it is known until when it lasts

    def __repr__(self) -> str:
        return f"<lease of {self.resource!r}, token {self.token}, {self.remaining:.1f} s left>"

    @property
    def remaining(self) -> float:
        """Seconds for which the lease lasts in any case, even if it is not kept any longer; 0.0 if it is over."""
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

    async def begin(self, connection: Connection, response: pb.RecordLockResponse, sent: float) -> None:
        """The coordinator has granted it to a request. Wait until its end is certain. Raises `LockLost`."""
        self.lease_id, self.token = response.lease_id, response.fencing_token
        self.path, self.signed_token = response.acquired_znode_path, response.signed_token
        self.connection = connection
        connection.leases[self.lease_id] = self
        duration = response.lease_duration_ms / 1000
        if now() - sent < duration / 3:
            self._until = sent + duration
            self._certain.set()
            self._plan()
        else:  # the request has waited: only the answer to a keep-alive tells from when on the duration counts
            self._until = now() + duration
            self._keep()
            await self._certain.wait()
            self.check()

    def _keep(self) -> None:
        assert self.connection is not None
        if self.valid:
            self.connection.keep(self)
            self._plan()
        else:
            self.connection.suspect = True
            self.lose(RAN_OUT)

    def _plan(self) -> None:
        """Keep it after a third of the time that is left now; look at its end in any case."""
        left = self.remaining
        self._timer = asyncio.get_running_loop().call_later(min(left, max(left / 3, SHORTEST_PAUSE)), self._keep)

    def update(self, state: pb.LeaseState) -> None:
        """Process a message of the coordinator."""
        if state.state == pb.LeaseState.STATE_OVER:
            self.lose(state.detail.rstrip("."))
        elif self.valid:  # otherwise its user was told that it is over
            if state.release_requested:
                self.release_requested = state.detail
            until = (state.sent_at + state.lease_duration_ms) / 1000
            if until > self._until or not self._certain.is_set():
                self._until = until
                self._certain.set()

    def lose(self, reason: str) -> None:
        """Mark the lease as lost, and call its callbacks once."""
        if not self.lost_reason:
            self.lost_reason = reason
            self.end()
            logger.warning("the lock %r, token %d, was lost: %s", self.resource, self.token, reason)
            if self.on_lost is not None:
                call(self.on_lost, self)

    def end(self) -> None:
        """End this lease in the client: stop its timer, and stop renewing it."""
        self._certain.set()
        if self._timer is not None:
            self._timer.cancel()
        if self.connection is not None:
            self.connection.forget(self)


def call(on_lost: Callable[[ClientLease], object], lease: ClientLease) -> None:
    """Call a user's function, and log the error that it raises."""
    try:
        on_lost(lease)
    except Exception:
        logger.exception("on_lost of the lock %r has failed", lease.resource)


class Connection:
    """The connection to one coordinator, with the stream that keeps all leases from it; on the client's loop."""

    def __init__(self, address: str, credentials: Any, metadata: Sequence[tuple[str, str]]) -> None:
        self.address = address
        self.metadata = metadata
        self.leases: dict[str, ClientLease] = {}
        self.suspect = False  # the last lease from here was not kept in time: ask another coordinator first
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
        make_stub: Any = pb_grpc.LockCoordinatorStub  # which has no types
        self.stub = make_stub(self._channel)
        self._queue: asyncio.Queue[ClientLease | None] = asyncio.Queue()  # those to be kept now; None: no more
        self._keeper: asyncio.Task[None] | None = None

    def keep(self, lease: ClientLease) -> None:
        """Send a request that keeps this lease, as soon as the stream can."""
        if not lease.is_due:  # a slow coordinator gets no more requests than it can answer
            lease.is_due = True
            self._queue.put_nowait(lease)
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._run())

    def forget(self, lease: ClientLease) -> None:
        """Stop renewing this lease. The stream is closed with the last lease."""
        self.leases.pop(lease.lease_id, None)
        if not self.leases and self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    async def _run(self) -> None:
        """Keep one stream open: after an error, open another one and renew all leases."""
        while True:
            queue = self._queue = asyncio.Queue()
            for lease in self.leases.values():  # what was sent on an old stream may not have arrived
                lease.is_due = True
                queue.put_nowait(lease)
            stream = self.stub.KeepAlive(self._requests(queue), metadata=self.metadata, wait_for_ready=True)
            try:
                async for state in stream:
                    if state.lease_id in self.leases:
                        self.leases[state.lease_id].update(state)
            except grpc.RpcError as error:
                logger.info("the stream to the coordinator %s has ended: %s", self.address, error)
            finally:
                stream.cancel()
                queue.put_nowait(None)
            await asyncio.sleep(SHORTEST_PAUSE)

    async def _requests(self, queue: asyncio.Queue[ClientLease | None]) -> AsyncIterator[pb.KeepAliveRequest]:
        while (lease := await queue.get()) is not None:
            lease.is_due = False
            if lease.lease_id in self.leases:
                yield pb.KeepAliveRequest(lease_id=lease.lease_id, sent_at=math.floor(now() * 1000))

    async def release(self, lease_id: str, timeout: float) -> pb.ReleaseLockResponse:
        """Release a lease."""
        request = pb.ReleaseLockRequest(lease_id=lease_id)
        answer = self.stub.ReleaseLock(request, metadata=self.metadata, timeout=timeout, wait_for_ready=True)
        response: pb.ReleaseLockResponse = await answer
        return response

    async def close(self) -> None:
        """End it."""
        await self._channel.close()
