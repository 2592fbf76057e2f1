"""The hold: what users see of a lock that they hold, one or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from django_zklock import clock
from django_zklock.conf.options import UNSET
from django_zklock.exceptions import LockNotHeld
from django_zklock.execution.owner import current_owner
from django_zklock.locks import table
from django_zklock.locks.notify import HoldEvent, LostCallback, ReleaseRequestCallback
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.validation import not_held
from django_zklock.queue.nodes import Kind
from django_zklock.queue.release_request import ReleaseRequest

if TYPE_CHECKING:
    from django_zklock.locks.held import HeldLock


class FencedRow(Protocol):
    """An object with a token, such as an instance of `django_zklock.fencing.FencedModel`."""

    def fence(self, fence: Hold, *, refresh: bool = ...) -> None: ...

    async def afence(self, fence: Hold, *, refresh: bool = ...) -> None: ...


class HoldBase:
    """What holds of one lock and of several have in common: they are no locks, and say so."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A hold cannot be pickled. Pass its hold.token or hold.signed_token() instead.")

    if not TYPE_CHECKING:  # a type checker reports these mistakes by itself

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}{_INSTEAD.get(name, '')}"
            raise AttributeError(message, name=name, obj=self)

        def __enter__(self) -> NoReturn:
            """Release what `with lock.acquire():` would hold for good, and raise `TypeError`."""
            for held in map(held_of, self if isinstance(self, MultiHold) else [self]):
                if held.acquired > 0 and held.owner == current_owner():
                    held.acquired -= 1
                    held.release(held.count - 1, UNSET)
            raise TypeError('"with" takes a lock: "with zk_lock(...) as hold:". What acquire() took is released.')

        __exit__ = __aenter__ = __aexit__ = __enter__  # Python looks up both before it calls the first


_INSTEAD = {
    "extend": ". A hold needs no extension: it lasts until the release.",
    "release": ". Call release() of the lock, or leave the block.",
}


