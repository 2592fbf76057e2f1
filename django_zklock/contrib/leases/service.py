"""The gRPC service of the coordinator, and its server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import operator
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

import grpc
from django.apps import apps
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from django_zklock.contrib.leases.access import Access, counted
from django_zklock.contrib.leases.certificate import Certificate
from django_zklock.contrib.leases.coordinator import DRAINING, Coordinator
from django_zklock.contrib.leases.lease import Lease, LeaseRequest
from django_zklock.contrib.leases.options import LeaseClient
from django_zklock.contrib.leases.refusal import Code, Refusal
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.core.zk import process
from django_zklock.core.zk.options import Secret
from django_zklock.signals import connection_state_changed

SERVICE: Final = pb.DESCRIPTOR.services_by_name["LockCoordinator"].full_name
MOST_UNREAD: Final = 100
"""Answers to one stream that its client has not read; with more, its requests wait."""
LARGEST_MESSAGE: Final = 16 * 1024
"""Bytes."""
END_TIMEOUT: Final = 1.0
"""Seconds for the last answers at the end. A client may read none, and those of others wait for the next process."""
REQUEST_TIMEOUT: Final = 10.0
"""Seconds that a client may take to send the message of a call that it has begun."""
MOST_OPEN: Final = 250
"""Calls of each method that asks for no token. Each costs about 30 KB."""
COST_OF_UNKNOWN: Final = 0.1
"""The part of a request that a message on a `KeepAlive` stream counts for, if the client has no such lease."""
QUEUED: Final = (("zklock-queued", "true"),)
OPTIONS: Final = {
    "grpc.max_receive_message_length": LARGEST_MESSAGE,
    "grpc.max_metadata_size": LARGEST_MESSAGE,
    # Calls that the server has not looked at yet. The core cancels calls at random beyond the first number (by default
    # 1000), and all beyond the second one. After a restart of a coordinator, all clients come at once.
    "grpc.server.max_pending_requests": 20_000,
    "grpc.server.max_pending_requests_hard_limit": 30_000,
    "grpc.max_allowed_incoming_connections": 20_000,
    "grpc.max_connection_idle_ms": 60_000,  # without calls
    "grpc.server_handshake_timeout_ms": 10_000,  # of a connection that says nothing
    "grpc.keepalive_time_ms": 30_000,  # a client whose machine has vanished leaves the queue
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.min_ping_interval_without_data_ms": 5000,
    "grpc.so_reuseport": 0,  # a second coordinator on the same port is an error, not a lottery
}

Context = Any  # grpc.aio.ServicerContext, which has no types
_Handler = Callable[[LeaseClient, Any, Context], Coroutine[Any, Any, Any]]


async def _abort(context: Context, refusal: Refusal) -> None:
    metadata = [("zklock-code", refusal.code.slug)]
    if refusal.elsewhere:
        metadata.append(("zklock-address", refusal.elsewhere))
    await context.abort(grpc.StatusCode[refusal.code.grpc], str(refusal), tuple(metadata))


class LockCoordinatorService(grpc.GenericRpcHandler):
    """
    The service `zklock.v1.LockCoordinator`, and those for its health and for reflection, which need no token.

    It reads the requests itself, and not by generated code: a client must be known, and its calls must be counted,
    before its messages are read.
    """

    def __init__(self, coordinator: Coordinator, access: Access) -> None:
        self._coordinator = coordinator
        self._access = access
        self.health = health.aio.HealthServicer()
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._reflection: Any = reflection.aio.ReflectionServicer(names)
        self._streams: Counter[str] = Counter()  # by client
        self._calls: set[asyncio.Task[None]] = set()  # that are under way
        self._ended = False
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        self._methods: dict[str, Any] = {}  # of gRPC, by path
        self._add(f"{SERVICE}/RecordLock", unary, self._record_lock, pb.RecordLockRequest)
        self._add(f"{SERVICE}/ReleaseLock", unary, self._release_lock, pb.ReleaseLockRequest)
        self._add(f"{SERVICE}/KeepAlive", stream, self._keep_alive)
        self._add(f"{health.SERVICE_NAME}/Check", unary, self._check, health_pb2.HealthCheckRequest, is_open=True)
        self._add(f"{health.SERVICE_NAME}/Watch", stream, self._watch, health_pb2.HealthCheckRequest, is_open=True)
        self._add(f"{reflection.SERVICE_NAME}/ServerReflectionInfo", stream, self._reflect, is_open=True)

    def _add(
        self,
        name: str,
        make: Callable[..., Any],
        handler: _Handler,
        message: type[Message] | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        """Add a method. `message` is the type of its only request, or None if it is a stream; open: without tokens."""
        anybody = LeaseClient(name=f"anybody at {name}", max_waiting=MOST_OPEN) if is_open else None
        answer = partial(self._answer, handler, message, anybody)
        self._methods[f"/{name}"] = make(answer, response_serializer=_to_bytes)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; None for an unknown method."""
        return self._methods.get(handler_call_details.method)

    async def _answer(
        self,
        handler: _Handler,
        message: type[Message] | None,
        anybody: LeaseClient | None,
        _requests: object,
        context: Context,
    ) -> Any:
        """Answer a call. `anybody` has the limit of a method that asks for no token."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._calls.add(task)
        try:
            with contextlib.nullcontext() if anybody is None else counted(self._streams, anybody, "open calls"):
                client = anybody or await self._client(context)
                if message is pb.RecordLockRequest:
                    await self._access.asking.wait(client)
                request = None if message is None else await _only_request(message, context)
                return await handler(client, request, context)
        except Refusal as refusal:
            await _abort(context, refusal)
        except asyncio.CancelledError:
            if not self._ended:
                raise
            await _abort(context, Refusal(Code.UNAVAILABLE, f"The call ends: {DRAINING}."))
        finally:
            self._calls.discard(task)

    async def end(self) -> None:
        """End all calls. gRPC would log each one that it has to end as an error."""
        self._ended = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=END_TIMEOUT)

    async def _client(self, context: Context) -> LeaseClient:
        authorization = Secret(dict(context.invocation_metadata() or ()).get("authorization", ""))
        auth = context.auth_context()
        names = [*auth.get("x509_common_name", ()), *auth.get("x509_subject_alternative_name", ())]
        address = context.peer().rpartition(":")[0]
        return await self._access.client(address, authorization, [name.decode(errors="replace") for name in names])

    async def _record_lock(
        self, client: LeaseClient, request: pb.RecordLockRequest, context: Context
    ) -> pb.RecordLockResponse:
        try:
            # The headers tell a client that its call waits in the queue.
            on_queued = partial(context.send_initial_metadata, QUEUED)
            lease = await self._coordinator.acquire(client, _lease_request(request), on_queued)
        except Refusal as refusal:
            if refusal.code is not Code.BUSY:
                raise
            ahead = await self._coordinator.count_ahead(request.resource_path)
            return pb.RecordLockResponse(acquired=False, place=ahead, detail=str(refusal))
        answer = lease.describe(signed=request.signed_token)
        return pb.RecordLockResponse(acquired=True, acquired_znode_path=lease.path, **answer)

    async def _release_lock(
        self, client: LeaseClient, request: pb.ReleaseLockRequest, _: Context
    ) -> pb.ReleaseLockResponse:
        await self._access.keeping.wait(client, self._coordinator.cost_of_keeping(client, request.lease_id))
        try:
            await self._coordinator.release(client, request.lease_id)
        except Refusal as refusal:
            if refusal.code is not Code.OVER:
                raise
            return pb.ReleaseLockResponse(released=False, detail=str(refusal))
        return pb.ReleaseLockResponse(released=True)

    async def _keep_alive(self, client: LeaseClient, _: None, context: Context) -> None:
        await self._access.keeping.wait(client, COST_OF_UNKNOWN)
        with counted(self._streams, client, "open streams"):
            await _KeepAliveStream(self._coordinator, self._access, client, context).run()

    async def _check(self, _: LeaseClient, request: health_pb2.HealthCheckRequest, context: Context) -> Any:
        return await self.health.Check(request, context)

    async def _watch(self, _: LeaseClient, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        await self.health.Watch(request, context)

    async def _reflect(self, _: LeaseClient, __: None, context: Context) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (received := await context.read()) is not grpc.aio.EOF:
                yield _parsed(reflection_pb2.ServerReflectionRequest, received)

        async for answer in self._reflection.ServerReflectionInfo(requests(), context):
            await context.write(answer)


class _KeepAliveStream:
    """A stream by which a client renews its leases."""

    def __init__(self, coordinator: Coordinator, access: Access, client: LeaseClient, context: Context) -> None:
        self._coordinator = coordinator
        self._access = access
        self._client = client
        self._context = context
        self._leases: dict[str, tuple[Lease, int]] = {}  # with the time of the latest request that kept it
        self._unsent: dict[str, pb.LeaseState | None] = {}  # by lease id; None: the state as it is when it is sent
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()  # their ids, each once; at the end None

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            while (lease_id := await self._queue.get()) is not None:
                state = self._unsent.pop(lease_id) or self._state(lease_id)
                if state is not None:
                    await self._context.write(state)
                self._queue.task_done()
            reader.result()
        finally:
            reader.cancel()
            for lease, _ in self._leases.values():
                del lease.observers[self._on_change]

    async def _read(self) -> None:
        while (received := await self._context.read()) is not grpc.aio.EOF:
            request = _parsed(pb.KeepAliveRequest, received)
            if self._queue.qsize() >= MOST_UNREAD:
                await self._queue.join()
            cost = self._coordinator.cost_of_keeping(self._client, request.lease_id, unknown=COST_OF_UNKNOWN)
            await self._access.keeping.wait(self._client, cost)
            await self._keep(request.lease_id, request.sent_at)

    async def _keep(self, lease_id: str, sent_at: int) -> None:
        try:
            lease = self._coordinator.keep(self._client, lease_id)
        except Refusal as refusal:
            if refusal.elsewhere:
                raise  # the stream ends with the address of the coordinator that has the lease
            over = pb.LeaseState(state=pb.LeaseState.STATE_OVER, lease_id=lease_id, detail=str(refusal))
            self._send(lease_id, None if lease_id in self._leases else over)  # a known lease tells of its end itself
            return
        lease.observers[self._on_change] = None
        self._leases[lease_id] = lease, sent_at
        self._send(lease_id, None)

    def _on_change(self, lease: Lease) -> None:
        self._send(lease.id, None)

    def _send(self, lease_id: str, state: pb.LeaseState | None) -> None:
        if lease_id not in self._unsent:
            self._queue.put_nowait(lease_id)
        self._unsent[lease_id] = state

    def _state(self, lease_id: str) -> pb.LeaseState | None:
        if lease_id not in self._leases:
            return None  # its end was reported
        lease, sent_at = self._leases[lease_id]
        state = _state(lease_id, lease)
        state.sent_at = sent_at
        if lease.end_reason:
            del self._leases[lease_id], lease.observers[self._on_change]
        return state


_to_bytes = operator.methodcaller("SerializeToString")


async def _only_request(message: type[Message], context: Context) -> Any:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):  # `asyncio.wait_for` would cost a tenth of a call
            received = await context.read()
    except TimeoutError:
        received = grpc.aio.EOF
    if received is grpc.aio.EOF:
        raise Refusal(Code.INVALID, f"There was no message within {REQUEST_TIMEOUT:g} s.")
    return _parsed(message, received)


def _parsed(message: type[Message], received: bytes) -> Any:
    try:
        return message.FromString(received)
    except DecodeError as error:
        raise Refusal(Code.INVALID, f"The message is no {message.DESCRIPTOR.name}.") from error


def _lease_request(request: pb.RecordLockRequest) -> LeaseRequest:
    if request.wait_limit_ms and not request.wait_blocking:
        raise Refusal(Code.INVALID, "wait_limit_ms needs wait_blocking.")
    if request.signed_token and not apps.is_installed("django_zklock.contrib.tokens"):
        needs = "signed_token needs django_zklock.contrib.tokens in the INSTALLED_APPS of the coordinator."
        raise Refusal(Code.INVALID, needs)
    known = request.kind in pb.Kind.values()
    return LeaseRequest(
        resource_path=request.resource_path,
        client_id=request.client_id,
        session_timeout_ms=request.session_timeout_ms,
        wait_limit_ms=request.wait_limit_ms or None if request.wait_blocking else 0,
        kind=pb.Kind.Name(request.kind).removeprefix("KIND_").lower() if known else f"number {request.kind}",
        limit=request.limit,
        request_id=request.request_id,
    )


def _state(lease_id: str, lease: Lease) -> pb.LeaseState:
    if lease.end_reason:
        return pb.LeaseState(state=pb.LeaseState.STATE_OVER, lease_id=lease_id, detail=lease.end_reason)
    return pb.LeaseState(
        state=pb.LeaseState.STATE_HELD,
        release_requested=bool(lease.release_requested),
        detail=lease.release_requested,
        **{**lease.describe(), "lease_id": lease_id},
    )


class Server:
    """A gRPC server with the service, its health and its reflection."""

    def __init__(
        self, coordinator: Coordinator, access: Access, address: str, certificate: Certificate | None = None
    ) -> None:
        self._service = LockCoordinatorService(coordinator, access)
        self._server = grpc.aio.server(handlers=[self._service], options=[*OPTIONS.items()])
        self._health = self._service.health
        self._loop = asyncio.get_running_loop()
        try:
            self.port: int = (
                self._server.add_insecure_port(address)
                if certificate is None
                else self._server.add_secure_port(address, certificate.credentials)
            )
        except RuntimeError as error:
            raise OSError(f"The address {address} cannot be used: {error}") from error

    async def start(self) -> None:
        """Serve, and connect to ZooKeeper."""
        connection_state_changed.connect(self._on_connection)
        process.current().wanted_until = math.inf  # without a connection, load balancers would send nobody who asks
        await self._server.start()
        await self._set_health()

    async def announce_end(self) -> None:
        """Ask load balancers, by the health service, to send no more clients here."""
        await self._health.enter_graceful_shutdown()

    def _on_connection(self, **_: object) -> None:
        """Receive a signal, on the thread for signals."""
        asyncio.run_coroutine_threadsafe(self._set_health(), self._loop)

    async def _set_health(self) -> None:
        """Set whether load balancers, by the health service, send new clients here."""
        for name in ("", SERVICE):
            health = "SERVING" if process.current().connected else "NOT_SERVING"
            await self._health.set(name, health_pb2.HealthCheckResponse.ServingStatus.Value(health))

    async def stop(self) -> None:
        """End all calls."""
        connection_state_changed.disconnect(self._on_connection)
        await self._service.end()
        await self._server.stop(grace=None)
