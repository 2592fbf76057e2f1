"""
The program around the core hears of its events, and knows the database transactions of a thread.

The program connects its own `Events` and `Scope` once. Without them, nobody hears of events, and there are no
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

# What the core passes to the program. All of it is above this module, which imports none of it. The program does.
AnyContender: TypeAlias = Any
Grant: TypeAlias = Any
HeldLock: TypeAlias = Any
LockSpec: TypeAlias = Any
Owner: TypeAlias = Any
Receipt: TypeAlias = Any
ReleaseRequest: TypeAlias = Any
Session: TypeAlias = Any


class Events:
    """
    Hears what happens to locks and to the session. Each method does nothing unless it is overridden.

    The methods run on the owner's thread or on the protocol's. So they must not block, and not raise.
    """

    about: Callable[[], Mapping[str, str]] | None = None
    """Returns more items that describe the work of the caller, such as the id of its trace; None: there are none."""

    def waiting(self, contender: AnyContender, owner: Owner) -> None:
        """The lock is not free, and its caller starts to wait."""

    def acquired(self, held: HeldLock, waited: float) -> None:
        """A lock was granted, `waited` seconds after the call."""

    def acquires_again(self, held: HeldLock, spec: LockSpec) -> None:
        """The owner of a lock acquires it again, with another spec. This may raise."""

    def failed(self, contender: AnyContender, error: BaseException, waited: float, *, waits: bool) -> None:
        """An acquisition has ended with this error after `waited` seconds; `waits`: its caller wanted to wait."""

    def ended(self, held: HeldLock) -> None:
        """The owner has released its lock, or what was left of it. The lock may be lost."""

    def lost(self, held: HeldLock, reason: str, receipt: Receipt | None) -> None:
        """A lock was lost; on the protocol's thread, once for each grant. The receipt is that of the abort, if any."""

    def release_refused(
        self, session: Session, key: str, reason: str, about: Mapping[str, str], grant: Grant | None
    ) -> None:
        """ZooKeeper refuses to delete the znode of a holder or waiter that has ended; None: no grant was released."""

    def release_requested(self, grant: Grant, request: ReleaseRequest) -> None:
        """Another session asks the holder to release its lock."""

    def held_long(self, grant: Grant, held: float) -> None:
        """A lock has been held for longer than its `warn_after`: for `held` seconds."""

    def connection_changed(self, session: Session, state: str, previous: str) -> None:
        """The connection to ZooKeeper has a new state."""

    def heartbeat(self, session: Session, took: float, margin: float, error: str) -> None:
        """A heartbeat was answered after `took` seconds, with `margin` seconds of the lease left."""


class Transaction(Protocol):
    """The transactions that one block begins inside its locks. Each method may be called again after an exception."""

    def begin(self) -> None:
        """Begin them."""

    def end(self, error: BaseException | None, check: Callable[[], object]) -> None:
        """Commit them, or roll them back if `error` has ended the block; `check` may raise before each commit."""

    def abandon(self) -> None:
        """Roll back what is open."""

    def forget(self) -> None:
        """Drop them in a forked child, without a rollback."""


class Scope:
    """The database transactions of the calling thread. This one knows none."""

    def is_open(self) -> object:
        """Return whether any transaction is open, or may be. It is cheap."""

    def rolls_back(self) -> object:
        """Return whether an error rolls back the work of the caller, because a transaction is open."""

    def check(self, spec: LockSpec) -> None:
        """Raise if a lock with these options must not be acquired inside the open transactions."""

    def transaction(self, databases: tuple[str, ...]) -> Transaction:
        """Return the transactions for a block on these databases; they have not begun."""
        raise NotImplementedError

    def keep(self, held: HeldLock) -> None:
        """
        Let the open transactions keep the lock after its release, if there are any.

        Set `held.observer` then. It is compared only: pass it to `held.transactions_ended` when all have ended.
        """

    def interrupted(self) -> None:
        """An abort may have interrupted a query of the calling thread."""


events = Events()
scope = Scope()
watchers: list[Callable[[LockSpec, tuple[LockSpec, ...], Owner], object]] = []
"""
Called on the owner's thread when it asks for a lock and waits if it is busy, with all locks of its call in their order.

They must not block, and not raise. Empty in production: a test run adds one of `django_zklock.testing.order`.
"""


def connect(program_events: Events, program_scope: Scope) -> None:
    """Tell these of all events, and ask them about transactions, from now on."""
    global events, scope
    events, scope = program_events, program_scope