class Hold(HoldBase):
    """
    A lock that is held: what `with zk_lock(...) as hold` gives, and `Lock.acquire()` returns.

    It is valid while its lease is. Once lost, it stays lost; the lock may be acquired again.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self, held: HeldLock) -> None:
        self._held = held

    def __repr__(self) -> str:
        return f"<Hold of {self.key!r}, token {self.token}, {self.state}>"

    @property
    def _grant(self) -> Grant:
        return self._held.grant

    @property
    def state(self) -> str:
        """
        The state of the hold: "held", "suspect" (the connection is suspended), "lost" or "released".

        A suspect hold is held again when the connection is back in time, and else lost.
        """
        if self._held.is_over:
            return "released"
        if self.lost:
            return "lost"
        return "held" if self._grant.suspect_since is None else "suspect"

    @property
    def key(self) -> str:
        """The key of the lock, as in `ROOT/<key>`."""
        return self._grant.key

    @property
    def template(self) -> str:
        """What the key was made of, as in `inventory/{sku}`: the same for all locks of one sort."""
        return self._grant.template

    @property
    def kind(self) -> str:
        """What is held: "lock", "read" or "write" (a side of a read-write lock), or "semaphore" (a permit of one)."""
        return (Kind.READ if self._held.reads else self._grant.kind).word

    def downgrade(self) -> None:
        """
        Go on as a reader, from being the writer: readers that come next in the queue get the lock, too.

        No writer comes in between, and the token stays the same. It cannot be undone. Raises `LockNotHeld` when the
        lock was released, `LockLost` when it was lost, and `ZkLockError` if it is no read-write lock or its
        owner has acquired it to write more than once.
        """
        self._held.downgrade()

    @property
    def path(self) -> str:
        """The path of the znode of this hold."""
        return self._grant.path

    @property
    def token(self) -> int:
        """
        The fencing token: the transaction id (czxid) that created the znode of this hold, 64 bits.

        It rises with every grant of the key, whichever process gets it, and goes on rising when the parent is deleted
        and created again, which the sequence number of the znode does not.
        """
        return self._grant.token

    @property
    def lost(self) -> bool:
        """Whether the lock is lost. Once True it stays so."""
        return self._grant.why_invalid() is not None

    @property
    def lease_remaining(self) -> float:
        """
        Seconds that the lease has left if nothing extends it; 0.0 when it is over.

        The lease is 0.4 of the negotiated session timeout from the last acknowledged quorum write, and is extended
        every sixth of it. With `max_hold`, it is at most the rest of that.
        """
        until = self._grant.session.lease.until  # first, as in `why_invalid`
        if self._grant.ends_at is not None:
            until = min(until, self._grant.ends_at)
        if self._grant.why_invalid() is not None or self._held.is_over:
            return 0.0
        return max(0.0, until - clock.now())

    def check(self) -> None:
        """
        Raise `LockLost` unless the lease is valid now; asks the clock, not the network, so it is cheap.

        A suspended connection counts as lost, too, unless `abort_on` is "lost" or "never", or `grace` is not over.
        Raises `LockNotHeld` when the lock was released, or in a process forked since.
        """
        self._held.check()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """
        Wait until the lock is lost, at most `timeout` seconds (None: for ever); return whether it is.

        Returns False as soon as the lock is released.
        """
        if self._grant.inherited:
            return True  # the protocol's thread runs in the parent
        _wait_for(HoldEvent(), [self._grant], timeout)
        return self.lost

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Call `callback(hold)` once when the lock is lost, at once if it is lost already.

        It is called on the thread that sends Django's signals, not on the protocol's thread, so it may be slow.
        """
        self._grant.session.post(self._grant.attach, LostCallback(self._held, callback))

    # --- release requests ---------------------------------------------------------------------------------------

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """
        The last release request to this hold, with `by` and `reason`, or None.

        It uses no network, so a loop can check it as often as it likes. The holder may ignore the request.
        """
        return self._grant.release_request

    def wait_release_requested(self, timeout: float | None = None) -> ReleaseRequest | None:
        """
        Wait for a release request, at most `timeout` seconds (None: without limit); return it.

        Returns None when the time is over, or when the lock is released or lost without a request.
        """
        if self._grant.inherited:
            return None  # the protocol's thread runs in the parent
        _wait_for(HoldEvent(release_requested=True), [self._grant], timeout)
        return self.release_requested

    def add_release_request_callback(self, callback: Callable[[Hold], object]) -> None:
        """
        Call `callback(hold)` once, at the first release request; at once if there was one already.

        It is called on the thread that sends Django's signals, like that of `add_lost_callback`.
        """
        self._grant.session.post(self._grant.attach, ReleaseRequestCallback(self._held, callback))

    # --- fencing ------------------------------------------------------------------------------------------------

    def fence(self, obj: FencedRow, *, refresh: bool = False) -> None:
        """
        Raise the token of a row to this one; see `FencedModel.fence`. Make it the first statement of a transaction.

        Raises `StaleToken` if a newer holder has written the row. Only the token decides: a holder that has lost the
        lock may still write while there is no newer holder. Readers and holders of permits are valid at the same time:
        the one with the older token is refused once another one has written the row.
        """
        _checked(obj).fence(self, refresh=refresh)

    async def afence(self, obj: FencedRow, *, refresh: bool = False) -> None:
        """Do the same as `fence` in the thread of the database; the transaction must be open there."""
        await _checked(obj).afence(self, refresh=refresh)

    def fenced(self, name: str, *, using: str = "default") -> AbstractContextManager[None]:
        """
        Return a block for a resource without a row of its own: a transaction that begins by fencing `name`.

        Needs the app `django_zklock.contrib.fences`; see its `FencedBlock`.
        """
        try:
            app: Any = apps.get_app_config("zklock_fences")
        except LookupError:
            raise ImproperlyConfigured(
                'hold.fenced() needs a table: add "django_zklock.contrib.fences" to INSTALLED_APPS and migrate.'
            ) from None
        block: AbstractContextManager[None] = app.fenced_block(self, name, using)
        return block

    def signed_token(self, *, until: float = math.inf) -> str:
        """
        Return the token, signed for another service, with the key, the holder and the end of the lease.

        `until`: an earlier end, in seconds since 1970.

        This needs no network. Make a new one for each request: the lease is extended, but not in the signed token.
        Raises what `check` raises. For the receiving side see `FenceVerifier` and `require_fence` in
        `django_zklock.fencing`.
        """
        self.check()
        app: Any = apps.get_app_config("zklock")
        signed: str = app.sign(self, until)
        return signed


