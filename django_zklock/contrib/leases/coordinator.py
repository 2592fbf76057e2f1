"""
The coordinator: it gives leases to clients, keeps them, and ends them.

A lease lives with the coordinator that gave it. There may be any number of coordinators; they share nothing but the
queues in ZooKeeper. If one dies, its leases end with its session, and none of them is over before the end that its
client was told.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import itertools
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from django.core.signing import BadSignature, Signer

from django_zklock import conf
from django_zklock.contrib.leases import options
from django_zklock.contrib.leases.access import Denials, counted
from django_zklock.contrib.leases.lease import RELEASED, Lease, LeaseLock, LeaseRequest
from django_zklock.contrib.leases.options import KINDS, LeaseClient
from django_zklock.contrib.leases.refusal import Code, Refusal, for_client, over
from django_zklock.contrib.leases.state import StateFile
from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import printable, show_tails
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.untrusted import digits
from django_zklock.core.zk import process
from django_zklock.core.zk.gateway import Node
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.inspection import LockInfo, look_at
from django_zklock.names import template as names

logger = Logger("django_zklock.leases")

DEFAULT_TERM: Final = 30.0
"""Seconds for which a lease lasts after the last sign of its client, unless the client says another term."""
SHORTEST_TERM: Final = 0.1
LONGEST_CLIENT_ID: Final = 120  # characters
LONGEST_REQUEST_ID: Final = 128  # characters
MOST_STARTING: Final = 1
"""
Acquisitions of one client that are starting at a time. Its others wait for them, in order.

So a client that sends thousands of calls has a small part of the processor, and others hardly wait.
"""
MOST_STARTING_ALONE: Final = 8
"""Their number if the settings name no clients: there are no others to protect."""
LONGEST_START: Final = 0.02
"""
Seconds after which an acquisition no longer counts as starting: it waits for a ZooKeeper that is far away, or silent.

