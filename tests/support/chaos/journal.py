"""The journal of a store: which piece of work has been done, under which token, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django_zklock.core.execution import abort
from support.chaos.store import Store

SCHEMA = "CREATE TABLE effects (key TEXT NOT NULL, ref TEXT NOT NULL, token INTEGER NOT NULL, value INTEGER NOT NULL)"


class Journal(Store):
    """
    A store that also keeps what was done; one thread's.

    Nothing in it refuses an effect that is there already: that is what the lock and the fence are for.
    """

    def __init__(self, path: Path, keys: Sequence[str] = ()) -> None:
        super().__init__(path, keys)
        if keys:
            self._db.execute(SCHEMA)

    @abort.shielded
    def is_done(self, ref: str) -> bool:
        """Tell whether a piece of work has had its effect."""
        return self._db.execute("SELECT 1 FROM effects WHERE ref = ?", (ref,)).fetchone() is not None

    @abort.shielded
    def book(self, key: str, ref: str, token: int, value: int) -> bool:
        """Write the counter and the effect, unless a newer holder has raised the fence; return whether it was done."""
        with self._transaction():
            done = self._db.execute("UPDATE fenced SET value = ? WHERE key = ? AND token = ?", (value, key, token))
            if done.rowcount:
                self._db.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", (key, ref, token, value))
        return bool(done.rowcount)

    def times(self) -> Counter[str]:
        """Return how often each piece of work had its effect."""
        return Counter({str(ref): int(n) for ref, n in self._rows("SELECT ref, count(*) FROM effects GROUP BY ref")})

    def values(self, key: str) -> list[int]:
        """Return what the counter of a key was set to, in the order in which it was."""
        return [int(value) for (value,) in self._rows("SELECT value FROM effects WHERE key = ? ORDER BY rowid", key)]

    def _rows(self, query: str, *arguments: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._db.execute(query, arguments).fetchall()
        return rows
