"""The gRPC service of the coordinator, and its server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from django_zklock.conf.leases import LeaseClient
from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.coordinator import Coordinator, LeaseRequest
from django_zklock.contrib.leases.lease import Lease
from django_zklock.contrib.leases.refusal import RETRY_AFTER, Code, Refusal
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2_grpc as pb_grpc
from django_zklock.signals import connection_state_changed
from django_zklock.zk import process

SERVICE: Final = pb.DESCRIPTOR.services_by_name["LockCoordinator"].full_name
KINDS: Final = {pb.KIND_LOCK: "lock", pb.KIND_READ: "read", pb.KIND_WRITE: "write", pb.KIND_SEMAPHORE: "semaphore"}
LOOK_EVERY: Final = 1.0
"""Seconds between two reads of a position in the queue."""
MOST_UNREAD: Final = 100
"""Answers to one stream that its client has not read; with more, its requests wait."""
LARGEST_MESSAGE: Final = 16 * 1024
"""Bytes."""
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

Context = Any  # grpc.aio.ServicerContext, which has no types
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def _refusing(handler: _Handler) -> _Handler:
    """Make a unary handler end the call with the status of a refusal."""

    @functools.wraps(handler)
    async def answer(self: LockCoordinatorService, request: Any, context: Context) -> Any:
        try:
            return await handler(self, request, context)
        except Refusal as refusal:
            await _abort(context, refusal)

    return answer  # type: ignore[return-value]


async def _abort(context: Context, refusal: Refusal) -> None:
    metadata = [("zklock-code", refusal.code.slug)]
    if refusal.code.may_succeed_later:
        metadata.append(("retry-after", RETRY_AFTER))
    await context.abort(grpc.StatusCode[refusal.code.grpc], refusal.detail, tuple(metadata))


class LockCoordinatorService(pb_grpc.LockCoordinatorServicer):
    """The service `zklock.v1.LockCoordinator`."""

    def __init__(self, coordinator: Coordinator, access: Access) -> None:
        self._coordinator = coordinator
        self._access = access
        self._streams: Counter[str] = Counter()  # by client

    @contextlib.contextmanager
    def _stream(self, client: LeaseClient) -> Iterator[None]:
        """Count a stream while it is open. Raises `Refusal` if there are too many."""
        if self._streams[client.name] >= client.max_waiting:
            raise Refusal(
                Code.TOO_MANY, f"{client.max_waiting} streams of the client {client.name!r} are open, its limit."
            )
        self._streams[client.name] += 1
        try:
            yield
        finally:
            self._streams[client.name] -= 1

    def _client(self, context: Context) -> LeaseClient:
        metadata = dict(context.invocation_metadata() or ())
        auth = context.auth_context()
        names = [*auth.get("x509_common_name", ()), *auth.get("x509_subject_alternative_name", ())]
        authorization = str(metadata.get("authorization", ""))
        return self._access.client(context.peer(), authorization, [name.decode(errors="replace") for name in names])

    @_refusing
    async def RecordLock(self, request: pb.RecordLockRequest, context: Context) -> pb.RecordLockResponse:  # noqa: N802
        """Acquire a lock as a lease."""
        client = self._client(context)
        try:
            lease_id, lease = await self._coordinator.acquire(client, _lease_request(request))
        except Refusal as refusal:
            if refusal.code is not Code.BUSY:
                raise
            ahead = await self._coordinator.count_ahead(request.resource_path)
            return pb.RecordLockResponse(acquired=False, place=ahead, detail=refusal.detail)
        response = _acquired(lease_id, lease)
        if request.signed_token:
            response.signed_token = self._coordinator.sign(lease, response.lease_expires_at)
        return response

    @_refusing
    async def ReleaseLock(self, request: pb.ReleaseLockRequest, context: Context) -> pb.ReleaseLockResponse:  # noqa: N802
        """End a lease."""
        client = self._client(context)
        try:
            await self._coordinator.release(client, request.lease_id)
        except Refusal as refusal:
            if refusal.code is not Code.OVER:
                raise
            return pb.ReleaseLockResponse(released=False, detail=refusal.detail)
        return pb.ReleaseLockResponse(released=True)

    async def KeepAlive(self, requests: AsyncIterator[pb.KeepAliveRequest], context: Context) -> None:  # noqa: N802
        """Renew leases, and report each change."""
        try:
            client = self._client(context)
            with self._stream(client):
                await _KeepAliveStream(self._coordinator, self._access, client, context).run(requests)
        except Refusal as refusal:
            await _abort(context, refusal)

    async def WatchQueue(self, request: pb.WatchQueueRequest, context: Context) -> None:  # noqa: N802
        """Follow a position in the queue, or a lease, until it ends."""
        try:
            client = self._client(context)
            if request.lease_id:
                lease = self._coordinator.find(client, request.lease_id)
            else:
                lease = self._coordinator.find_queued(client, request.resource_path, request.client_id)
            with self._stream(client):
                await self._watch(request.lease_id, lease, context)
        except Refusal as refusal:
            await _abort(context, refusal)

    async def _watch(self, lease_id: str, lease: Lease, context: Context) -> None:
        changed, reported = asyncio.Event(), None
        lease.observe(changed.set)
        try:
            while reported is None or reported.state != pb.LeaseState.STATE_OVER:
                changed.clear()
                state = _state(lease_id, lease, position=await self._coordinator.position(lease))
                if reported is None or _without_end(state) != _without_end(reported):
                    await context.write(state)
                    reported = state
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_EVERY)
        finally:
            lease.ignore(changed.set)


class _KeepAliveStream:
    """A stream by which a client renews its leases."""

    def __init__(self, coordinator: Coordinator, access: Access, client: LeaseClient, context: Context) -> None:
        self._coordinator = coordinator
        self._access = access
        self._client = client
        self._context = context
        self._leases: dict[str, tuple[Lease, Callable[[], object]]] = {}
        self._sent_at: dict[str, int] = {}  # by lease id: by the client's clock, the latest request that kept it
        self._unsent: dict[str, pb.LeaseState | None] = {}  # by lease id; None: the state as it is when it is sent
        self._changed = asyncio.Event()
        self._sent = asyncio.Event()

    async def run(self, requests: AsyncIterator[pb.KeepAliveRequest]) -> None:
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            while self._unsent or not reader.done():
                await self._changed.wait()
                self._changed.clear()
                while self._unsent:
                    lease_id = next(iter(self._unsent))
                    state = self._unsent.pop(lease_id) or self._state(lease_id)
                    self._sent.set()
                    if state is not None:
                        await self._context.write(state)
            reader.result()
        finally:
            reader.cancel()
            for lease, observer in self._leases.values():
                lease.ignore(observer)

    async def _read(self, requests: AsyncIterator[pb.KeepAliveRequest]) -> None:
        async for request in requests:
            while len(self._unsent) >= MOST_UNREAD and request.lease_id not in self._unsent:
                self._sent.clear()
                await self._sent.wait()
            while early := self._access.delay(self._client):  # noqa: ASYNC110 - there is no event, only the time
                await asyncio.sleep(early)
            self._keep(request.lease_id, request.sent_at)

    def _keep(self, lease_id: str, sent_at: int) -> None:
        try:
            lease = self._coordinator.keep(self._client, lease_id)
        except Refusal as refusal:
            over = pb.LeaseState(state=pb.LeaseState.STATE_OVER, lease_id=lease_id, detail=refusal.detail)
            self._send(lease_id, None if lease_id in self._leases else over)  # a known lease tells of its end itself
            return
        if lease_id not in self._leases:
            observer = functools.partial(self._send, lease_id, None)
            self._leases[lease_id] = lease, observer
            lease.observe(observer)
        self._sent_at[lease_id] = sent_at
        self._send(lease_id, None)

    def _send(self, lease_id: str, state: pb.LeaseState | None) -> None:
        self._unsent[lease_id] = state
        self._changed.set()

    def _state(self, lease_id: str) -> pb.LeaseState | None:
        entry = self._leases.get(lease_id)
        if entry is None:
            return None  # its end was reported
        lease, observer = entry
        state = _state(lease_id, lease)
        state.sent_at = self._sent_at[lease_id]
        if lease.end_reason:
            lease.ignore(observer)
            del self._leases[lease_id], self._sent_at[lease_id]
        return state


def _lease_request(request: pb.RecordLockRequest) -> LeaseRequest:
    for name in ("session_timeout_ms", "wait_limit_ms", "limit"):
        if getattr(request, name) < 0:
            raise Refusal(Code.INVALID, f"{name} is below 0.")
    wait: float | None = 0.0
    if request.wait_blocking:
        wait = request.wait_limit_ms / 1000 or None
    elif request.wait_limit_ms:
        raise Refusal(Code.INVALID, "wait_limit_ms needs wait_blocking.")
    return LeaseRequest(
        resource=request.resource_path,
        client_id=request.client_id,
        term=request.session_timeout_ms / 1000,
        wait=wait,
        kind=KINDS.get(request.kind, f"number {request.kind}"),
        limit=request.limit,
    )


def _acquired(lease_id: str, lease: Lease) -> pb.RecordLockResponse:
    hold = lease.hold
    assert hold is not None
    expires_at, duration = lease.tell()
    return pb.RecordLockResponse(
        acquired=True,
        acquired_znode_path=hold.path,
        fencing_token=hold.token,
        lease_expires_at=expires_at,
        lease_id=lease_id,
        lease_duration_ms=duration,
    )


def _state(lease_id: str, lease: Lease, position: int = 0) -> pb.LeaseState:
    if lease.end_reason:
        return pb.LeaseState(state=pb.LeaseState.STATE_OVER, lease_id=lease_id, detail=lease.end_reason)
    if lease.hold is None:
        return pb.LeaseState(state=pb.LeaseState.STATE_WAITING, place=position)
    expires_at, duration = lease.tell()
    return pb.LeaseState(
        state=pb.LeaseState.STATE_HELD,
        lease_id=lease_id,
        lease_expires_at=expires_at,
        lease_duration_ms=duration,
        release_requested=bool(lease.release_requested),
        detail=lease.release_requested,
        fencing_token=lease.hold.token,
    )


def _without_end(state: pb.LeaseState) -> tuple[object, ...]:
    """Return all that a watcher is told of, without the end of the lease: that changes all the time."""
    return state.state, state.place, state.release_requested, state.detail


def server_credentials(certificate: Path, key: Path, client_ca: Path | None) -> Any:
    """Return the TLS side of a server; with `client_ca`, clients need a certificate of that authority."""
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=client_ca.read_bytes() if client_ca else None,
        require_client_auth=client_ca is not None,
    )


class Server:
    """A gRPC server with the service, its health and its reflection."""

    def __init__(self, coordinator: Coordinator, access: Access, address: str, credentials: Any = None) -> None:
        options = [
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.max_metadata_size", LARGEST_MESSAGE),
            ("grpc.server_handshake_timeout_ms", 10_000),  # of a connection that says nothing
            ("grpc.so_reuseport", 0),  # a second coordinator on the same port is an error, not a lottery
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ]
        self._server = grpc.aio.server(options=options)
        self._health = health.aio.HealthServicer()
        self._loop: asyncio.AbstractEventLoop
        self._ending = False
        pb_grpc.add_LockCoordinatorServicer_to_server(LockCoordinatorService(coordinator, access), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        try:
            self.port: int = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise OSError(f"The address {address} cannot be used: {error}") from error

    async def start(self) -> None:
        """Serve, and connect to ZooKeeper."""
        self._loop = asyncio.get_running_loop()
        connection_state_changed.connect(self._on_connection)
        await self._server.start()
        await self._set_health()

    async def announce_end(self) -> None:
        """Ask load balancers, by the health service, to send no more clients here."""
        self._ending = True
        await self._set_health()

    def _on_connection(self, **_: object) -> None:
        """Receive a signal, on the thread for signals."""
        asyncio.run_coroutine_threadsafe(self._set_health(), self._loop)

    async def _set_health(self) -> None:
        """Set whether load balancers, by the health service, send new clients here."""
        for name in ("", SERVICE):
            serving = process.current().connected and not self._ending
            await self._health.set(name, _SERVING if serving else _NOT_SERVING)

    async def stop(self) -> None:
        """End all calls."""
        connection_state_changed.disconnect(self._on_connection)
        await self._server.stop(grace=None)