One nearby has answered by then: a client that floods a coordinator has about one acquisition under way at a time.
"""
READ_AGE: Final = 1.0
"""Seconds for which one read of a queue serves all calls that found the lock busy."""
MOST_ENDED: Final = 10_000
"""Leases whose ends are remembered, for clients that ask why."""
SOON: Final = 0.05
"""Seconds. Clients keep a lease every 0.1 s at most; a flood of such messages must not delay other clients."""
MOST_READS: Final = 200
"""The most reads of queues that are under way or no older than that. Each costs a thread some milliseconds."""
END_TIMEOUT: Final = 1.0
"""Seconds that the end waits for the thread of the protocol."""
LOSSES_WITHIN: Final = 1.0
"""Seconds whose lost leases are one line of the log."""
DRAINING: Final = "the coordinator is about to end"

_signer = Signer(salt="zklock.leases", sep=".")  # of the address in a lease id


class Coordinator:
    """The leases of this process; on one event loop."""

    def __init__(self, state: StateFile | None = None) -> None:
        self.id = secrets.token_hex(4)
        self._state = state
        self._key = secrets.token_bytes(16) if state is None else state.key  # of the secrets in lease ids
        self._options = options.current()
        self._address = ""  # where clients reach it, as "host:port"; empty if that is not known
        self._id_suffix = ""  # with the address, signed
        self._leases: set[Lease] = set()  # also those that wait, or are about to end
        self._given: dict[str, Lease] = {}  # those that have had the lock, by `_own_part` of the lease id
        self._by_request: dict[tuple[str, str], Lease] = {}  # by client and `LeaseRequest.request_id`
        self._ended: dict[str, tuple[str, str]] = {}  # the client and the reason, likewise; the oldest first
        self._numbers = itertools.count(1)
        self._leases_of: Counter[str] = Counter()  # of all these, by client
        self._waiting: Counter[str] = Counter()  # calls, by client
        most = MOST_STARTING if self._options.clients else MOST_STARTING_ALONE
        self._starting: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most))  # by client
        self._reads: dict[str, asyncio.Future[LockInfo | None]] = {}  # by key, until they are a second old
        self._denials = Denials()
        self._lost = 0  # leases that no line of the log tells of yet
        self._draining = False

    def advertise(self, address: str) -> None:
        """
        Put the address of this coordinator into its lease ids.

        So any coordinator can tell a client where its lease is. It is signed: a client that is given a false lease
        id must not send its token to a false address.
        """
        self._address, self._id_suffix = address, f".{_signer.sign(address)}"

    # --- acquire, keep, release -----------------------------------------------------------------------------------

    async def acquire(
        self, client: LeaseClient, request: LeaseRequest, on_queued: Callable[[], Awaitable[object]] | None = None
    ) -> Lease:
        """
        Return the lease of a request, as soon as it has the lock: a new one, unless the request was sent before.

        `on_queued` is awaited if the lease has to wait in the queue. Raises `Refusal`, with the code BUSY if the lock
        was not free in time. If this is cancelled, the client gets nothing: what was acquired is given back, unless
        the same request was sent another time.
        """
        with counted(self._waiting, client, "calls that wait"):
            lease = await self._settled(client, _normal(request), on_queued)
        if lease.error is not None:
            raise _refusal(client, request, lease.error)
        if not lease.is_held:
            raise Refusal(Code.UNAVAILABLE, f"The lock was not acquired: {lease.end_reason}.")
        return lease

    async def _settled(
        self, client: LeaseClient, request: LeaseRequest, on_queued: Callable[[], Awaitable[object]] | None
    ) -> Lease:
        """Return the lease of a request when it has the lock or is over."""
        loop, lease = asyncio.get_running_loop(), None
        called = loop.time()
        try:
            async with self._starting[client.name]:
                lease = self._sent_before(client, request)
                if lease is None:
                    # In tenths of a second: calls with the same options share them.
                    lease = self._new_lease(client, request, round(loop.time() - called, 1))
                lease.calls += 1
                # Without a connection, each may wait for as long as its client allows, and the others must not add up.
                await lease.wait_started(LONGEST_START if process.current().connected else 0.0)
            await lease.wait_started()
            if on_queued is not None and not lease.settled.done():
                await on_queued()
            await asyncio.shield(lease.settled)
        except asyncio.CancelledError:
            if lease is not None:
                lease.end_call()
            raise
        return lease

    def cost_of_keeping(self, client: LeaseClient, lease_id: str, *, unknown: float = 1.0) -> float:
        """Return which part of a request a message counts that keeps or ends a lease: nothing if it is due."""
        lease = self._given.get(_own_part(lease_id))
        if lease is None or lease.client != client.name:
            return unknown
        return 0.0 if asyncio.get_running_loop().time() >= lease.kept_at + SOON else 1.0

    def keep(self, client: LeaseClient, lease_id: str) -> Lease:
        """Keep a lease for another term; return it. Raises `Refusal` if it is over."""
        lease = self.find(client, lease_id)
        lease.keep()
        return lease

    async def release(self, client: LeaseClient, lease_id: str) -> None:
        """Release a lease, and wait until the lock is free for the next one. Raises `Refusal` if it is over."""
        lease = self.find(client, lease_id)
        if lease.end_reason:
            raise over(lease.end_reason)
        lease.end(RELEASED)
        await asyncio.shield(lease.task)

    def find(self, client: LeaseClient, lease_id: str) -> Lease:
        """Return a lease of this client. Raises `Refusal`."""
        lease = self._given.get(_own_part(lease_id))
        if lease is not None and lease.client == client.name:
            lease.id = lease_id  # the process that gave it may have had another address
            return lease
        owner, reason = self._ended.get(_own_part(lease_id), ("", ""))
        if reason and owner == client.name:
            raise over(reason)
        raise self._unknown(lease_id)

    def _unknown(self, lease_id: str) -> Refusal:
        """Return the refusal for a lease that this coordinator does not have; another one may have given it."""
        coordinator, *rest = lease_id.split(".", 3)
        if coordinator == self.id or len(rest) < 2:
            text = "There is no such lease. It is over, was never given, or belongs to another client."
            return Refusal(Code.OVER, text)
        elsewhere = _address(rest[2]) if len(rest) > 2 else ""
        if elsewhere and elsewhere == self._address:
            return over("the coordinator that gave it has ended, or has the same --advertise as this one")
        return Refusal(
            Code.ELSEWHERE,
            f"This is the coordinator {self.id}; the lease is from {printable(coordinator, 40)}. Send the request "
            "to the process that gave the lease. If that has ended, so has the lease.",
            elsewhere,
        )

    async def count_ahead(self, resource: str) -> int:
        """Return how many hold a lock, or wait for it; 0 if that is not known."""
        info = await self._read_queue(key_of(resource))
        return 0 if info is None else len(info.holders) + info.waiting

    async def _read_queue(self, key: str) -> LockInfo | None:
        """Return the state of a lock, which all that ask within a second share; None if it is free or unknown."""
        read = self._reads.get(key)
        if read is None:
            if len(self._reads) >= MOST_READS:
                return None
            later = asyncio.get_running_loop().call_later
            read = self._reads[key] = asyncio.ensure_future(asyncio.to_thread(_read_queue, key))
            read.add_done_callback(lambda _: later(READ_AGE, self._reads.pop, key))
        return await asyncio.shield(read)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Give no more leases; wait until those that are held are released, or have run out. See `has_successor`."""
        await self._end_all(after_term=True)

    async def stop(self) -> None:
        """Give no more leases; wait until every lease end that was told to a client has passed. See `has_successor`."""
        await self._end_all(after_term=False)

    @property
    def has_successor(self) -> bool:
        """Whether another process goes on with the leases, so that only those end that wait for their locks."""
        return self._state is not None

    async def _end_all(self, *, after_term: bool) -> None:
        self._draining = True
        while ending := [lease for lease in self._leases if not (self.has_successor and lease.was_given)]:
            for lease in ending:
                lease.end_soon(DRAINING, after_term=after_term)
            await asyncio.wait([lease.task for lease in ending])

    def pass_on(self) -> None:
        """Keep the session and all leases for another process, if there is to be one; else do nothing."""
        session = process.peek()
        if self.has_successor and session is not None:
            session.keep_open(END_TIMEOUT)
            for lease in self._leases:
                lease.end_reason = DRAINING  # its task ends without a word

    # --- small parts ------------------------------------------------------------------------------------------------

    def _sent_before(self, client: LeaseClient, request: LeaseRequest) -> Lease | None:
        """Return the lease of a request that was sent before, unless it is over. Raises `Refusal`."""
        lease = self._by_request.get((client.name, request.request_id))
        if lease is None or lease.end_reason:
            return None
        first = dataclasses.replace(lease.request, client_id=request.client_id, wait_limit_ms=request.wait_limit_ms)
        if first != request:
            raise Refusal(Code.INVALID, "Another request had this request_id. Give each request one of its own.")
        return lease

    def _new_lease(self, client: LeaseClient, request: LeaseRequest, waited: float) -> Lease:
        if self._draining:
            raise Refusal(Code.UNAVAILABLE, f"No more leases are given: {DRAINING}. Ask another one.")
        if self._leases_of[client.name] >= client.max_leases:
            limit = client.max_leases
            raise Refusal(Code.TOO_MANY, f"The client {client.name!r} has {limit} leases or waits for them, its limit.")
        longest, term = self._options.max_term, self._term(request)
        if not SHORTEST_TERM <= term <= longest:
            raise Refusal(
                Code.INVALID,
                f"session_timeout_ms is not from {SHORTEST_TERM * 1000:.0f} to {longest * 1000:.0f}. Keep the lease "
                "alive to have it for longer.",
            )
        if not request.client_id:
            raise Refusal(Code.INVALID, "client_id is empty; say who wants the lock, as operators should see it.")
        self._check_rights(client, request.resource_path, request.kind)
        about = {"client": client.name, "lease": f"{self.id}.{next(self._numbers)}"}
        if self._state is not None:  # what `restore` needs
            term_ms = str(request.session_timeout_ms)
            about |= {"kind": request.kind, "term": term_ms, "request_hash": request.request_id}
        return self._begin(self._lock(request, waited, about), request, about)

    def restore(self, node: Node, most: float) -> Lease:
        """
        Go on with the lease of an earlier process, whose znode this is.

        No client was told an end in more than `most` seconds, so it lasts until then; perhaps it still waited, and is
        over then. Raises `Refusal` if the settings forbid such a lock, or if the data of the znode are lost.
        """
        payload = Payload.decode(node.data)
        if payload is None:
            raise Refusal(Code.INVALID, "Another program has written its znode.")
        about = dict(payload.about)
        kind = about.get("kind", "")
        request = LeaseRequest(
            resource_path=show_tails(node.path.rpartition("/")[0].removeprefix(f"{conf.current().base}/")),
            client_id=payload.what,
            session_timeout_ms=digits(about.get("term"), default=0),
            wait_limit_ms=None,
            kind=kind,
            limit=payload.limit if kind == "semaphore" else 0,  # else it is that of the settings
            request_id=about.get("request_hash", ""),
        )
        lock = self._lock(request, 0.0, about)
        lock.resume(node)
        until = asyncio.get_running_loop().time() + min(request.session_timeout_ms / 1000 or DEFAULT_TERM, most)
        return self._begin(lock, request, about, until)

    def _begin(
        self, lock: LeaseLock, request: LeaseRequest, about: Mapping[str, str], until: float = -math.inf
    ) -> Lease:
        lease = Lease(lock, request, about, self._term(request), self._give_id, until)
        self._leases.add(lease)
        if request.request_id:
            self._by_request[lease.client, request.request_id] = lease
        self._leases_of[lease.client] += 1
        lease.task.add_done_callback(lambda _: self._on_end(lease))
        return lease

    def _give_id(self, lease: Lease) -> None:
        """Give a lease that has the lock an id. Others may write its number to another znode, but not its token."""
        assert lease.hold is not None
        secret = hmac.digest(self._key, f"{lease.number} {lease.hold.token}".encode(), "sha256")[:16]
        lease.own_part = f"{lease.number}.{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"
        lease.id = lease.own_part + self._id_suffix
        self._given[lease.own_part] = lease

    def _term(self, request: LeaseRequest) -> float:
        """Return the term that a request asks for, in seconds."""
        return request.session_timeout_ms / 1000 or min(DEFAULT_TERM, self._options.max_term)

    def _check_rights(self, client: LeaseClient, key: str, kind: str) -> None:
        if kind not in KINDS:
            raise Refusal(Code.INVALID, f"There is no kind {kind[:60]!r}. Known kinds: {', '.join(KINDS)}.")
        problem = ""
        if not client.may_lock(key):
            allowed = ", ".join(map(repr, client.prefixes))
            problem = f"The client {client.name!r} may not lock {key!r}. It may lock {allowed}."
        elif kind not in client.kinds:
            problem = f"The client {client.name!r} may not take the kind {kind!r}."
        if problem:
            self._denials.report(f"the lock coordinator refused: {problem}", lock=key, user=client.name)
            raise Refusal(Code.FORBIDDEN, problem)

    def _lock(self, request: LeaseRequest, waited: float, about: dict[str, str]) -> LeaseLock:
        wait, longest = request.wait_limit_ms, self._options.max_wait
        if min(wait or 0, request.limit) < 0:
            raise Refusal(Code.INVALID, "wait_limit_ms or limit is below 0.")
        if (request.kind == "semaphore") != (request.limit > 0):
            raise Refusal(Code.INVALID, "A semaphore needs a limit of at least 1. Other kinds have no limit.")
        own: dict[str, Any] = {
            "timeout": longest if wait is None else max(0.0, min(longest, wait / 1000 - waited)),
            "abort_on": "never",  # the lease notices a loss by itself
            "atomic": False,
            "release_on": "exit",
            "linger": 0,  # with it, the leases of several clients would have the same token
        }
        if request.kind == "semaphore":
            own |= {"limit": request.limit, "kind": "lock"}
        elif request.kind != "lock":
            own |= {"kind": request.kind, "limit": None}
        try:
            return LeaseLock.of_key(request.resource_path, what=request.client_id, about=about, **own)
        except ValueError as error:
            raise Refusal(Code.INVALID, str(error)) from error

    def _on_end(self, lease: Lease) -> None:
        self._leases.discard(lease)
        request = (lease.client, lease.request.request_id)
        if self._by_request.get(request) is lease:
            del self._by_request[request]
        if self._given.pop(lease.own_part, None):
            self._ended[lease.own_part] = lease.client, lease.end_reason
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        self._leases_of[lease.client] -= 1
        if isinstance(lease.error, LockLost):
            self._lost += 1
            if self._lost == 1:
                asyncio.get_running_loop().call_later(LOSSES_WITHIN, self._log_losses, str(lease.error))

    def _log_losses(self, reason: str) -> None:
        logger.warning("%d leases were lost. The first one: %s", self._lost, reason)
        self._lost = 0


