"""
Knows how to hear of the end of a transaction that somebody else has begun, and of its COMMIT beforehand.

What it changes is one connection, of the calling thread, and only for as long as somebody waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_zklock.exceptions import ZkLockError
from django_zklock.execution import abort


class Witness:
    """
    Is asked before each COMMIT of some open transactions, and told when the last of them has ended.

    `check` refuses a COMMIT by raising: the transaction is rolled back, and the error goes on. `ended` is called with
    the witness itself, in the thread of the connection, after COMMIT, ROLLBACK or the close of the connection; once
    more if an exception strikes it. What it has to wait for, it returns as a function, which is called when all
    witnesses have been told: their waits are one.
    """

    def __init__(self, check: Callable[[], object], ended: Callable[[Witness], Callable[[], object] | None]) -> None:
        self.check = check
        self._ended = ended
        self._at: set[_Ends] = set()

    @abort.shielded
    def attend(self, transactions: Iterable[BaseDatabaseWrapper]) -> None:
        """Wait for these as well; doing it again changes nothing."""
        for connection in transactions:
            ends = _Ends.of(connection)
            self._at.add(ends)
            ends.add(self)

    @abort.shielded
    def leave(self, ends: _Ends) -> Callable[[], object] | None:
        """One of them has ended; return what is to be waited for."""
        self._at.discard(ends)
        return None if self._at else self._ended(self)


class _Ends:
    """
    Stands before the methods of one connection that end its transaction, for as long as there is a witness.

    Django calls nobody before a COMMIT, nor after a ROLLBACK. `set_autocommit` is the last thing that it does at the
    end of a transaction, also when an exception has torn off the call before.
    """

    _METHODS = ("commit", "rollback", "close", "set_autocommit")
    _PLACE = "_zklock_ends"

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._replaced: dict[str, Any] = {}
        self._connection = connection
        self._witnesses: list[Witness] = []

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> _Ends:
        found = connection.__dict__.get(cls._PLACE)
        if not isinstance(found, cls):
            found = connection.__dict__[cls._PLACE] = cls(connection)
        return found

    def add(self, witness: Witness) -> None:
        if witness not in self._witnesses:
            self._witnesses.append(witness)
        methods = self._connection.__dict__
        for name in self._METHODS:
            if methods.get(name) != getattr(self, name):
                if name in methods:
                    self._replaced[name] = methods[name]
                methods[name] = getattr(self, name)

    def _remove(self) -> None:
        methods = self._connection.__dict__
        for name in self._METHODS:
            if methods.get(name) == getattr(self, name):  # else somebody has put himself before it, and calls it
                if name in self._replaced:
                    methods[name] = self._replaced.pop(name)
                else:
                    del methods[name]

    def _original(self, name: str) -> Callable[..., Any]:
        return self._replaced.get(name) or functools.partial(getattr(type(self._connection), name), self._connection)

    @abort.shielded
    def commit(self) -> None:
        commit = self._original("commit")
        if not self._connection.in_atomic_block:  # else Django refuses
            self._ask()
        commit()
        self._over()

    def _ask(self) -> None:
        for witness in list(self._witnesses):
            try:
                witness.check()
            except ZkLockError:
                # Django does it by itself only after an error of the database.
                try:
                    self._connection.rollback()
                except DatabaseError:
                    self._connection.close()
                raise

    @abort.shielded
    def rollback(self) -> None:
        self._original("rollback")()
        self._over()

    @abort.shielded
    def close(self) -> None:
        try:
            self._original("close")()
            self._over_if_closed()
        except BaseException:
            self._over_if_closed()  # nothing else may ever be called on it
            raise

    @abort.shielded
    def _over_if_closed(self) -> None:
        if self._connection.connection is None or self._connection.closed_in_transaction:  # not SQLite in memory
            self._over()

    @abort.shielded
    def set_autocommit(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._original("set_autocommit")(*args, **kwargs)
        finally:
            if not self._connection.in_atomic_block:
                self._over()

    @abort.shielded
    def _over(self) -> None:
        try:
            self._tell()
        except BaseException:
            self._tell()  # struck half way, so once more
            raise

    def _tell(self) -> None:
        waits = []
        while self._witnesses:
            waits.append(self._witnesses[0].leave(self))
            self._witnesses.pop(0)
        self._remove()
        for wait in filter(None, waits):
            wait()
