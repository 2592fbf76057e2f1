"""
A store that work under locks writes to: for each key a counter that the fencing token guards.

It is incremented by reading, waiting and writing, as work under a lock does. No update of it may ever be lost.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from django_zklock.core.execution import abort

SCHEMA = """
CREATE TABLE IF NOT EXISTS fenced (key TEXT PRIMARY KEY, token INTEGER NOT NULL, value INTEGER NOT NULL);
"""
TIMEOUT = 60.0  # seconds; a process that is paused within a transaction holds the others up, as with any database


class Store:
    """
    One connection to the store; one thread's.

    An abort does not strike inside a transaction: one that is left open would stop all the others for good.
    """

    def __init__(self, path: Path, keys: Sequence[str] = ()) -> None:
        self._db = sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")  # the machine does not crash in these tests
        if keys:
            self._db.executescript(SCHEMA)
            self._db.executemany("INSERT INTO fenced VALUES (?, 0, 0)", [(key,) for key in keys])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @abort.shielded
    def claim(self, key: str, token: int) -> int | None:
        """Raise the fence to this token and return the counter; None when a newer holder was there."""
        with self._transaction():
            done = self._db.execute("UPDATE fenced SET token = ? WHERE key = ? AND token <= ?", (token, key, token))
            if not done.rowcount:
                return None
            return int(self._db.execute("SELECT value FROM fenced WHERE key = ?", (key,)).fetchone()[0])

    @abort.shielded
    def write(self, key: str, token: int, value: int) -> bool:
        """Write the counter, unless a newer holder has raised the fence since; return whether it was written."""
        with self._transaction():
            done = self._db.execute("UPDATE fenced SET value = ? WHERE key = ? AND token = ?", (value, key, token))
        return bool(done.rowcount)

    def value(self, key: str) -> int:
        """Return the counter that the token guards."""
        return int(self._db.execute("SELECT value FROM fenced WHERE key = ?", (key,)).fetchone()[0])

    def final(self) -> dict[str, int]:
        """Return what the guarded counters have come to."""
        return dict(self._db.execute("SELECT key, value FROM fenced").fetchall())

    def close(self) -> None:
        self._db.close()