def key_of(resource: str) -> str:
    """
    Return the key of a resource: its segments are escaped, unless it is a key with an escape already.

    Raises `Refusal` if it cannot be the name of a lock.
    """
    try:
        return names.own_key(resource)
    except ZkLockError as error:
        raise Refusal(Code.INVALID, f"resource_path: {error}") from error


def _address(signed: str) -> str:
    """Return the address in a lease id; empty unless a coordinator with the same SECRET_KEY has written it."""
    try:
        return _signer.unsign(signed)
    except (BadSignature, ValueError):  # a ValueError for a lone surrogate
        return ""


def _read_queue(key: str) -> LockInfo | None:
    try:
        return look_at(key)
    except ZkLockError:
        return None


def _normal(request: LeaseRequest) -> LeaseRequest:
    """Return the request of a client as its lease has it: with a key and texts that fit into a znode."""
    if len(request.request_id) > LONGEST_REQUEST_ID:
        raise Refusal(Code.INVALID, f"request_id has more than {LONGEST_REQUEST_ID} characters.")
    request_hash = hashlib.sha256(request.request_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return dataclasses.replace(
        request,
        resource_path=key_of(request.resource_path),
        client_id=printable(request.client_id.strip(), LONGEST_CLIENT_ID),
        request_id=request_hash if request.request_id else "",
    )


def _own_part(lease_id: str) -> str:
    """Return a lease id without the address of the coordinator that gave it."""
    return ".".join(lease_id.split(".", 3)[:3])


def _refusal(client: LeaseClient, request: LeaseRequest, error: ZkLockError) -> Refusal:
    """Return the refusal for a lock that was not acquired. It names the holder only if that is of the same client."""
    if not isinstance(error, LockNotAcquired):
        logger.info("client %r did not get a lease: %s", client.name, error)
        return Refusal(Code.UNAVAILABLE, for_client(error))
    if error.ahead is not None and error.ahead.about.get("client") == client.name:
        return Refusal(Code.BUSY, str(error))
    logger.info("client %r did not get a lease: %s", client.name, error)
    return Refusal(Code.BUSY, f"The lock {request.resource_path!r} was not free in time.")
