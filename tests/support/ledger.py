"""SQLite databases in files. Tests see when a transaction ends and what others can read."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


class Ledger:
    """One database with one table, in a file."""

    def __init__(self, alias: str, path: Path) -> None:
        self.alias = alias
        self.path = path
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("PRAGMA journal_mode=WAL")
            raw.execute("CREATE TABLE note (text TEXT)")
        configured = connections.configure_settings(
            {
                "default": {"ENGINE": "django.db.backends.dummy"},
                alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "ATOMIC_REQUESTS": False},
            }
        )
        self.settings: dict[str, Any] = configured[alias]
        connections.settings[alias] = self.settings

    @classmethod
    @contextlib.contextmanager
    def opened(cls, alias: str, folder: Path) -> Iterator[Ledger]:
        """Have one in a folder, with nothing left of a transaction at the end."""
        ledger = cls(alias, folder / f"{alias}.sqlite3")
        yield ledger
        ledger.assert_idle()
        ledger.close()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of the calling thread."""
        return connections[self.alias]

    def write(self, text: str) -> None:
        """Write on Django's connection."""
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES (%s)", [text])

    def seen(self) -> list[str]:
        """What somebody else can read."""
        with contextlib.closing(sqlite3.connect(self.path)) as raw:
            return [text for (text,) in raw.execute("SELECT text FROM note ORDER BY rowid")]

    @contextlib.contextmanager
    def ends(self, look: Callable[[], Any]) -> Iterator[list[tuple[str, Any]]]:
        """Collect what `look` returns just before each COMMIT and ROLLBACK of the calling thread."""
        found: list[tuple[str, Any]] = []
        connection = self.connection

        def end(name: str, original: Callable[[], object]) -> None:
            found.append((name, look()))
            original()

        for name in ("_commit", "_rollback"):
            connection.__dict__[name] = functools.partial(end, name[1:], getattr(connection, name))
        yield found
        for name in ("_commit", "_rollback"):
            del connection.__dict__[name]

    def assert_idle(self) -> None:
        """Fail if a transaction is open, or anything is left on the connection."""
        connection = self.connection
        assert not connection.in_atomic_block
        assert not connection.atomic_blocks
        assert not connection.savepoint_ids
        assert not {"commit", "rollback", "close", "set_autocommit"} & set(connection.__dict__)
        if connection.connection is not None:
            assert not connection.connection.in_transaction
            assert connection.get_autocommit()
        with contextlib.closing(sqlite3.connect(self.path, timeout=0)) as raw:
            raw.execute("BEGIN EXCLUSIVE")
            raw.rollback()

    def close(self) -> None:
        """Take it out of the settings."""
        connection = self.connection
        connection.in_atomic_block = False
        connection.close()
        del connections[self.alias]
        del connections.settings[self.alias]
