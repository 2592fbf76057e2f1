"""The clients, sync and async."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import math
import os
import random
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import grpc

from zklock_client.connection import RETRIED, Connection, Keeper, Tls, reason_of, was_queued
from zklock_client.errors import (
    ClientUnusable,
    CoordinatorUnavailable,
    LeaseRefused,
    LockBusy,
    LockTimeout,
    ZkLockError,
)
from zklock_client.lease import Lease, call, now
from zklock_client.v1 import lock_coordinator_pb2 as pb

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Unpack

KINDS: Final = {"lock": pb.KIND_LOCK, "read": pb.KIND_READ, "write": pb.KIND_WRITE, "semaphore": pb.KIND_SEMAPHORE}
LONG_WAIT: Final = 1.0
"""Seconds. A coordinator may bound a wait. A call that it refuses after this time or later is sent again."""
FOREVER: Final = 1e9
"""Seconds. gRPC cannot count to the end of a wait that is much longer, so it has no limit."""
LONGEST_PAUSE: Final = 0.5
"""Seconds until the next try, at most, when all coordinators have refused."""
CLOSED: Final = "The client is closed."
FORKED: Final = (
    "Process {pid} was forked while it used a client of the lock coordinator, which gRPC does not survive. Use a "
    'client after the fork only, or close it before. Or start the process by the method "spawn" of multiprocessing.'
)

_in_use: dict[AsyncZkLockClient, int] = {}
"""The clients in use, and the pid of the process that uses each. A forked child inherits the dict."""


class _Secret(str):
    """A text whose repr shows nothing, because error reporters print the locals of frames."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


class ClientOptions(TypedDict, total=False):
    """The options of a client."""

    token: str | None
    """A bearer token of the coordinator."""
    ca: str | Path | None
    """
    A file with the certificates of authorities (PEM). With this or `certificate`, the client uses TLS.

    A new connection uses the files as they are then, so they may be renewed.
    """
    certificate: str | Path | None
    """A file with the certificate of the client (PEM)."""
    key: str | Path | None
    """A file with the key of that certificate (PEM)."""
    client_id: str
    """The name that operators and others in the queue see; by default "program@host:pid"."""
    reply_timeout: float
    """Seconds that the coordinators have to answer, apart from the wait for the lock; 5 by default."""


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
    on_lost: Callable[[Lease], object] | None
    """Called once with the lease, as soon as the lock is lost, or the lease has run out by this program's clock."""


