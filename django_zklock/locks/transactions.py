"""
The database transactions of the calling thread: which are open, and how a block begins and ends its own.

Database connections belong to a thread. Async code has none, so it has no transactions.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, TransactionManagementError, atomic

from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import CleanupOnError
from django_zklock.core.hooks import Scope
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.exceptions import LockInTransaction, ZkLockError
from django_zklock.locks.commit_hooks import TransactionObserver

logger = Logger("django_zklock.transactions", always=True)

# The functions of Django that call those of `on_commit`, also if a monitor has wrapped them.
_CALL_HOOKS: Final = {
    inspect.unwrap(function).__code__
    for function in (BaseDatabaseWrapper.on_commit, BaseDatabaseWrapper.run_and_clear_commit_hooks)
}


def is_of_test_case(block: Atomic) -> bool:
    """Return whether a `TestCase` has begun this block around a test; `atomic(durable=True)` uses the same mark."""
    return bool(getattr(block, "_from_testcase", False))


def open_blocks() -> tuple[str, ...]:
    """Return the databases on which the calling thread is in an `atomic` block, except that of a `TestCase`."""
    return tuple(
        connection.alias for connection in connections_in_blocks() if not is_of_test_case(connection.atomic_blocks[-1])
    )


def connections_in_transaction() -> list[BaseDatabaseWrapper]:
    """
    Return the connections of the calling thread with an open transaction, except that of a `TestCase`.

    The transaction of a `TestCase` ends with the test, so nothing in the test may wait for its end. A transaction has
    ended if the connection was closed in it, and Django tells nobody when it leaves the block.
    """
    return [
        connection
        for connection in connections_in_blocks()
        if not connection.closed_in_transaction and not any(map(is_of_test_case, connection.atomic_blocks))
    ]


def savepoint_in_test_case() -> tuple[str, str] | None:
    """Return the database and the savepoint that stand for the transaction of the code in a `TestCase`, if any."""
    for connection in connections_in_blocks():
        of_test_case = sum(map(is_of_test_case, connection.atomic_blocks))
        savepoints = connection.savepoint_ids[of_test_case - 1 :]
        if of_test_case and savepoints and savepoints[0]:
            return connection.alias, savepoints[0]
    return None


def not_rolled_back(error: BaseException) -> bool:
    """
    Return whether work is not rolled back although this error, or one that it comes from, was raised.

    A function of `on_commit` has raised it, or a lock was lost without a transaction that could be rolled back. What
    else a view has committed is not known.
    """
    return is_of_hook(error) or any(getattr(cause, "not_rolled_back", False) for cause in _with_causes(error))


def is_of_hook(error: BaseException) -> bool:
    """
    Return whether a function of `on_commit` has raised this error, or one that it comes from.

    Django calls it after the COMMIT, or at once in autocommit, after what was written before.
    """
    frames = (frame for cause in _with_causes(error) for frame, _ in traceback.walk_tb(cause.__traceback__))
    return any(frame.f_code in _CALL_HOOKS for frame in frames)


def _with_causes(error: BaseException) -> list[BaseException]:
    errors = [error]
    for cause in errors:
        errors += [other for other in (cause.__cause__, cause.__context__) if other is not None and other not in errors]
    return errors


def roll_back() -> None:
    """Roll back all open `atomic` blocks of the calling thread when they end, except those of a `TestCase`."""
    for alias in open_blocks():
        connection = connections[alias]
        connection.set_rollback(True)  # the innermost block
        # A block without a savepoint passes the mark on to the next one. The one above the `TestCase` keeps its own.
        own = sum(not is_of_test_case(block) for block in connection.atomic_blocks)
        kept = len(connection.savepoint_ids) - own + 1
        connection.savepoint_ids[kept:] = [None] * (own - 1)  # type: ignore[list-item]


def check_aliases(aliases: Iterable[str]) -> None:
    """Raise Django's `ConnectionDoesNotExist` for a database that is not in the settings."""
    for alias in aliases:
        connections[alias]


