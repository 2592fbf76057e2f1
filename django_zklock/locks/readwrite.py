"""The read-write lock: two locks of one key, of which one is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from django_zklock.conf.arguments import SideArguments
from django_zklock.locks.lock import Lock, zk_read, zk_write
from django_zklock.locks.validation import check_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ReadWriteLock:
    """
    A lock that any number of readers hold at a time, or one writer.

    Both are first come, first served: a reader that comes after a writer waits for it, so neither side starves. An
    owner may acquire again what it holds, and the writer may read, too. It becomes a reader without a gap by
    `hold.downgrade()`, or by releasing the write side first. A reader that wants to write gets `LockUpgradeRefused`
    at once: two of them would wait for each other. A plain `zk_lock` on the same path keeps both sides out.

    The arguments are those of `Lock`, without `kind` and `limit`; both sides have them.
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SideArguments]) -> None:
        check_arguments("ReadWriteLock", name, more, options, SideArguments)
        self.name = name
        self._read = zk_read(name, **options)
        self._write = zk_write(name, **options)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._read.key

    def read(self) -> Lock:
        """Return the lock to acquire for reading."""
        return self._read

    def write(self) -> Lock:
        """Return the lock to acquire for writing."""
        return self._write
