"""The connection to a coordinator, and the stream that keeps all leases of one coordinator; on the client's loop."""

from __future__ import annotations

import asyncio
import math
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import grpc

from zklock_client.lease import SHORTEST_PAUSE, Lease, logger, now
from zklock_client.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc

OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # connecting may take so long
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),  # a coordinator may start again with another address
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel would use the connection that hangs
    ("grpc.keepalive_time_ms", 10_000),  # or a call that waits would not notice that its coordinator is gone
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # newer versions of gRPC wait for the longer of the two
    ("grpc.http2.max_pings_without_data", 0),
]
RELEASES: Final = 10
"""Tries to release a lease, with short pauses: a coordinator that is gone for longer has ended its leases."""
RETRIED: Final = {"", "unavailable", "too-many", "lease-elsewhere"}
"""The codes after which another try may succeed. A failure on the way to the coordinator has no code."""
SHORTEST_SILENCE: Final = 1.0
"""
Seconds. If a lease gets no answer for so long, nor for a third of its time, its connection hangs.

The packets of a coordinator that restarts elsewhere may vanish, or a proxy may accept a connection and say nothing.
"""
LONGEST_READ: Final = 0.5
"""Seconds that a call waits for the files for TLS, at most."""
POLLER_STACK: Final = 64 * 2**20
"""
Bytes of the stack of gRPC's polling thread: more than four times that of its event threads.

A forked child has no polling thread. gRPC starts its event threads again there, and they write to the record that the
polling thread has on its stack. glibc would give a stack of the usual size to one of them, and the child would crash.
"""

_making_channel = threading.Lock()


def reason_of(error: Any) -> tuple[str, str]:
    """Return the code of a refusal, empty if it does not come from a coordinator; and the address to go to, if any."""
    metadata = dict(error.trailing_metadata() or ())
    return str(metadata.get("zklock-code", "")), str(metadata.get("zklock-address", ""))


def was_queued(error: Any) -> bool:
    """Return whether the call that has failed had reached the queue of the lock."""
    return "zklock-queued" in dict(error.initial_metadata() or ())