def _wait_for(event: HoldEvent, grants: Sequence[Grant], timeout: float | None) -> None:
    """Wait until the event happens to one of the grants, at most `timeout` seconds (None: without limit)."""
    try:
        for grant in grants:
            grant.session.post(grant.attach, event)
        event.waiter.wait(timeout)
    finally:
        for grant in grants:
            grant.session.post(grant.detach, event)


def _checked(obj: FencedRow) -> FencedRow:
    if not hasattr(obj, "fence"):
        raise TypeError(f"{type(obj).__name__} has no fencing token: derive it from django_zklock.fencing.FencedModel.")
    return obj


class MultiHold(HoldBase):
    """
    Several locks that are held: what `with zk_locks(...) as hold` gives, and `MultiLock.acquire()` returns.

    Iteration gives the hold of each lock, in the order of their keys, in which they were acquired. `hold["a"]` is the
    hold of the lock with this key, or with this name as it was given.
    """

    # It has no length. With one, `if lock.acquire():` would run Python code between `acquire()` and its block, where
    # the handler of a signal could raise.

    __slots__ = ("_by_name", "_holds")

    def __init__(self, holds: tuple[Hold, ...], names: Mapping[str, str]) -> None:
        self._holds = holds
        by_key = {hold.key: hold for hold in holds}
        self._by_name = {name: by_key[key] for name, key in names.items()} | by_key

    def __repr__(self) -> str:
        over = any(held_of(hold).is_over for hold in self._holds)
        state = "released" if over else "lost" if self.lost else "held"
        return f"<MultiHold of {', '.join(map(repr, self.keys))}, {state}>"

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._holds)

    def __getitem__(self, name: str) -> Hold:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the locks, in the order in which they were acquired."""
        return tuple(hold.key for hold in self._holds)

    @property
    def lost(self) -> bool:
        """Whether any of the locks is lost. Once True it stays so."""
        return any(hold.lost for hold in self._holds)

    @property
    def lease_remaining(self) -> float:
        """Seconds that the shortest lease has left if nothing extends it; 0.0 when one is over."""
        return min(hold.lease_remaining for hold in self._holds)

    def check(self) -> None:
        """Raise `LockLost` unless the leases of all locks are valid now, and `LockNotHeld`, as `Hold.check` does."""
        for hold in self._holds:
            hold.check()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """
        Wait until any of the locks is lost, at most `timeout` seconds (None: for ever); return whether one is.

        Returns False as soon as one is released.
        """
        grants = [held_of(hold).grant for hold in self._holds]
        if any(grant.inherited for grant in grants):
            return True  # the protocol's thread runs in the parent
        _wait_for(HoldEvent(), grants, timeout)
        return self.lost

    @property
    def release_requested(self) -> ReleaseRequest | None:
        """The first release request to one of the locks, or None."""
        return next((hold.release_requested for hold in self._holds if hold.release_requested is not None), None)

    def add_lost_callback(self, callback: Callable[[Hold], object]) -> None:
        """Call `callback(hold)` once for each lock that is lost, with its own hold; see `Hold`."""
        for hold in self._holds:
            hold.add_lost_callback(callback)


def held_of(hold: Hold) -> HeldLock:
    """Return the held lock behind a hold; for this package only."""
    return hold._held


def current_hold(key: str | None = None) -> Hold:
    """
    Return the hold of the innermost block that the caller is in, or of the innermost one of this `key`.

    It is for the body of a function under `@zk_locked`. Raises `LockNotHeld` if the caller (this asyncio task, greenlet
    or thread) is in no such block. A lock that it holds by `acquire()` is found by its key only.
    """
    owner = current_owner()
    for guard in reversed(table.held_locks.guards(owner)):
        held = table.held_locks.find(owner, guard.grant.key) if key in (None, guard.grant.key) else None
        if held is not None:
            return held.hold
    found = None if key is None else table.held_locks.find(owner, key)
    if found is None or found.count <= 0:
        raise LockNotHeld("The caller is under no lock.") if key is None else not_held(key)
    return found.hold
