"""
Knows the database transactions of the calling thread: which are open, and how one is begun inside a
lock and ended.

It knows nothing of locks, and nothing of views but what Django's `ATOMIC_REQUESTS` does round them. Connections belong
to a thread, so async code has none; there is nothing to be asked or begun there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, TransactionManagementError, atomic
from django.http import HttpRequest

from django_zklock.exceptions import ZkLockError
from django_zklock.execution import abort

logger = logging.getLogger("django_zklock.transactions")


def is_of_test_case(block: Atomic) -> bool:
    """Tell whether it is one that a `TestCase` runs each test in, as `atomic(durable=True)` tells."""
    return bool(getattr(block, "_from_testcase", False))


def open_blocks() -> tuple[str, ...]:
    """Return the databases that the calling thread is in an `atomic` block of, other than that of a `TestCase`."""
    return tuple(connection.alias for connection in _connections_in_blocks() if not _is_in_test_case_only(connection))


def unfinished() -> list[BaseDatabaseWrapper]:
    """
    Return the connections whose open transaction will end by itself.

    That of a `TestCase` ends with the test, so nothing in the test may wait for it.
    """
    return [
        connection
        for connection in _connections_in_blocks()
        if not any(is_of_test_case(block) for block in connection.atomic_blocks)
    ]


def roll_back() -> None:
    """Have all open transactions of the calling thread rolled back when they end, but for those of a `TestCase`."""
    for alias in open_blocks():
        connections[alias].set_rollback(True)


def refuse_unknown(aliases: Iterable[str]) -> None:
    """Raise Django's `ConnectionDoesNotExist` for a database that the settings do not have."""
    for alias in aliases:
        connections[alias]


def _connections_in_blocks() -> list[BaseDatabaseWrapper]:
    return [each for each in connections.all(initialized_only=True) if each.in_atomic_block and each.atomic_blocks]


def _is_in_test_case_only(connection: BaseDatabaseWrapper) -> bool:
    return is_of_test_case(connection.atomic_blocks[-1])


class Transaction:
    """
    The transactions that one block begins inside its lock, on one or several databases.

    `end` and `abandon` may be called again, whatever struck the call before, and leave no transaction open.
    """

    def __init__(self, aliases: tuple[str, ...]) -> None:
        self._aliases = aliases
        self._begun: list[_Begun] = []  # outermost first

    @abort.shielded
    def begin(self) -> None:
        """Begin them, in the order of the aliases; a savepoint where one is open, which then ends the outer one."""
        for alias in self._aliases:
            one = _Begun(alias)
            self._begun.append(one)
            one.enter()

    @abort.shielded
    def end(self, error: BaseException | None, check: Callable[[], object]) -> None:
        """
        Commit them, the last one first, or roll them back if `error` has ended the block.

        `check` is called just before each COMMIT. If it raises, that one and all that are left are rolled back.
        """
        refusal: ZkLockError | None = None
        try:
            while self._begun:
                if error is None:
                    try:
                        check()
                    except ZkLockError as refused:
                        error = refusal = refused
                self._begun[-1].leave(error)
                self._begun.pop()
        except BaseException:
            self.abandon()
            raise
        if refusal is not None:
            raise refusal

    @abort.shielded
    def abandon(self) -> None:
        """Roll back what is open, in whatever state an exception has left it."""
        while self._begun:
            self._begun[-1].abandon()
            self._begun.pop()

    def forget(self) -> None:
        """Do nothing to them: in a forked child they are the parent's, and a word on its connection would end them."""
        while self._begun:
            self._begun.pop().forget()


_of_parents: Final[list[Any]] = []
"""Connections that a forked child has from its parent; to drop one may close it. Only added to."""


