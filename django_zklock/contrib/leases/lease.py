"""One lease: a lock that the coordinator acquires, holds and releases for a client in another program."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django_zklock.contrib.leases.refusal import Code, Refusal, for_client, over
from django_zklock.contrib.leases.resumption import Resumed
from django_zklock.core.log import Logger
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.lock import Lock

if TYPE_CHECKING:
    from django_zklock.core.zk.gateway import Node

audit = Logger("zklock.audit")
logger = Logger("django_zklock.leases")

NOT_KEPT: Final = "it was not kept in time"
RELEASED: Final = "the client has released it"
LEFT: Final = "the client has left the queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """The request of a client for a lease, with the names that its fields have in gRPC."""

    resource_path: str = ""
    client_id: str = ""
    session_timeout_ms: int = 0
    """The term: how long the lease lasts after the last message of the client; 0: the default."""
    wait_limit_ms: int | None = 0
    """How long to wait for the lock; None: as long as the coordinator allows."""
    kind: str = "lock"
    limit: int = 0
    """The number of permits of a semaphore."""
    request_id: str = ""
    """Chosen by the client; here its hash. A request that is sent again has the same one, and gets the same lease."""


class LeaseLock(Lock):
    """A lock that wakes `queued` when it has to wait."""

    _lasts = "lease"
    queued: asyncio.Future[None]

    def resume(self, node: Node) -> None:
        """Acquire it by the znode by which an earlier process of this session had it, or waited for it."""
        of_key = self.resolve
        own: dict[str, Any] = {"contender": partial(Resumed, node), "timeout": None}
        self.resolve = lambda config: replace(of_key(config), **own)

    def _on_wait(self, waiter: Any) -> None:
        waiter.on_queued = self._report_queued

    def _report_queued(self) -> None:
        self.queued.get_loop().call_soon_threadsafe(wake, self.queued)


class Lease:
    """
    A lock for one client; on the loop of its coordinator.

    A task of its own waits for the lock, holds it until the lease is over, and releases it. The lease is over when the
    client releases it, when the client has not kept it for its term, or when the lock is lost. It is never released
    before the end that the client was told, unless the client itself gives it back.
    """

    def __init__(
        self,
        lock: LeaseLock,
        request: LeaseRequest,
        about: Mapping[str, str],
        term: float,
        on_granted: Callable[[Lease], object],
        until: float = -math.inf,
    ) -> None:
        """Begin. `until` is the end of a lease that an earlier process has given, on the loop's clock."""
        self.id = ""  # a secret of the client; `on_granted` sets it, and the part of it without an address
        self.own_part = ""
        self.number = about.get("lease", "")  # for logs and operators
        self.client = about.get("client", "")
        self.lock = lock
        self.request = request
        self.calls = 0  # that wait for it, or had it as their answer
        self.hold: Hold | None = None
        self.error: ZkLockError | None = None  # why it was not acquired, or was lost
        self.end_reason = ""  # why it is over; empty while it waits or is held
        self.release_requested = ""  # why the client should release it
        self.promised_until = -math.inf  # the latest end told, on the loop's clock; not that of an earlier process
        self.kept_at = -math.inf  # on the loop's clock
        self._on_granted = on_granted
        self._term = term
        self._kept_until = until  # on the loop's clock; set by the grant
        self._is_restored = until > -math.inf  # an earlier process has given it
        self._last_end = math.inf  # that keeping can reach
        self.observers: dict[Callable[[Lease], object], None] = {}  # called at each change
        self._loop = asyncio.get_running_loop()
        lock.queued = self._loop.create_future()
        self.settled: asyncio.Future[None] = self._loop.create_future()  # done when it is held, or over
        self.task = self._loop.create_task(self._run())  # done when the lock is released, too

    def __repr__(self) -> str:
        return f"<lease {self.number} of {self.client!r} on {self.lock.key!r}>"

    async def wait_started(self, timeout: float | None = None) -> None:
        """Wait until it is in the queue, has the lock, or is over, or until the time is over."""
        started = (self.lock.queued, self.settled)
        if not any(future.done() for future in started):  # a wait costs a turn of the loop in any case
            await asyncio.wait(started, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_held(self) -> bool:
        """Whether the client has the lock."""
        return self.hold is not None and not self.end_reason

    @property
    def was_given(self) -> bool:
        """Whether a client may have been told its end, by this process or by an earlier one."""
        return self.hold is not None or self._is_restored

    @property
    def path(self) -> str:
        """The path of its znode."""
        assert self.hold is not None
        return self.hold.path

    @property
    def remaining(self) -> float:
        """
        Seconds for which the lease lasts in any case, even if this process ends now; 0.0 if it is over.

        That is the rest of the client's term, and at most the rest of the lease that ZooKeeper guarantees.
        """
        if self.hold is None or self.end_reason:
            return 0.0
        left = self._kept_until - self._loop.time()
        return max(0.0, min(left, self.hold.lease_remaining))

    def tell(self) -> tuple[int, int]:
        """Return the end for the client: in milliseconds since 1970, and from now."""
        # In this order: time that passes between the lines makes the lease look shorter, never longer.
        clock, now = time.time(), self._loop.time()
        remaining = math.floor(self.remaining * 1000)
        self.promised_until = max(self.promised_until, now + remaining / 1000)
        return math.floor(clock * 1000) + remaining, remaining

    def describe(self, *, signed: bool = False) -> dict[str, Any]:
        """Return what the client is told, and with `signed` a signed token, which expires with it. Raises `Refusal`."""
        if self.hold is None or self.end_reason:
            raise over(self.end_reason)
        expires_at, duration = self.tell()
        answer = {
            "lease_id": self.id,
            "fencing_token": self.hold.token,
            "lease_expires_at": expires_at,
            "lease_duration_ms": duration,
        }
        if signed:
            try:
                answer["signed_token"] = self.hold.signed_token(until=expires_at / 1000)
            except ZkLockError as error:
                self.end("the lock was lost")
                raise Refusal(Code.UNAVAILABLE, for_client(error)) from error
        return answer

    def keep(self) -> None:
        """Renew the lease for another term. Raises `Refusal` if it is over."""
        now = self._loop.time()
        if not self.is_held or now >= self._kept_until:
            raise over(self.end_reason or NOT_KEPT)
        self.kept_at = now
        self._kept_until = max(self._kept_until, min(now + self._term, self._last_end))

    def end_soon(self, reason: str, *, after_term: bool) -> None:
        """
        Ask the client to release it, and end it when the client was told, or after one more term; now if it waits.
        """
        now = self._loop.time()
        until = now + self._term if after_term else self.promised_until
        if self.hold is None or until <= now:
            self.end(reason)
            return
        self._last_end = min(self._last_end, until)
        self._kept_until = min(self._kept_until, self._last_end)
        self._loop.call_at(self._last_end, self.end, reason)
        self.request_release(reason)

    def request_release(self, reason: str) -> None:
        """Ask the client to release the lease."""
        self.release_requested = reason
        self._changed()

    def end_call(self) -> None:
        """Note that a call has ended without it. End the lease, unless another call waits for it or has got it."""
        self.calls -= 1
        if not self.calls:
            self.end(LEFT)

    def end(self, reason: str) -> None:
        """End it: leave the queue, or release the lock."""
        if not self.end_reason:
            self._over(reason)
            self.task.cancel()

    # --- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with self.lock as hold:
                self._begin(hold)
                await self._until_not_kept()
                self._over(NOT_KEPT)
        except ZkLockError as error:
            self.error = error
            self._over(for_client(error))
        except asyncio.CancelledError:
            self._over(LEFT)  # by `end`; an abort would be a `LockLost`
        except Exception:
            logger.exception("lease %s failed", self.number)
            self._over("the coordinator has failed; its log says why")

    def _begin(self, hold: Hold) -> None:
        self.hold = hold
        self._on_granted(self)
        if not self._is_restored:
            self._kept_until = min(self._loop.time() + self._term, self._last_end)
        hold.add_release_request_callback(self._on_release_request)
        hold.add_lost_callback(self._on_lost)
        held_of(hold).grant.logs_loss = False
        self._log(hold, "goes on in this process" if self._is_restored else "granted")
        self._settle()

    async def _until_not_kept(self) -> None:
        while self._loop.time() < self._kept_until:  # keeping it moves its end
            woken = self._loop.create_future()  # `asyncio.sleep` would need half a kilobyte more for each lease
            timer = self._loop.call_at(self._kept_until, wake, woken)
            try:
                await woken
            finally:
                timer.cancel()

    def _over(self, reason: str) -> None:
        if not self.end_reason:
            self.end_reason = reason
            if self.hold is not None:
                self._log(self.hold, f"over: {reason}")
        self._settle()

    def _log(self, hold: Hold, event: str) -> None:
        audit.info(
            "lease %s: %s; %r of client %r, lock %r, token %d",
            self.number,
            event,
            self.request.client_id,
            self.client,
            hold.key,
            hold.token,
            extra={"lock": hold.key, "token": hold.token, "user": self.client},
        )

    def _settle(self) -> None:
        wake(self.settled)
        self._changed()

    def _on_release_request(self, hold: Hold) -> None:
        """Notify the client; on the thread for users' code."""
        request = hold.release_requested
        if request is not None:
            self._loop.call_soon_threadsafe(self.request_release, f"{request.by}: {request.reason}")

    def _on_lost(self, hold: Hold) -> None:
        """End the lease; on the thread for users' code."""
        try:
            hold.check()
        except LockLost as error:
            self._loop.call_soon_threadsafe(self._end_lost, error)
        except ZkLockError:
            pass  # it was released meanwhile

    def _end_lost(self, error: LockLost) -> None:
        if not self.end_reason:
            self.error = error
            self.end(for_client(error))

    def _changed(self) -> None:
        for observer in list(self.observers):
            observer(self)


def wake(woken: asyncio.Future[Any], result: object = None) -> None:
    """Set the result of a future, unless it is done."""
    if not woken.done():
        woken.set_result(result)
