"""
Store the highest signed token that a receiver has seen: in a database, in Django's cache, or in memory.

`advance(key, token)` of each store is atomic: of two concurrent calls, the one with the higher token succeeds. The
other one came first, or raises `StaleToken`.
"""

from __future__ import annotations

import hashlib
import threading
from importlib import import_module

from django.apps import apps
from django.core.cache import BaseCache, caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from django_zklock import clock
from django_zklock.exceptions import StaleToken, ZkLockError
from django_zklock.fencing.signing import TokenStore

__all__ = ["CacheTokens", "DatabaseTokens", "MemoryTokens", "TokenStore"]

FENCES_APP = "django_zklock.contrib.fences"


class DatabaseTokens:
    """
    Stores the highest tokens in the table of `django_zklock.contrib.fences`: the best store if there is a database.

    In a transaction of the receiver, the row stays locked until the end, so no newer holder can write between the check
    and the write. Without one, only the check is safe. `prefix` separates these names from those of `hold.fenced(...)`,
    and from those of a second ensemble, whose tokens cannot be compared with those of the first.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS, *, prefix: str = "signed:") -> None:
        self.using = using
        self.prefix = prefix

    def advance(self, key: str, token: int) -> None:
        """Raise the row of the key to this token."""
        if not apps.is_installed(FENCES_APP):
            raise ImproperlyConfigured(
                f'DatabaseTokens needs a table: add "{FENCES_APP}" to INSTALLED_APPS and run '
                "manage.py migrate, or choose another store."
            )
        try:
            import_module(FENCES_APP).advance(self.prefix + key, token, self.using)
        except StaleToken as error:
            raise _stale(key, token) from error


class CacheTokens:
    """
    Stores the highest tokens in one of Django's caches, shared by the receiver's processes: Redis, Memcached, a table.

    A cache has no compare-and-set, but its `add` writes an entry only if there is none. So the tokens of a key form a
    linked list: each entry is named by the token before it and is written once. A process that was paused finds its
    entry written by another one, and lowers nothing. Each grant of a lock leaves a small entry for `keep` seconds.

    Limits: a cache may drop an entry early (low memory, a restart, a flush, a failover to a replica that is behind).
    Then an older token is accepted until its own lease is over, by the clock of `FenceVerifier`. `keep` has to be
    longer than any lease plus twice the leeway; a process that is paused for longer within `advance` gets `StaleToken`.
    Nothing is locked, so a newer holder may be verified while the request of an older one still runs.
    """

    def __init__(self, alias: str = "default", *, keep: float = 600.0, prefix: str = "zklock.fence") -> None:
        self.alias = alias
        self.keep = keep
        self.prefix = prefix

    def advance(self, key: str, token: int) -> None:
        """Append the token to the list of the key."""
        began = clock.now()
        log = CacheTokenLog(self._cache(), f"{self.prefix}.{hashlib.sha256(key.encode()).hexdigest()}", self.keep)
        start = log.start()
        if not log.append(start, token):
            raise _stale(key, token)
        # Entries that were read at the beginning may have expired since, so that a missing one was not the end.
        took = clock.now() - began
        if took > self.keep / 2:
            raise StaleToken(f"The cache answered too slowly ({took:.0f} s) to decide.", lock=key)
        if start != token:
            log.start_at(token)

    def _cache(self) -> BaseCache:
        cache = caches[self.alias]
        if isinstance(cache, (DummyCache, FileBasedCache)):
            raise ImproperlyConfigured(
                f"CacheTokens cannot use {type(cache).__name__}: its add() is not atomic across processes. "
                "Use a cache on Redis or Memcached, or DatabaseTokens."
            )
        return cache


class CacheTokenLog:
    """The tokens of one key, as a linked list in a cache: each entry is named by the token before it."""

    TRIES = 100

    def __init__(self, cache: BaseCache, name: str, keep: float) -> None:
        self._cache = cache
        self._name = name
        self._keep = keep

    def start(self) -> int:
        """Return a recent token of the list, from which to follow it; 0 if there is none."""
        return int(self._cache.get(f"{self._name}.start") or 0)

    def start_at(self, token: int) -> None:
        """
        Let later calls start at this token.

        A late call of this may name an older token again. That entry expires well before those that follow it in the
        list, so a reader that starts there reaches the end.
        """
        self._cache.set(f"{self._name}.start", token, self._keep / 2)

    def append(self, last: int, token: int) -> bool:
        """Append the token unless it is in the list; return whether it is the last one."""
        for _ in range(self.TRIES):
            last = self._end(last, token)
            if last >= token:
                return last == token
            if self._cache.add(self._name_after(last), token, self._keep):
                return True
        raise ZkLockError("The cache neither returns nor accepts an entry, so the newest token is unknown.")

    def _end(self, last: int, token: int) -> int:
        """Follow the list to its end, or past the token."""
        while last <= token:
            after = self._cache.get(self._name_after(last))
            if after is None:
                break
            last = int(after)
        return last

    def _name_after(self, last: int) -> str:
        return f"{self._name}.{last}"


class MemoryTokens:
    """Stores the highest tokens in the memory of this process: for tests, and servers with a single process."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}  # guarded by _lock
        self._lock = threading.Lock()

    def advance(self, key: str, token: int) -> None:
        """Raise the token of the key to this one."""
        with self._lock:
            if token < self._highest.get(key, 0):
                raise _stale(key, token)
            self._highest[key] = token


def _stale(key: str, token: int) -> StaleToken:
    return StaleToken(f"The token {token} of the lock {key!r} is out of date: a newer one was used.", lock=key)