class _Begun:
    """One `atomic` block, and what its connection was like before."""

    def __init__(self, alias: str) -> None:
        self._connection: BaseDatabaseWrapper = connections[alias]
        self._outermost = not self._connection.in_atomic_block
        self._depth = len(self._connection.atomic_blocks), len(self._connection.savepoint_ids)
        self._savepoint: str | None = None
        self._entered = self._over = False
        # Inside the block of a `TestCase`, durable ones are allowed. One inside the lock's own is no problem: the lock
        # outlives the outer COMMIT, or it would not have been taken there.
        durable = self._outermost or _is_in_test_case_only(self._connection)
        self._block = atomic(using=alias, durable=durable)

    def enter(self) -> None:
        if self._outermost and not self._connection.get_autocommit():
            self._over = True
            raise TransactionManagementError(
                f'The connection "{self._connection.alias}" is not in autocommit mode, so the end of a block would not '
                "commit, and the lock be released before you do. Take the lock without atomic=, and commit inside it."
            )
        self._block.__enter__()
        self._entered = True
        if not self._outermost:
            self._savepoint = self._connection.savepoint_ids[-1]

    def leave(self, error: BaseException | None) -> None:
        if not self._entered:
            self.abandon()
        elif connections[self._connection.alias] is not self._connection:
            self.abandon()  # a generator that is closed elsewhere
            if error is None:
                raise TransactionManagementError("The block ended in another thread than it began in; rolled back.")
        elif error is not None:
            self._roll_back(error)
        else:
            self._commit()
        self._over = True

    def _commit(self) -> None:
        try:
            self._block.__exit__(None, None, None)
        except DatabaseError:
            self._over = True  # Django has rolled back, or dropped the connection
            raise

    def _roll_back(self, error: BaseException) -> None:
        raw = self._connection.connection
        try:
            if self._outermost and raw is not None and not self._connection.closed_in_transaction:
                # First of all: what strikes Django's own __exit__ before it comes to the rollback would have SQLite
                # commit, as that is what a return to autocommit does there.
                with self._connection.wrap_database_errors:
                    raw.rollback()
            self._block.__exit__(type(error), error, None)
        except DatabaseError:
            # It must not take the place of the error that ended the block.
            logger.warning("rolling back on %s failed; the connection is closed", self._connection.alias, exc_info=True)
            self.abandon()

    @abort.shielded
    def abandon(self) -> None:
        if self._over:
            return
        if self._outermost:
            _reset(self._connection)
        else:
            self._abandon_savepoint()
        self._over = True

    def _abandon_savepoint(self) -> None:
        connection = self._connection
        blocks, savepoints = self._depth
        del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
        try:
            connection.savepoint_rollback(self._savepoint or "")
        except DatabaseError:
            connection.needs_rollback = True  # the outer one, as this one was released, or has never been made

    def forget(self) -> None:
        _of_parents.append(self._connection.connection)
        self._connection.connection = None  # `connect` sets the rest


def _reset(connection: BaseDatabaseWrapper) -> None:
    """Roll back by closing the connection, which may be in the middle of anything; the next query makes a new one."""
    connection.atomic_blocks = []
    connection.savepoint_ids = []
    connection.run_on_commit = []
    connection.needs_rollback = False
    connection.in_atomic_block = False
    if connection.closed_in_transaction:
        connection.connection = None
        return
    try:
        connection.close()
        if connection.connection is not None:  # SQLite in memory, whose data would go with it
            connection.rollback()
            connection.set_autocommit(True)
    except DatabaseError:
        raw, connection.connection = connection.connection, None  # broken, or made by another thread
        if raw is not None:
            with contextlib.suppress(DatabaseError), connection.wrap_database_errors:
                raw.close()


class NonAtomicRequests(set[str]):
    """
    What a locked view shows Django as its `_non_atomic_requests`: it claims to have every database.

    So Django begins nothing round the lock, and the lock begins it inside. Its members are those databases that the
    project has opted out of; `transaction.non_atomic_requests` above `@zk_locked` adds to them.
    """

    def __contains__(self, alias: object) -> bool:
        return True


def atomic_requests() -> tuple[str, ...]:
    """Return the databases with `ATOMIC_REQUESTS`."""
    return tuple(alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"])


def non_atomic_requests(view: object) -> NonAtomicRequests:
    """Return what a locked view is to show, with the databases that the project has opted out of already."""
    marks = getattr(view, "_non_atomic_requests", ())
    return marks if isinstance(marks, NonAtomicRequests) else NonAtomicRequests(marks)


def opted_out(view: object) -> frozenset[str]:
    """Return the databases for which the project has opted a view out of `ATOMIC_REQUESTS`."""
    return frozenset(getattr(view, "_non_atomic_requests", ()))


def _view_of(request: HttpRequest) -> object:
    return getattr(request.resolver_match, "func", None)


def to_begin(marks: NonAtomicRequests, request: HttpRequest) -> tuple[str, ...]:
    """Return the databases of which a locked view with these marks begins the transaction of its request itself."""
    begun = {*marks, *opted_out(_view_of(request)), *open_blocks()}
    return tuple(alias for alias in atomic_requests() if alias not in begun)


def only_of_request(request: HttpRequest) -> bool:
    """Tell whether blocks are open, and all are those that Django has begun round the view of this request."""
    view = _view_of(request)
    if view is None:
        return False
    by_django = {alias for alias in atomic_requests() if alias not in getattr(view, "_non_atomic_requests", ())}
    return set(open_blocks()) <= by_django and all(_is_alone(alias) for alias in open_blocks())


def _is_alone(alias: str) -> bool:
    return sum(not is_of_test_case(block) for block in connections[alias].atomic_blocks) == 1