def connections_in_blocks() -> list[BaseDatabaseWrapper]:
    """Return the connections of the calling thread that are in an `atomic` block, also in that of a `TestCase`."""
    initialized = connections._connections  # type: ignore[attr-defined]  # three times as fast as `all`
    open_connections = []
    for alias in connections.settings:
        connection = getattr(initialized, alias, None)
        if connection is not None and connection.in_atomic_block and connection.atomic_blocks:
            open_connections.append(connection)
    return open_connections


class Transaction:
    """
    The transactions that one block begins inside its lock, on one or several databases.

    `end` and `abandon` may be called again if an exception has interrupted the call before.
    """

    def __init__(self, aliases: tuple[str, ...]) -> None:
        self._aliases = aliases
        self._begun: list[_AtomicBlock] = []  # outermost first

    @abort.shielded
    def begin(self) -> None:
        """Begin them in the order of the aliases. Where a transaction is open already, begin a savepoint."""
        for alias in self._aliases:
            block = _AtomicBlock(alias)
            self._begun.append(block)
            block.begin()

    @abort.shielded
    def end(self, error: BaseException | None, check: Callable[[], object]) -> None:
        """
        Commit them, the last one first, or roll them back if `error` has ended the block.

        `check` is called just before each COMMIT. If it raises, that transaction and the remaining ones are rolled
        back.
        """
        with CleanupOnError(self.abandon):  # a block that failed is never ended twice: that would end the outer one
            try:
                while self._begun:
                    if error is None:
                        check()
                    self._begun[-1].end(error)
                    self._begun.pop()
            except ZkLockError as failed:
                failed.not_rolled_back = len(self._begun) < len(self._aliases)
                raise

    @abort.shielded
    def abandon(self) -> None:
        """Roll back what is open, in any state that an exception has left."""
        while self._begun:
            self._begun[-1].abandon()
            self._begun.pop()

    def forget(self) -> None:
        """Drop them without a rollback, in a forked child: the parent uses the same connection."""
        while self._begun:
            self._begun.pop().forget()


class DatabaseScope(Scope):
    """The open transactions of Django's database connections."""

    is_open = staticmethod(connections_in_blocks)
    rolls_back = staticmethod(open_blocks)

    def check(self, spec: LockSpec) -> None:
        """Raise if a transaction is open that would be committed after the release."""
        aliases = [] if spec.release_on == "commit" else open_blocks()
        if spec.release_on == "exit":  # then the lock protects nothing in the database of that transaction
            aliases = [alias for alias in aliases if alias in spec.atomic]
        if aliases:
            raise LockInTransaction(
                f"The lock {spec.key!r} cannot be acquired inside an open transaction (atomic block on "
                f"{', '.join(map(repr, aliases))}). It would be released before that is committed, and the next holder "
                "would not see its work. Acquire the lock first and begin the transaction inside it, as atomic=True "
                'does; or give release_on="commit" to keep the lock until the transaction has ended (but a snapshot, '
                "as in REPEATABLE READ, goes on to show rows from before the lock); or "
                'release_on="exit" if the lock protects nothing in that database. If it was a lock in a cache before, '
                'see "What behaves differently" in docs/how-to/move-your-locks.md.',
                lock=spec.key,
            )

    def transaction(self, databases: tuple[str, ...]) -> Transaction:
        return Transaction(databases)

    @abort.shielded
    def keep(self, held: HeldLock) -> None:
        connections = connections_in_transaction()
        if connections:
            observer = held.observer
            if not isinstance(observer, TransactionObserver):
                observer = TransactionObserver(held)
            observer.observe(connections)
            held.observer = observer

    @abort.shielded
    def interrupted(self) -> None:
        """Close the connections that are in no transaction. Some drivers refuse all queries after half of one."""
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                with contextlib.suppress(Error):
                    connection.close()


_inherited: Final[list[Any]] = []
"""Connections that a forked child has inherited. They are never deleted, because that might close them."""


