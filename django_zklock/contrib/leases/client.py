"""Clients of the lock coordinator for Python programs, sync and async. They need grpcio, but no Django settings."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import math
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import grpc

from django_zklock.clock import now
from django_zklock.contrib.leases.client_lease import RAN_OUT, ClientLease, Connection, call, logger
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.exceptions import LockBusy, LockTimeout, ZkLockError, ZooKeeperUnavailable

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["AsyncZkLockClient", "ClientLease", "ClientUnusable", "LeaseRefused", "ZkLockClient"]

KINDS: Final = {"lock": pb.KIND_LOCK, "read": pb.KIND_READ, "write": pb.KIND_WRITE, "semaphore": pb.KIND_SEMAPHORE}
LONG_WAIT: Final = 1.0
"""Seconds. Coordinators may bound a wait. A call that was refused after such a wait queues again."""
CLOSED: Final = "The client is closed."
FORKED: Final = (
    "Process {pid} was forked while it used a client of the lock coordinator, which gRPC does not survive. Use a "
    "client after the fork only, or close it before."
)

_in_use: dict[AsyncZkLockClient, int] = {}
"""The clients with connections, and the process that has made these. A forked child inherits the dict."""


class LeaseRefused(ZkLockError):
    """The coordinator refuses the request. The text says why; `code` is the coordinator's word for the reason."""

    code: str = ""


class ClientUnusable(ZkLockError, RuntimeError):
    """The client is closed, or was in use when the process was forked."""


class ClientOptions(TypedDict, total=False):
    """The options of a client."""

    token: str | None
    """A bearer token of the coordinator."""
    ca: str | Path | None
    """A file with the certificates of authorities (PEM). With this or `certificate`, the client uses TLS."""
    certificate: str | Path | None
    """A file with the certificate of the client (PEM)."""
    key: str | Path | None
    """A file with the key of that certificate (PEM)."""
    client_id: str
    """The name that operators and others in the queue see; by default "program@host:pid"."""
    reply_timeout: float
    """Seconds that a coordinator has to answer, apart from the wait for the lock; 5 by default."""


class LockOptions(TypedDict, total=False):
    """The options of a lock."""

    term: float
    """Seconds after the last message of this client until the lease ends; 10 by default. The client renews it."""
    wait: float | None
    """Seconds to wait for the lock; 0 does not wait. None, the default, waits without limit."""
    kind: Literal["lock", "read", "write", "semaphore"]
    limit: int
    """The number of permits of a semaphore."""
    signed_token: bool
    """Whether to get a signed token, too."""
    on_lost: Callable[[ClientLease], object] | None
    """Called once with the lease, as soon as the lock is lost, or the lease has run out by this program's clock."""


