"""The hold: what users get when they acquire a lock."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from django_zklock.core import clock
from django_zklock.core.execution import abort
from django_zklock.core.execution.owner import Owner, current_owner
from django_zklock.core.execution.waiters import Awaited, TaskWaiter, ThreadWaiter
from django_zklock.core.locks.held import HeldLock, Use, held_locks, inherited_hold, not_held
from django_zklock.core.log import Logger
from django_zklock.core.protocol import releases
from django_zklock.core.protocol.grant import Grant, GrantObserver
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.arguments import check_no_running_loop
from django_zklock.locks.release import Ending, Releasable
from django_zklock.locks.transactions import open_blocks
from django_zklock.names.template import check_type

logger = Logger("django_zklock.locks")


class FencedRow(Protocol):
    """An object with a token, such as an instance of `django_zklock.fencing.FencedModel`."""

    def fence(self, fence: Hold, *, refresh: bool = ...) -> None: ...

    async def afence(self, fence: Hold, *, refresh: bool = ...) -> None: ...


class HoldBase(Releasable):
    """The base of the holds of one lock and of several."""

    __slots__ = ()
    _kind = "hold"

    _holds: Sequence[Hold]

    def wait_released(self) -> bool:
        """
        Wait until ZooKeeper has confirmed the release at the end of the block, at most 0.7 s.

        The end of a block does not wait for that. Call this before you tell another process something by a pipe, a
        socket or a response, so that it finds the lock free. It waits for all releases of this process that are on
        their way, and returns at once without one. Return whether all are confirmed.
        """
        check_no_running_loop("wait_released", "await hold.await_released()")
        return releases.wait()

    async def await_released(self) -> bool:
        """Wait as `wait_released` does."""
        return await Awaited(releases.ended(TaskWaiter))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """
        Wait until a lock is lost, at most `timeout` seconds (None: for ever); return whether one is.

        Returns False as soon as one is released. With a timeout of 0, it is the same as `lost`, also in a coroutine.
        """
        grants = [hold._held.grant for hold in self._holds]
        if any(grant.inherited for grant in grants):
            return True  # the protocol's thread runs in the parent
        wait_for("wait_lost", grants, timeout, "lost", "released")
        return any(hold.lost for hold in self._holds)

    @abort.shielded
    def _uses_to_release(self) -> list[Ending]:
        holds = [hold for hold in self._holds if hold._use in hold._held.uses]
        return [hold._use_to_release() for hold in holds or self._holds]

    def __reduce__(self) -> NoReturn:
        raise TypeError("A hold cannot be pickled. Pass its hold.token or hold.signed_token() instead.")


class Hold(HoldBase):
    """
    A lock that is held: what `with zk_lock(...) as hold` gives, and `Lock.acquire()` returns.

    It is valid while its lease is. Once lost, it stays lost; the lock may be acquired again. Each block, and each call
    of `acquire`, has a hold of its own, also if its owner has the lock already. Those of one owner are equal.
    """

    __slots__ = ("__weakref__", "_held", "_release_on", "_use")

    def __init__(self, held: HeldLock, use: Use | None, release_on: str | None = None) -> None:
        self._held = held
        self._use = use  # the acquisition that returned it; None: of all that use the lock
        self._release_on = release_on  # its option

    def __repr__(self) -> str:
        return f"<Hold of {self.key!r}, token {self.token}, {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hold) and self._held is other._held

    def __hash__(self) -> int:
        return hash(self._held)

    @property
    def _is_released(self) -> bool:
        if self._use is None:
            return self._held.is_released
        # Open transactions may keep the lock after the end of the acquisition.
        return self._use not in self._held.uses and self._held.observer is None

    @property
    def _holds(self) -> Sequence[Hold]:  # type: ignore[override]
        return (self,)

    def _use_to_release(self) -> Ending:
        held, use = self._held, self._use
        if use is None or held.grant.inherited or use not in held.uses:
            raise held.not_held_error()
        if held.owner != current_owner():
            if not use.kept:
                raise LockNotHeld("Only its owner can release the hold of a block.", lock=self.key)
            if use.until_commit and not held.owner.is_over:
                raise LockNotHeld('Only its owner can release a hold with release_on="commit".', lock=self.key)
        return held, use, self._release_on

    @property
    def state(self) -> str:
        """
        The state of the hold: "held", "suspect" (the connection is suspended), "lost" or "released".

        A suspect hold is held again if the connection is back in time. Otherwise it is lost.
        """
        if self._is_released:
            return "released"
        if self.lost:
            return "lost"
        return "held" if self._held.grant.suspect_since is None else "suspect"

    @property
    def key(self) -> str:
        """The key of the lock, as in `ROOT/<key>`."""
        return self._held.grant.key

    @property
    def template(self) -> str:
        """The name before its fields were filled in, as in `inventory/{sku}`."""
        return self._held.grant.template

    @property
    def kind(self) -> str:
        """The kind: "lock", "read" or "write" (a side of a read-write lock), or "semaphore" (a permit of one)."""
        return self._held.kind_of(self._use).word

    @property
    def path(self) -> str:
        """The path of the znode of this hold."""
        return self._held.grant.path

    @property
    def token(self) -> int:
        """
        The fencing token: the transaction id (czxid) that created the znode of this hold, 64 bits.

        It rises with every grant of the key, whichever process gets it. It even rises when the directory is deleted
        and created again. The sequence number of the znode begins at 0 then.
        """
        return self._held.grant.token

    @property
    def lost(self) -> bool:
        """Whether the lock is lost. Once True it stays so."""
        return self._held.lost

    @property
    def lease_remaining(self) -> float:
        """
        Seconds that the lease has left if nothing extends it; 0.0 when it is over.

        The lease lasts 0.4 of the negotiated session timeout from the last acknowledged quorum write. The heartbeat
        extends it every sixth of that timeout. With `max_hold`, it ends with the maximum hold at the latest.
        """
        until = self._held.grant.session.leased_until  # first, as in `why_invalid`
        if self._held.grant.ends_at is not None:
            until = min(until, self._held.grant.ends_at)
        if self._held.grant.why_invalid() is not None or self._is_released:
            return 0.0
        return max(0.0, until - clock.now())

    def check(self) -> None:
        """
        Raise `LockLost` unless the lease is valid now. This reads the clock, not the network, so it is cheap.

        A connection that is suspended for longer than `grace` counts as lost, too, unless `abort_on` is "lost" or
        "never". Raises `LockNotHeld` when the lock was released, or in a child process that was forked after the grant.
        """
        if self._is_released:
            raise self._held.not_held_error()
        try:
            self._held.check()
        except LockLost as lost:
            lost.not_rolled_back = not open_blocks()
            raise

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Call `callback(hold)` once when the lock is lost, at once if it is lost already.

        It is called on the thread that sends Django's signals, not on the protocol's thread, so it may be slow.
        """
        self._call_at("lost", callback)

    # --- release requests ---------------------------------------------------------------------------------------

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """
        The last release request to this hold, with `by` and `reason`, or None.

        It uses no network, so a loop can check it as often as it likes. The holder may ignore the request.
        """
        return self._held.grant.release_request

    def wait_release_requested(self, timeout: float | None = None) -> ReleaseRequest | None:
        """
        Wait for a release request, at most `timeout` seconds (None: without limit); return it.

        Returns None when the time is over, or when the lock is released or lost without a request. With a timeout of 0,
        it is the same as `release_requested`, also in a coroutine.
        """
        if self._held.grant.inherited:
            return None  # the protocol's thread runs in the parent
        wait_for("wait_release_requested", [self._held.grant], timeout, "lost", "released", "release_requested")
        return self.release_requested

    def add_release_request_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Call `callback(hold)` once, at the first release request; at once if there was one already.

        It is called on the thread that sends Django's signals, as `add_lost_callback` explains.
        """
        self._call_at("release_requested", callback)

    def _call_at(self, event: str, callback: Callable[[Hold], object]) -> None:
        """Call `callback(hold)` at the first event of this kind. It does not keep the lock meanwhile."""
        reference, use, release_on = weakref.ref(self._held), self._use, self._release_on
        session = self._held.grant.session
        pending = [callback]

        def notify() -> None:
            held = reference()
            if pending and held is not None:
                session.dispatch(_run, pending.pop(), Hold(held, use, release_on))

        session.post(self._held.grant.attach, _Notifier(notify, event))

    # --- fencing ------------------------------------------------------------------------------------------------

    def fence(self, obj: FencedRow, *, refresh: bool = False) -> None:
        """
        Raise the token of a row to this one; see `FencedModel.fence`. Make it the first statement of a transaction.

        Raises `StaleToken` if a newer holder has written the row. Only the token decides: a holder that has lost the
        lock may still write until a newer holder has written. Readers, or holders of permits, hold at the same time:
        those with older tokens are refused once one with a newer token has written the row.
        """
        obj.fence(self, refresh=refresh)

    async def afence(self, obj: FencedRow, *, refresh: bool = False) -> None:
        """Call `fence` in the thread of the database. The transaction must be open there."""
        await obj.afence(self, refresh=refresh)

    def fenced(self, name: str, *, using: str = "default") -> AbstractContextManager[None]:
        """
        Return a block for a resource without a row of its own: a transaction that begins by fencing `name`.

        Needs the app `django_zklock.contrib.fences`; see its `FencedBlock`.
        """
        app = _app("zklock_fences", "django_zklock.contrib.fences")
        block: AbstractContextManager[None] = app.fenced_block(self, name, using)
        return block

    def signed_token(self, *, until: float = math.inf) -> str:
        """
        Return the token, signed for another service, with the key, the holder and the end of the lease.

        `until` is an earlier end, in seconds since 1970. This needs no network. Make a new signed token for each
        request, because one that exists does not get the extensions of the lease. Raises what `check` raises. Needs the
        app `django_zklock.contrib.tokens`, whose `FenceVerifier` and `require_fence` the receiving service uses.
        """
        self.check()
        app = _app("zklock_tokens", "django_zklock.contrib.tokens")
        signed: str = app.sign(self, until)
        return signed


def _app(label: str, name: str) -> Any:
    try:
        return apps.get_app_config(label)
    except LookupError:
        raise ImproperlyConfigured(f'This needs an app: add "{name}" to INSTALLED_APPS, and migrate.') from None


def hold_of(held: HeldLock) -> Hold:
    """Return the hold of the first acquisition that uses this lock, for receivers of signals."""
    return Hold(held, next(iter(held.uses), None))


def held_of(hold: Hold) -> HeldLock:
    """Return the held lock of a hold."""
    return hold._held


def current_hold(key: str | None = None) -> Hold:
    """
    Return the hold of the innermost block that the caller is in, or of the innermost one of this `key`.

    It is for the body of a function under `@zk_locked`, and for work that inherits the context of the block: a child
    task, or a function under `async_to_sync`, `sync_to_async` or `asyncio.to_thread`. Pass the hold to other threads.
    Raises `LockNotHeld` if the caller (this asyncio task, greenlet or thread) is in no such block and works for none,
    or if the lock was released. A lock that it holds by `acquire()` is found by its key only.
    """
    if key is not None:
        check_type(key)
    held = _held_by(current_owner(), key)
    if held is not None:
        return Hold(held, (held.blocks or held.uses)[-1])
    held = inherited_hold(key)
    if held is not None:
        return Hold(held, (held.blocks or held.uses)[0])  # that lasts the longest
    if key is not None:
        raise not_held(key)
    raise LockNotHeld("The caller is under no lock: neither in a block nor under @zk_locked.")


def _held_by(owner: Owner, key: str | None) -> HeldLock | None:
    """Return what the owner holds: of the innermost block, or of this key."""
    keys = [guard.grant.key for guard in held_locks.guards(owner)] if key is None else [key]
    holds = [held_locks.find(owner, key) for key in reversed(keys)]
    return next((held for held in holds if held is not None and held.uses), None)


def wait_for(method: str, grants: Sequence[Grant], timeout: float | None, *events: str) -> None:
    """Wait for `method` until one of these events happens to a grant, at most `timeout` seconds (None: no limit)."""
    if timeout is not None and timeout <= 0:
        return
    check_no_running_loop(method, f"await asyncio.to_thread(hold.{method}, ...)")
    waiter: ThreadWaiter[bool] = ThreadWaiter()
    notifier = _Notifier(functools.partial(waiter.set, True), *events)
    try:
        for grant in grants:
            grant.session.post(grant.attach, notifier)
        waiter.wait(timeout)
    finally:
        for grant in grants:
            grant.session.post(grant.detach, notifier)


# --- callbacks ----------------------------------------------------------------------------------------------------


def _run(callback: Callable[[Hold], object], hold: Hold) -> None:
    try:
        callback(hold)
    except Exception:
        logger.exception("callback of the hold on %r failed: %r", hold.key, callback, extra={"lock": hold.key})


class _Notifier(GrantObserver):
    """Calls a function at each event of these kinds: "lost", "released", "release_requested"."""

    def __init__(self, notify: Callable[[], object], *events: str) -> None:
        self._notify = notify
        self._events = events

    def _on(self, event: str) -> None:
        if event in self._events:
            self._notify()

    def on_lost(self, reason: str) -> None:
        self._on("lost")

    def on_released(self) -> None:
        self._on("released")

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._on("release_requested")
