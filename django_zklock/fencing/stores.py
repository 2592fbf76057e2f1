"""
Store the highest signed token that a receiver has seen: in a database, or in memory.

`advance(key, token)` of each store is atomic: of two concurrent calls, the one with the higher token succeeds. The
other one came first, or raises `StaleToken`.
"""

from __future__ import annotations

import threading
from importlib import import_module

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from django_zklock.exceptions import StaleToken
from django_zklock.fencing.signing import TokenStore

__all__ = ["DatabaseTokens", "MemoryTokens", "TokenStore"]

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
            import_module(f"{FENCES_APP}.rows").advance(self.prefix + key, token, self.using)
        except StaleToken as error:
            raise _stale(key, token) from error


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