class AsyncZkLockClient:
    """
    Locks from a coordinator, for asyncio programs. A client belongs to one event loop.

    `addresses`: one "host:port", or several. For a new lease, the client asks the coordinator that gave the last one,
    and then the others in turn. A lease stays with the coordinator that gave it. If that coordinator ends, the lease
    ends, too, unless the next process there goes on with it.
    """

    def __init__(self, addresses: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        if not self._addresses:
            raise ValueError('addresses is empty. Give at least one, such as "127.0.0.1:50051".')
        token = _Secret(options.pop("token", None) or "")  # an error of this call shows its locals
        _check_options(options, ClientOptions)
        self._client_id = options.get("client_id")
        if not (token.isascii() and token.isprintable()):
            raise ValueError("The token has a character that no header may have, such as a line break at its end.")
        self._metadata = (("authorization", _Secret(f"Bearer {token}")),) if token else ()
        self._tls = Tls(options.get("ca"), options.get("key"), options.get("certificate"))
        self._reply_timeout = options.get("reply_timeout", 5.0)
        self._preferred = 0  # the index of the address that gave the last lease
        self._connections: dict[str, Connection] = {}  # by address
        self._keepers: dict[str, Keeper] = {}  # by the coordinator that gave the leases
        self._calls: dict[asyncio.Future[Any], Any] = {}  # by reply; those that ask for a lock
        self._releases: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def lock(self, resource: str, **options: Unpack[LockOptions]) -> AsyncIterator[Lease]:
        """
        Hold a lock in an `async with` block: acquire it, keep its lease, and release it. See `LockOptions`.

        If the lock is lost, the work in the block is not aborted, but the end of the block raises `LockLost`. Call
        `lease.check()` before each step that needs the lock, or give `on_lost`, which is called on the loop.

        A coordinator that is silent, or cannot grant locks now, is tried again after the others. Each one is asked at
        least once, for `reply_timeout`, also if the wait is shorter. If the answer is lost with its connection, the
        coordinator is asked again, and gives the same lease.

        Raises `LockBusy`, `LockTimeout`, `LeaseRefused` and `ClientUnusable`. Raises `CoordinatorUnavailable` if no
        coordinator could grant locks by the end of the wait, or within `reply_timeout` if the wait has no limit. That
        time begins again after a second in a queue.
        """
        lease = Lease(resource)
        try:
            await self.acquire(lease, options)
            yield lease
        finally:
            await self.release(lease)
        if lease.lost_reason:
            lease.check()

    async def close(self) -> None:
        """Release all leases; their blocks see that the lock is lost. Calls that wait for a lock fail."""
        if self._is_inherited:
            return
        self._closed = True
        for unanswered in self._calls.values():
            unanswered.cancel()
        for keeper in self._keepers.values():
            for lease in list(keeper.leases.values()):
                self._begin_release(lease, keeper)
                lease.lose("the client was closed")
        while pending := {*self._calls, *self._releases}:
            await asyncio.wait(pending)
        for connection in self._connections.values():
            await connection.close()
        _in_use.pop(self, None)

    # --- acquire ----------------------------------------------------------------------------------------------------

    async def acquire(self, lease: Lease, options: LockOptions) -> None:
        """Acquire the lease from the first coordinator that can be reached."""
        _check_options(options, LockOptions)
        kind = options.get("kind", "lock")
        if kind not in KINDS:
            raise ValueError(f"There is no kind {kind!r}. Known kinds: {', '.join(KINDS)}.")
        request = pb.RecordLockRequest(
            resource_path=lease.resource,
            client_id=self._client_id or _default_id(),
            session_timeout_ms=max(1, math.ceil(options.get("term", 10.0) * 1000)),  # 0 would be the default
            kind=KINDS[kind],
            limit=options.get("limit", 0),
            signed_token=options.get("signed_token", False),
            request_id=secrets.token_urlsafe(16),
        )
        await self._acquire(lease, request, options.get("wait"))
        lease.on_lost = options.get("on_lost")

    async def _acquire(self, lease: Lease, request: pb.RecordLockRequest, wait: float | None) -> None:
        self._check_usable()
        deadline = math.inf if wait is None or wait > FOREVER else now() + wait
        search = _Search(self._preferred, len(self._addresses), deadline, self._reply_timeout)
        if self._connection(self._addresses[search.index]).suspect:
            search.go_on()
        while True:
            await self._tls.refresh()
            self._check_usable()
            connection, sent = self._connection(self._addresses[search.index]), now()
            try:
                response = await self._record(connection, request, max(0.0, deadline - sent))
            except (CoordinatorUnavailable, LeaseRefused) as error:
                pause = search.pause_after(error, connection, now() - sent)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
                continue
            search.failures = 0
            self._preferred, connection.suspect = search.index, False
            if response.acquired:
                break
            if now() >= deadline or now() < sent + LONG_WAIT:
                raise (LockTimeout if wait else LockBusy)(response.detail, lock=lease.resource)
        await lease.begin(self._keeper(connection, response), response, sent)

    async def _record(
        self, connection: Connection, request: pb.RecordLockRequest, wait: float
    ) -> pb.RecordLockResponse:
        """
        Ask one coordinator. If this is cancelled, the call leaves the queue, and what it has acquired is released.

        If the caller is gone when the answer is lost, nobody releases the lease. It ends after its term.
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
            code, _ = reason_of(error)
            if code not in ("", "unavailable"):
                raise LeaseRefused(error.details() or code, lock=request.resource_path, code=code) from error
            text = f"No lock from the coordinator {connection.address}: {error.details()}"
            raise CoordinatorUnavailable(text, lock=request.resource_path, code=code) from error
        except asyncio.CancelledError:
            unanswered.cancel()
            if not self._closed:
                raise
        finally:
            del self._calls[reply]
            if response is None:
                self._spawn(self._give_back(connection, reply, request.resource_path))
        if response is None:
            raise ClientUnusable(CLOSED)
        return response

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientUnusable(CLOSED)
        for pid in list(_in_use.values()):
            if pid != os.getpid():
                raise ClientUnusable(FORKED.format(pid=pid))
        _in_use[self] = os.getpid()

    @property
    def _is_inherited(self) -> bool:
        """Whether the process was forked from one that uses this client. Its connections are left alone."""
        return _in_use.get(self, os.getpid()) != os.getpid()

    async def _connect(self, address: str) -> Connection:
        await self._tls.refresh()
        return self._connection(address)

    def _connection(self, address: str) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.is_outdated:
            if connection is not None:
                self._spawn(connection.channel.close(FOREVER))  # when its calls are over
            connection = self._connections[address] = Connection(address, self._tls, self._metadata)
        return connection

    def _keeper(self, connection: Connection, response: pb.RecordLockResponse) -> Keeper:
        """Return the keeper of a lease, by the coordinator that its id names. Behind a balancer there are several."""
        self._keepers = {owner: keeper for owner, keeper in self._keepers.items() if keeper.leases}
        owner = response.lease_id.partition(".")[0]
        return self._keepers.setdefault(owner, Keeper(connection, self._connect))

    # --- release ----------------------------------------------------------------------------------------------------

    async def release(self, lease: Lease) -> None:
        """End a block. The lease may have been lost, or never acquired."""
        if lease.keeper is None or self._is_inherited:
            return
        if lease.valid:
            await asyncio.shield(self._begin_release(lease, lease.keeper))
        else:
            lease.run_out()

    def _begin_release(self, lease: Lease, keeper: Keeper) -> asyncio.Task[None]:
        timeout = min(self._reply_timeout, lease.remaining)
        lease.is_released = True
        lease.end()
        return self._spawn(keeper.release(lease, timeout))

    async def _give_back(
        self, connection: Connection, reply: asyncio.Future[pb.RecordLockResponse], resource: str
    ) -> None:
        """Release the lease that a call has acquired, if its caller is gone."""
        with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
            response = await reply
            if response.acquired:
                lease = Lease(resource)
                lease.lease_id = response.lease_id
                await self._keeper(connection, response).release(lease, self._reply_timeout)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return task


class _Search:
    """Finds the coordinator to ask next, while others fail."""

    def __init__(self, index: int, addresses: int, deadline: float, reply_timeout: float) -> None:
        self.index = index  # of the address
        self.failures = 0  # since an answer, or since the wait in a queue
        self._addresses = addresses
        self._deadline = deadline
        self._reply_timeout = reply_timeout
        self._give_up = deadline + reply_timeout
        self._is_repeated = False

    def go_on(self) -> None:
        """Take the next coordinator."""
        self.index = (self.index + 1) % self._addresses

    def pause_after(self, error: ZkLockError, connection: Connection, lasted: float) -> float | None:
        """Take the next coordinator after a failure, and return the seconds until then; None to give up."""
        if was_queued(error.__cause__) and lasted >= LONG_WAIT:
            self.failures = 0  # the call has waited well until now
        self._is_repeated = not self._is_repeated and connection.may_have_answered(error.__cause__)
        if self._is_repeated:
            return 0.0  # the same one: it may have given the lease, and knows the request
        self.go_on()
        self.failures += 1
        if self.failures == 1 and self._deadline == math.inf:
            self._give_up = now() + self._reply_timeout
        is_round = self.failures >= self._addresses
        pause = random.random() * LONGEST_PAUSE if is_round else 0.0  # noqa: S311
        is_over = is_round and now() + pause > self._give_up
        return None if is_over or error.code not in RETRIED else pause


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
    def lock(self, resource: str, **options: Unpack[LockOptions]) -> Iterator[Lease]:
        """
        Hold a lock in a `with` block; see `AsyncZkLockClient.lock`. `on_lost` is called on a thread of its own.

        If the lock is lost, the work in the block is not aborted: call `lease.check()`, or give `on_lost`.
        """
        on_lost = options.get("on_lost")
        if on_lost is not None:
            options["on_lost"] = functools.partial(_call_in_thread, on_lost)
        lease = Lease(resource)
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

    async def _acquire(self, lease: Lease, options: LockOptions) -> None:
        lease.acquiring = asyncio.current_task()
        await self._client.acquire(lease, options)

    async def _exit(self, lease: Lease) -> None:
        if lease.acquiring is not None:
            lease.acquiring.cancel()  # the thread was interrupted while it waited
        await self._client.release(lease)


def _default_id() -> str:
    program = os.path.basename(sys.argv[0]) or "python"
    return f"{program}@{socket.gethostname()}:{os.getpid()}"


def _call_in_thread(on_lost: Callable[[Lease], object], lease: Lease) -> None:
    threading.Thread(target=call, args=(on_lost, lease), name="zklock-on-lost", daemon=True).start()


def _check_options(given: Any, known: type) -> None:
    for name, value in given.items():
        if name not in known.__annotations__:
            raise TypeError(f"There is no option {name!r}. Known options: {', '.join(known.__annotations__)}.")
        if isinstance(value, float) and not (math.isfinite(value) or (name == "wait" and value > 0)):
            raise ValueError(f"{name} is {value}. Give a number of seconds.")
