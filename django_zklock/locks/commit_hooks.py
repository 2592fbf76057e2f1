"""
Observe the end of a transaction that other code has begun, and check before its COMMIT.

Django calls nothing before a COMMIT and nothing after a ROLLBACK. So the methods of the connection are replaced: only
on that one connection, and only while there is an observer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from django.db import DatabaseError, Error
from django.db.backends.base.base import BaseDatabaseWrapper

from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import CleanupOnError
from django_zklock.core.execution.waiters import ThreadWaiter, run
from django_zklock.core.locks.held import HeldLock, released
from django_zklock.exceptions import LockLost, ZkLockError


class CommitRefused(LockLost, DatabaseError):
    """
    A transaction was rolled back instead of committed, because a lock that it keeps was lost.

    It is an error of the database, too: Django, and what patches its `Atomic`, expect no others from a COMMIT.
    """


class TransactionObserver:
    """
    Observes some open transactions: checks a lock before each COMMIT, and releases it when the last of them has ended.

    If the lock is lost, the transaction is rolled back, and `CommitRefused` is raised. The lock is released in the
    thread of the connection, after COMMIT, ROLLBACK or close, and once more if an exception interrupts that. All such
    releases are waited for together, at the end.
    """

    def __init__(self, held: HeldLock) -> None:
        self._held = held
        self.check = held.check_before_commit
        self.committed = False  # one of the transactions was
        self._open: set[ConnectionHooks] = set()

    @abort.shielded
    def observe(self, connections: Iterable[BaseDatabaseWrapper]) -> None:
        """Observe the transactions of these connections, too. Further calls change nothing."""
        for connection in connections:
            hooks = ConnectionHooks.of(connection)
            self._open.add(hooks)
            hooks.add(self)

    @abort.shielded
    def on_ended(self, hooks: ConnectionHooks) -> list[HeldLock]:
        """Record that one transaction has ended. Return the locks that are released by that."""
        self._open.discard(hooks)
        return [] if self._open else self._held.transactions_ended(self)


class ConnectionHooks:
    """
    Replaces the methods of one connection that end its transaction.

    `set_autocommit` is among them because it is Django's last call at the end of a transaction, also if an exception
    has interrupted the call before.
    """

    _METHODS = ("commit", "rollback", "close", "set_autocommit")
    _ATTRIBUTE = "_zklock_hooks"

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._observers: list[TransactionObserver] = []
        attributes = vars(connection)
        self._replaced = {name: attributes[name] for name in self._METHODS if name in attributes}  # by other tools

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> ConnectionHooks:
        """Return the hooks of the connection; they are installed with the first observer."""
        attributes = vars(connection)
        if cls._ATTRIBUTE not in attributes:
            attributes[cls._ATTRIBUTE] = cls(connection)
        hooks: ConnectionHooks = attributes[cls._ATTRIBUTE]
        return hooks

    def add(self, observer: TransactionObserver) -> None:
        """Add an observer, and install the hooks."""
        attributes = vars(self._connection)
        if observer not in self._observers:
            self._observers.append(observer)
        for name in self._METHODS:
            if attributes.get(name) == self._replaced.get(name):  # else it is installed, or wrapped by another tool
                attributes[name] = getattr(self, name)

    def _uninstall(self) -> None:
        attributes = vars(self._connection)
        for name in self._METHODS:
            if attributes.get(name) == getattr(self, name):  # else another tool has wrapped it, and calls it
                if name in self._replaced:
                    attributes[name] = self._replaced[name]
                else:
                    del attributes[name]
        if attributes.get(self._ATTRIBUTE) is self:
            del attributes[self._ATTRIBUTE]

    def _original(self, name: str) -> Callable[..., Any]:
        return self._replaced.get(name) or functools.partial(getattr(type(self._connection), name), self._connection)

    @abort.shielded
    def commit(self) -> None:
        commit = self._original("commit")
        if not self._connection.in_atomic_block:  # else Django refuses
            self._check()
        commit()
        for observer in self._observers:
            observer.committed = True
        self._end()

    def _check(self) -> None:
        for observer in list(self._observers):
            try:
                observer.check()
            except ZkLockError as error:
                error.not_rolled_back = observer.committed
                # Django does not do it after a `commit()` of the user's own.
                try:
                    self._connection.rollback()
                except Error:
                    self._connection.close()
                if isinstance(error, LockLost):
                    raise CommitRefused(str(error), lock=error.lock) from error
                raise

    @abort.shielded
    def rollback(self) -> None:
        self._original("rollback")()
        self._end()

    @abort.shielded
    def close(self) -> None:
        with CleanupOnError(self._end_if_closed):  # Django may call nothing after it
            self._original("close")()
            self._end_if_closed()

    @abort.shielded
    def _end_if_closed(self) -> None:
        # `close` leaves SQLite in memory open.
        if self._connection.connection is None or self._connection.closed_in_transaction:
            self._end()

    @abort.shielded
    def set_autocommit(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._original("set_autocommit")(*args, **kwargs)
        finally:
            if self._connection.autocommit:  # a driver may refuse it
                self._end()

    @abort.shielded
    def _end(self) -> None:
        with CleanupOnError(self._notify_observers):
            self._notify_observers()

    def _notify_observers(self) -> None:
        holds: list[HeldLock] = []
        while self._observers:
            holds += self._observers[0].on_ended(self)
            self._observers.pop(0)
        self._uninstall()
        is_told = bool(self._connection.run_on_commit)  # after COMMIT, these functions run next
        run(released(holds, ThreadWaiter, confirmed=is_told))
