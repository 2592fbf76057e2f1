"""Knows the read-write lock: two locks of one key, of which one is shared."""

from __future__ import annotations

from typing import Any

from django_zklock.locks.lock import Lock


class ReadWriteLock:
    """
    A lock that any number of readers have at a time, or one writer.

    Both are first come, first served: a reader that comes after a writer waits for it, so neither side starves. An
    owner may take again what it has, and the writer may read, too; it becomes a reader without a gap by
    `hold.downgrade()`, or by letting go of the write side first. A reader that wants to write gets `LockUpgradeRefused`
    at once: two of them would wait for each other. A plain `zk_lock` on the same path keeps both sides out.

    The arguments are those of `Lock`, without `kind` and `limit`; both sides have them.
    """

    def __init__(self, name: str, **options: Any) -> None:
        for wrong in {"kind", "limit"} & options.keys():
            raise TypeError(f"a ReadWriteLock takes no {wrong}; its sides are .read() and .write().")
        self.name = name
        self._read = Lock(name, kind="read", **options)
        self._write = Lock(name, kind="write", **options)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._read.key

    def read(self) -> Lock:
        """Return the lock to be taken for reading."""
        return self._read

    def write(self) -> Lock:
        """Return the lock to be taken for writing."""
        return self._write