class _AtomicBlock:
    """
    One `atomic` block.

    Django ends it, by `Atomic.__exit__`: caches of queries have patched that, as they keep a state of each thread. The
    lists of Django are unwound by hand only if an exception has interrupted Django, or in another thread.
    """

    def __init__(self, alias: str) -> None:
        self._connection: BaseDatabaseWrapper = connections[alias]
        self._outermost = not self._connection.in_atomic_block
        self._depth = len(self._connection.atomic_blocks), len(self._connection.savepoint_ids)
        self._savepoint: str | None = None
        self._is_open = False  # until Django's `__exit__` is called, once
        self._ended = False
        # Inside an outer transaction, the block cannot be durable. The lock outlives the outer COMMIT, otherwise it
        # could not have been acquired there.
        self._block = atomic(using=alias, durable=self._outermost)

    def begin(self) -> None:
        if self._outermost and not self._connection.get_autocommit():
            self._ended = True
            raise TransactionManagementError(
                f'The connection "{self._connection.alias}" is not in autocommit mode: the end of a block would not '
                "commit, and the lock would be released before your COMMIT. Acquire the lock without atomic=, and "
                "commit inside it."
            )
        self._block.__enter__()
        self._is_open = True
        if not self._outermost:
            self._savepoint = self._connection.savepoint_ids[-1]

    def end(self, error: BaseException | None) -> None:
        if error is not None or not self._is_open:
            self.abandon(error)
        elif self._is_elsewhere:
            self.abandon()
            raise TransactionManagementError("The block ended in another thread than it began in; rolled back.")
        else:
            self._is_open = False
            try:
                self._block.__exit__(None, None, None)
            except DatabaseError:
                self._ended = True  # Django has rolled back, or closed the connection
                raise
        self._ended = True

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is another thread than the block began in, as for a generator that is closed there."""
        return connections[self._connection.alias] is not self._connection

    @abort.shielded
    def abandon(self, error: BaseException | None = None) -> None:
        """Roll back, in any state that an exception has left. `error` has ended the block, if it is known."""
        if self._ended:
            return
        if self._is_open and not self._is_elsewhere:
            self._roll_back(error or TransactionManagementError("The block was interrupted."))
        else:
            self._unwind()
        self._ended = True

    def _roll_back(self, error: BaseException) -> None:
        raw = self._connection.connection
        try:
            if self._outermost and raw is not None and not self._connection.closed_in_transaction:
                # First of all: an exception that interrupts Django's own __exit__ before its rollback would make SQLite
                # commit, because it commits when autocommit is turned on again.
                with self._connection.wrap_database_errors:
                    raw.rollback()
        except Error:  # Django closes the connection
            logger.warning("rollback on %r failed; the connection is closed", self._connection.alias, exc_info=True)
        self._is_open = False
        try:
            self._block.__exit__(type(error), error, None)
        except Error:
            # It must not replace the error that ended the block. Django could not open a new connection.
            self._unwind()

    def forget(self) -> None:
        _inherited.append(self._connection.connection)
        self._connection.connection = None
        self._connection.closed_in_transaction = True  # Django sends nothing, and the next query opens a new one
        self.abandon()

    def _unwind(self) -> None:
        """Make Django forget this block, and those that were begun inside it. Roll back."""
        blocks, savepoints = self._depth
        del self._connection.atomic_blocks[blocks:], self._connection.savepoint_ids[savepoints:]
        if self._outermost:
            self._connection.in_atomic_block = False
            self._connection.run_on_commit = []
            _reset(self._connection)
            return
        try:
            self._connection.savepoint_rollback(self._savepoint or "")
        except Error:
            self._connection.needs_rollback = True  # of the outer one: the savepoint was released, or never created


def _reset(connection: BaseDatabaseWrapper) -> None:
    """Roll back by closing the connection, which may be in any state. The next query opens a new one."""
    if connection.closed_in_transaction:
        connection.connection = None
        return
    try:
        connection.close()
        if connection.connection is not None:  # SQLite in memory, which is not closed: that would delete its data
            connection.rollback()
            connection.set_autocommit(True)
    except Error:
        raw, connection.connection = connection.connection, None  # broken, or opened by another thread
        if raw is not None:
            with contextlib.suppress(Error), connection.wrap_database_errors:
                raw.close()
