"""Store the highest signed token that a receiver has seen, in a database."""

from __future__ import annotations

from importlib import import_module

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from django_zklock.contrib.tokens.signing import TokenStore
from django_zklock.exceptions import StaleToken

__all__ = ["DatabaseTokens", "TokenStore"]

FENCES_APP = "django_zklock.contrib.fences"


class DatabaseTokens:
    """
    Stores the highest tokens in the table of `django_zklock.contrib.fences`.

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
        rows = import_module(f"{FENCES_APP}.rows")
        if rows.try_advance(self.prefix + key, token, self.using) is not None:
            raise StaleToken(f"The token {token} of the lock {key!r} is out of date: a newer one was used.", lock=key)