class AsyncZkLockClient:
    """
    Locks from a coordinator, for asyncio programs; on one loop.

    `addresses`: one "host:port", or several. A new lease is asked of the coordinator that gave the last one, and then
    of the others in turn. It stays with the coordinator that gave it. If that ends, the lease ends, too.
    """

    def __init__(self, addresses: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        if not self._addresses:
            raise ValueError('addresses is empty. Give at least one, such as "127.0.0.1:50051".')
        _check_options(options, ClientOptions)
        self._client_id = options.get("client_id") or f"{_program()}@{socket.gethostname()}:{os.getpid()}"
        token = options.get("token")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        paths = [options.get("ca"), options.get("key"), options.get("certificate")]
        files = [None if path is None else Path(path).read_bytes() for path in paths]
        self._credentials = grpc.ssl_channel_credentials(*files) if any(files) else None
        self._reply_timeout = options.get("reply_timeout", 5.0)
        self._preferred = 0  # the index of the address that gave the last lease
        self._connections: dict[str, Connection] = {}
        self._calls: dict[asyncio.Future[Any], Any] = {}  # by reply; those that ask for a lock
        self._releases: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def lock(self, resource: str, **options: Unpack[LockOptions]) -> AsyncIterator[ClientLease]:
        """
        Hold a lock in an `async with` block: acquire it, keep its lease, and release it. See `LockOptions`.

        If the lock is lost, the work in the block is not aborted. Call `lease.check()` before each step that needs the
        lock, or give `on_lost`, which is called on the loop. The block ends with `LockLost` then.

        Raises `LockBusy`, `LockTimeout`, `LeaseRefused`, `ClientUnusable`, and `ZooKeeperUnavailable` if no coordinator
        can be reached, or none of them reaches ZooKeeper.
        """
        lease = ClientLease(resource)
        try:
            await self.acquire(lease, options)
            yield lease
        finally:
            await self.release(lease)
        if lease.lost_reason:
            lease.check()

    async def close(self) -> None:
        """Release all leases; their blocks see that the lock is lost. Calls that wait for a lock fail."""
        self._closed = True
        for unanswered in self._calls.values():
            unanswered.cancel()
        for connection in self._connections.values():
            for lease in list(connection.leases.values()):
                self._begin_release(lease, connection)
                lease.lose("the client was closed")
        while pending := {*self._calls, *self._releases}:
            await asyncio.wait(pending)
        for connection in self._connections.values():
            await connection.close()
        _in_use.pop(self, None)

    # --- acquire ----------------------------------------------------------------------------------------------------

    async def acquire(self, lease: ClientLease, options: LockOptions) -> None:
        """Acquire the lease from the first coordinator that can be reached."""
        _check_options(options, LockOptions)
        kind = options.get("kind", "lock")
        if kind not in KINDS:
            raise ValueError(f"There is no kind {kind!r}. Known kinds: {', '.join(KINDS)}.")
        request = pb.RecordLockRequest(
            resource_path=lease.resource,
            client_id=self._client_id,
            session_timeout_ms=round(options.get("term", 10.0) * 1000),
            kind=KINDS[kind],
            limit=options.get("limit", 0),
            signed_token=options.get("signed_token", False),
        )
        wait = options.get("wait")
        deadline = math.inf if wait is None else now() + wait
        index, failures = self._preferred, 0
        if self._connection(self._addresses[index]).suspect:
            index = (index + 1) % len(self._addresses)
        while True:
            sent = now()
            connection = self._connection(self._addresses[index])
            try:
                response = await self._record(connection, request, max(0.0, deadline - sent))
            except ZooKeeperUnavailable:
                failures += 1
                if failures == len(self._addresses):
                    raise
                index = (index + 1) % len(self._addresses)
                continue
            self._preferred, connection.suspect = index, False
            if response.acquired:
                break
            if now() >= deadline or now() < sent + LONG_WAIT:
                raise (LockTimeout if wait else LockBusy)(response.detail, lock=lease.resource)
            failures = 0
        await lease.begin(connection, response, sent)
        lease.on_lost = options.get("on_lost")

    async def _record(
        self, connection: Connection, request: pb.RecordLockRequest, wait: float
    ) -> pb.RecordLockResponse:
        """
        Ask one coordinator. If this is cancelled, the call leaves the queue, and what it has acquired is released.

        But a lease whose answer is on its way then is not known here: it ends after its term.
        """
        limited = wait < math.inf
        request.wait_blocking = wait > 0
        request.wait_limit_ms = math.ceil(wait * 1000) if limited else 0
        timeout = wait + self._reply_timeout if limited else None
        unanswered = connection.stub.RecordLock(request, metadata=connection.metadata, timeout=timeout)
        reply = asyncio.ensure_future(unanswered)
        self._calls[reply] = unanswered
        response: pb.RecordLockResponse | None = None
        try:
            answer = await asyncio.shield(reply)
            response = None if self._closed else answer
        except grpc.RpcError as error:
            raise _error(error, connection, request.resource_path) from error
        except asyncio.CancelledError:
            unanswered.cancel()
            if not self._closed:
                raise
        finally:
            del self._calls[reply]
            if response is None:
                self._spawn(self._give_back(connection, reply))
        if response is None:
            raise ClientUnusable(CLOSED)
        return response

    def _connection(self, address: str) -> Connection:
        if self._closed:
            raise ClientUnusable(CLOSED)
        for pid in list(_in_use.values()):
            if pid != os.getpid():
                raise ClientUnusable(FORKED.format(pid=pid))
        _in_use[self] = os.getpid()
        if address not in self._connections:
            self._connections[address] = Connection(address, self._credentials, self._metadata)
        return self._connections[address]

    # --- release ----------------------------------------------------------------------------------------------------

    async def release(self, lease: ClientLease) -> None:
        """End a block. The lease may have been lost, or never acquired."""
        if lease.connection is None:
            return
        if lease.valid:
            await asyncio.shield(self._begin_release(lease, lease.connection))
        else:
            lease.lose(RAN_OUT)

    def _begin_release(self, lease: ClientLease, connection: Connection) -> asyncio.Task[None]:
        timeout = min(self._reply_timeout, lease.remaining)
        lease.is_released = True
        lease.end()

        async def release() -> None:
            try:
                response = await connection.release(lease.lease_id, timeout)
            except grpc.RpcError as error:
                logger.warning(
                    "the lock %r was not released; it will be when its lease ends: %s", lease.resource, error
                )
            else:
                if not response.released:
                    lease.lose(response.detail.rstrip("."))

        return self._spawn(release())

    async def _give_back(self, connection: Connection, reply: asyncio.Future[pb.RecordLockResponse]) -> None:
        """Release the lease that a call has acquired, if its caller is gone."""
        with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
            response = await reply
            if response.acquired:
                await connection.release(response.lease_id, self._reply_timeout)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return task


class ZkLockClient:
    """
    Locks from a coordinator, for programs without asyncio; any number of threads may use one client.

    It runs an `AsyncZkLockClient`, which explains the arguments, on a thread of its own. The thread starts with the
    first lock. A client that was not used yet may be used in a forked child.
    """

    def __init__(self, addresses: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        self._client = AsyncZkLockClient(addresses, **options)
        self._mutex = threading.Lock()  # guards the next three
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._stop = asyncio.Event()
        self._pid = 0  # of the process that uses it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def lock(self, resource: str, **options: Unpack[LockOptions]) -> Iterator[ClientLease]:
        """
        Hold a lock in a `with` block; see `AsyncZkLockClient.lock`. `on_lost` is called on a thread of its own.

        If the lock is lost, the work in the block is not aborted: call `lease.check()`, or give `on_lost`.
        """
        on_lost = options.get("on_lost")
        if on_lost is not None:
            options["on_lost"] = functools.partial(_call_in_thread, on_lost)
        lease = ClientLease(resource)
        try:
            self._submit(self._acquire, lease, options).result()
            yield lease
        finally:
            with contextlib.suppress(ClientUnusable):  # `close` has released it, or this is a fork of its holder
                self._submit(self._exit, lease).result()
        if lease.lost_reason:
            lease.check()

    def close(self) -> None:
        """Release all leases; their blocks see that the lock is lost. Calls that wait for a lock fail."""
        if self._pid not in (0, os.getpid()):
            return  # it is the parent's
        with self._mutex:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            with contextlib.suppress(RuntimeError):  # another thread has closed it
                loop.call_soon_threadsafe(self._stop.set)
            thread.join()
        atexit.unregister(self.close)

    def _submit(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> Future[None]:
        """Run `work(*args)` on the loop."""
        self._pid = self._pid or os.getpid()  # before the mutex, which would be locked for ever in a fork
        if self._pid != os.getpid():
            raise ClientUnusable(FORKED.format(pid=self._pid))
        with self._mutex:
            if self._closed:
                raise ClientUnusable(CLOSED)
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                run = functools.partial(asyncio.run, self._run(started))
                self._thread = threading.Thread(target=run, name="zklock-client", daemon=True)
                self._thread.start()
                self._loop = started.result()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(work(*args), self._loop)

    # --- on the loop ------------------------------------------------------------------------------------------------

    async def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        await self._client.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)  # threads wait for them

    async def _acquire(self, lease: ClientLease, options: LockOptions) -> None:
        lease.acquiring = asyncio.current_task()
        await self._client.acquire(lease, options)

    async def _exit(self, lease: ClientLease) -> None:
        if lease.acquiring is not None:
            lease.acquiring.cancel()  # the thread was interrupted while it waited
        await self._client.release(lease)


def _call_in_thread(on_lost: Callable[[ClientLease], object], lease: ClientLease) -> None:
    threading.Thread(target=call, args=(on_lost, lease), name="zklock-on-lost", daemon=True).start()


def _check_options(given: Any, known: type) -> None:
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"There is no option {name!r}. Known options: {', '.join(known.__annotations__)}.")


def _program() -> str:
    return os.path.basename(sys.argv[0]) or "python"


def _error(error: Any, connection: Connection, resource: str) -> ZkLockError:
    """Return our error for one of gRPC's. A coordinator that refuses a request gives a code of its own."""
    code = str(dict(error.trailing_metadata() or ()).get("zklock-code", "unavailable"))
    if code == "unavailable":
        return ZooKeeperUnavailable(
            f"No lock from the coordinator {connection.address}: {error.details()}", lock=resource
        )
    refused = LeaseRefused(error.details(), lock=resource)
    refused.code = code
    return refused