class Tls:
    """The files for TLS, which may be renewed."""

    def __init__(self, *paths: str | Path | None) -> None:
        """Read them: the authorities, the key and the certificate. Raises OSError."""
        self._paths = paths
        self.files = self._read()
        """Their content. If they cannot be used, it is what it was before."""
        self._problem = ""  # of the last look
        self._look: Future[None] | None = None
        self._overdue = 0.0  # by `now()`: the time until which calls wait for this look

    async def refresh(self) -> None:
        """Read the files again, on a thread. If the disk is slow, what it has read is for the next call."""
        if not any(self._paths):
            return
        if self._look is None or self._look.done():
            self._look, self._overdue = Future(), now() + LONGEST_READ
            threading.Thread(target=self._run, args=(self._look,), name="zklock-tls", daemon=True).start()
        await asyncio.wait([asyncio.wrap_future(self._look)], timeout=max(0.0, self._overdue - now()))

    def _run(self, look: Future[None]) -> None:
        former, self._problem = self._problem, ""
        try:
            files = self._read()
            if files != self.files:
                self._check()
                if files == self._read():  # otherwise they are being replaced
                    self.files = files
        except OSError as error:
            self._problem = str(error)
            if self._problem != former:
                logger.warning("the renewed certificate cannot be used yet: %s", error)
        finally:
            look.set_result(None)

    def _read(self) -> tuple[bytes | None, ...]:
        return tuple(None if path is None else Path(path).read_bytes() for path in self._paths)

    def _check(self) -> None:
        """Raise OSError if the files do not belong together, as when only one of them has been replaced."""
        ca, key, certificate = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca is not None:
            context.load_verify_locations(ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")


class Connection:
    """The connection to one coordinator, or to a balancer in front of several."""

    def __init__(self, address: str, tls: Tls, metadata: Sequence[tuple[str, str]]) -> None:
        self.address = address
        self.metadata = metadata
        self.suspect = False  # it did not renew a lease in time: ask another coordinator first
        self.hangs = False  # it has answered nothing for too long
        self._tls = tls
        self._files = tls.files
        with _making_channel:
            former = threading.stack_size(POLLER_STACK)  # the first channel starts the polling thread
            try:
                self.channel = self._make_channel()
            finally:
                threading.stack_size(former)
        make_stub: Any = pb_grpc.LockCoordinatorStub  # which has no types
        self.stub = make_stub(self.channel)

    def _make_channel(self) -> grpc.aio.Channel:
        if not any(self._files):
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(*self._files)
        return grpc.aio.secure_channel(self.address, credentials, options=OPTIONS)

    @property
    def is_outdated(self) -> bool:
        """Whether later calls need a new connection: this one hangs, or the files for TLS were renewed."""
        return self.hangs or self._tls.files is not self._files

    def may_have_answered(self, error: Any) -> bool:
        """Return whether the answer to a call may be lost, because the connection broke and can be made again."""
        is_broken = error.code() is grpc.StatusCode.UNAVAILABLE and not reason_of(error)[0]
        return is_broken and self.channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def close(self) -> None:
        """End the connection. The thread of gRPC, which no fork survives, ends with the last one."""
        await self.channel.close()
        del self.channel, self.stub


class Keeper:
    """Renews and releases the leases of one coordinator, with one stream for all. It follows a coordinator's hint."""

    def __init__(self, connection: Connection, connect: Callable[[str], Awaitable[Connection]]) -> None:
        self.connection = connection  # the last one that was used
        self._address = connection.address
        self.leases: dict[str, Lease] = {}
        self._connect = connect
        self._queue: asyncio.Queue[Lease | None] = asyncio.Queue()  # those to be kept now; None: the stream has ended
        self._task: asyncio.Task[None] | None = None
        self._heard_at = -math.inf  # by `now()`: when the last message came

    def keep(self, lease: Lease) -> None:
        """Send a request that keeps this lease, as soon as the stream can."""
        if now() >= max(lease.unanswered_since, self._heard_at) + SHORTEST_SILENCE:
            self._reconnect()
        elif not lease.is_due:  # a slow coordinator gets no more requests than it can answer
            self._send(lease, self._queue)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _reconnect(self) -> None:
        """Let a new connection keep all leases, as this one may hang. Its other calls go on."""
        self.connection.hangs = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @staticmethod
    def _send(lease: Lease, queue: asyncio.Queue[Lease | None]) -> None:
        lease.is_due = True
        lease.unanswered_since = min(lease.unanswered_since, now())
        queue.put_nowait(lease)

    def forget(self, lease: Lease) -> None:
        """Stop renewing this lease. The stream is closed with the last lease."""
        self.leases.pop(lease.lease_id, None)
        if not self.leases and self._task is not None:
            self._task.cancel()
            self._task = None

    async def release(self, lease: Lease, timeout: float) -> None:
        """Release a lease within `timeout` seconds. Mark it as lost if the coordinator had ended it before."""
        request, deadline = pb.ReleaseLockRequest(lease_id=lease.lease_id), now() + timeout
        may_be_released = False  # by a try whose answer was lost
        for _ in range(RELEASES):
            connection = self.connection = await self._connect(self._address)
            left = deadline - now()
            try:
                response = await connection.stub.ReleaseLock(request, metadata=connection.metadata, timeout=left)
            except grpc.RpcError as error:
                code = self._follow(error)
                if code not in RETRIED or now() + SHORTEST_PAUSE > deadline:
                    break
                may_be_released = may_be_released or not code
                await asyncio.sleep(SHORTEST_PAUSE)
            else:
                if not response.released and not may_be_released:
                    lease.lose(response.detail.rstrip("."))
                return
        logger.info("the release of the lock %r was not confirmed: it is free when its lease is over", lease.resource)

    def _follow(self, error: Any) -> str:
        """Return the code of an error. If another coordinator has the leases, go to the address that it names."""
        code, address = reason_of(error)
        if code == "lease-elsewhere" and address:
            self._address = address
        return code

    async def _run(self) -> None:
        """
        Keep one stream open: after an error, open another one and renew all leases.

        A stream does not wait until it is connected: gRPC would connect again and again with the same certificate.
        """
        problem = ""
        while True:
            queue = self._queue = asyncio.Queue()
            for lease in self.leases.values():  # what was sent on an old stream may not have arrived
                lease.unanswered_since = math.inf
                self._send(lease, queue)
            connection = self.connection = await self._connect(self._address)
            stream = connection.stub.KeepAlive(self._requests(queue), metadata=connection.metadata)
            try:
                async for state in stream:
                    self._heard_at = now()
                    problem = ""
                    if state.lease_id in self.leases:
                        self.leases[state.lease_id].update(state)
            except grpc.RpcError as error:
                former, problem = problem, error.details() or ""
                if problem != former:
                    logger.info("the stream to the coordinator %s has ended: %s", connection.address, problem)
                self._follow(error)
            finally:
                stream.cancel()
                queue.put_nowait(None)
            await asyncio.sleep(SHORTEST_PAUSE)

    async def _requests(self, queue: asyncio.Queue[Lease | None]) -> AsyncIterator[pb.KeepAliveRequest]:
        while (lease := await queue.get()) is not None:
            lease.is_due = False
            if lease.lease_id in self.leases:
                yield pb.KeepAliveRequest(lease_id=lease.lease_id, sent_at=math.floor(now() * 1000))
