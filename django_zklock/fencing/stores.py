"""
Knows where a receiver of signed tokens keeps the highest one it has seen: in a database, in Django's cache, in memory.

Each store answers `advance(key, token)` in one step that no other process comes between: of two that advance at once,
the higher one wins, and the lower is stale or was first.
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

from django_zklock.exceptions import StaleToken, ZkLockError
from django_zklock.fencing.signing import TokenStore
from django_zklock.zk import clock

__all__ = ["CacheTokens", "DatabaseTokens", "MemoryTokens", "TokenStore"]

FENCES_APP = "django_zklock.contrib.fences"


class DatabaseTokens:
    """
    Keeps the highest tokens in the table of `django_zklock.contrib.fences`: the store to use where there is a database.

    In a transaction of the receiver's the row stays locked until it has ended, so no newer holder comes between the
    check and the write; without one the check alone is safe. `prefix` keeps these names apart from those of
    `hold.fenced(...)`, and from those of a second ensemble, whose tokens count from another beginning.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS, *, prefix: str = "signed:") -> None:
        self.using = using
        self.prefix = prefix

    def advance(self, key: str, token: int) -> None:
        """Raise the row of the key to this token."""
        if not apps.is_installed(FENCES_APP):
            raise ImproperlyConfigured(
                f'DatabaseTokens keeps tokens in a table: add "{FENCES_APP}" to INSTALLED_APPS and run '
                "manage.py migrate, or choose another store."
            )
        try:
            import_module(FENCES_APP).advance(self.prefix + key, token, self.using)
        except StaleToken as error:
            raise _stale(key, token) from error


class CacheTokens:
    """
    Keeps the highest tokens in one of Django's caches, shared by the receiver's processes: Redis, Memcached, a table.

    A cache has no compare-and-set, but its `add` writes only what is not there. So tokens stand in a chain of slots,
    each named by the token before it and written once: who was paused finds his slot taken, and lowers nothing. Each
    grant of a lock leaves a small entry for `keep` seconds.

    What it cannot do: an entry that the cache drops early (memory is short, a restart, a flush, a failover to a
    replica that is behind) is forgotten. Then an older token passes until its own lease is over, by the clock of
    `FenceVerifier`, and no longer. `keep` has to be longer than any lease together with twice the leeway; a process
    that is paused for longer in the middle of `advance` gets `StaleToken`. As nothing is locked, a newer holder may be
    verified while an older one's request is still at work.
    """

    def __init__(self, alias: str = "default", *, keep: float = 600.0, prefix: str = "zklock.fence") -> None:
        self.alias = alias
        self.keep = keep
        self.prefix = prefix

    def advance(self, key: str, token: int) -> None:
        """Put the token at the end of the key's chain."""
        began = clock.now()
        chain = _Chain(self._cache(), f"{self.prefix}.{hashlib.sha256(key.encode()).hexdigest()}", self.keep)
        start = chain.start()
        if not chain.append(start, token):
            raise _stale(key, token)
        # What was found at the beginning may be forgotten by now, and a slot found free that was not.
        took = clock.now() - began
        if took > self.keep / 2:
            raise StaleToken(f"The cache was asked for the newest token {took:.0f} s ago, too long to tell.", lock=key)
        if start != token:
            chain.begin_at(token)

    def _cache(self) -> BaseCache:
        cache = caches[self.alias]
        if isinstance(cache, (DummyCache, FileBasedCache)):
            raise ImproperlyConfigured(
                f"CacheTokens cannot use {type(cache).__name__}, which does not write an entry for one process alone; "
                "use a cache on Redis or Memcached, or DatabaseTokens."
            )
        return cache


class _Chain:
    """The tokens of one key that a cache has seen, each in the slot after the one before it."""

    TRIES = 100

    def __init__(self, cache: BaseCache, name: str, keep: float) -> None:
        self._cache = cache
        self._name = name
        self._keep = keep

    def start(self) -> int:
        """Return a token of the chain from which the newest is not far; 0 if there is none."""
        return int(self._cache.get(f"{self._name}.start") or 0)

    def begin_at(self, token: int) -> None:
        """
        Have others begin at this token.

        The note may come late and lead back to an older token. It is dropped well before the slots that lead on from
        there, so that whoever follows it comes to the end of the chain.
        """
        self._cache.set(f"{self._name}.start", token, self._keep / 2)

    def append(self, last: int, token: int) -> bool:
        """Put the token at the end of the chain, if it is not there; return whether it is the last one."""
        for _ in range(self.TRIES):
            last = self._end(last, token)
            if last >= token:
                return last == token
            if self._cache.add(self._slot(last), token, self._keep):
                return True
        raise ZkLockError("The cache neither has an entry nor takes it, so nobody can tell the newest token.")

    def _end(self, last: int, token: int) -> int:
        """Follow the chain to its end, or past the token."""
        while last <= token:
            after = self._cache.get(self._slot(last))
            if after is None:
                break
            last = int(after)
        return last

    def _slot(self, last: int) -> str:
        return f"{self._name}.{last}"


class MemoryTokens:
    """Keeps the highest tokens in this process alone, while it lives: for tests, and servers of a single process."""

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
    return StaleToken(f"A newer holder of the lock {key!r} was here: the token {token} is out of date.", lock=key)
