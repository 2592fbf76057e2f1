"""Raise the token of a fence, with any number of concurrent callers."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from django_zklock.contrib.fences.models import Fence as FenceRow
from django_zklock.exceptions import StaleToken
from django_zklock.fencing.fence import Fence, refusal
from django_zklock.queue.escaping import shortened

MAX_NAME = 255
_NO_TABLE = (
    f"no such table: {FenceRow._meta.db_table}",  # SQLite
    f'relation "{FenceRow._meta.db_table}" does not exist',  # PostgreSQL
    f"{FenceRow._meta.db_table}' doesn't exist",  # MySQL
)


def row_name(name: str) -> str:
    """Return the primary key for a name: the name, or its beginning and a digest if it is too long."""
    return shortened(name, MAX_NAME)


def advance(name: str, token: int, using: str) -> None:
    """
    Raise the fence `name` to `token` in the database `using`. Raises `StaleToken` if it has a higher token.

    Within a transaction the row stays locked to the end, so no other token can come in between. A missing row is
    inserted; two callers can do that at the same time.
    """
    if _newer(name, token, using) is not None:
        raise StaleToken(f"The fence {name!r} has seen a newer token than {token}.", lock=name)


def advance_fence(fence: Fence, name: str, using: str) -> None:
    """Do the same for a holder; its key may differ from the name."""
    seen = _newer(name, fence.token, using)
    if seen is not None:
        raise refusal(fence, f"The fence {name!r}", seen)


def _newer(name: str, token: int, using: str) -> int | None:
    """Raise the fence and return None, or return the higher token that it has."""
    try:
        return _raise(name, token, using)
    except DatabaseError as error:
        if any(phrase in str(error) for phrase in _NO_TABLE):
            raise ImproperlyConfigured(
                f"The database {using!r} has no table {FenceRow._meta.db_table!r}: run manage.py migrate."
            ) from error
        raise


def _raise(name: str, token: int, using: str) -> int | None:
    key = row_name(name)
    table = FenceRow._default_manager.using(using)
    rows = table.filter(name=key)
    while not rows.filter(token__lte=token).update(token=token):
        seen: int | None = rows.values_list("token", flat=True).first()
        if seen is None:
            # No error for the second of two callers: that would end its transaction. It waits for the first one.
            table.bulk_create([FenceRow(name=key, token=token)], ignore_conflicts=True)
        elif seen > token:
            return seen
    return None
