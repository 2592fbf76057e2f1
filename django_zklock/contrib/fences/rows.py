"""Knows how a row of the table is raised to a token, by any number of callers at once."""

from __future__ import annotations

import hashlib

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from django_zklock.contrib.fences.models import Fence as FenceRow
from django_zklock.exceptions import StaleToken
from django_zklock.fencing.fence import Fence, refusal

MAX_NAME = 255
_DIGEST = 64  # characters
_NO_TABLE = (
    f"no such table: {FenceRow._meta.db_table}",  # SQLite
    f'relation "{FenceRow._meta.db_table}" does not exist',  # PostgreSQL
    f"{FenceRow._meta.db_table}' doesn't exist",  # MySQL
)


def row_name(name: str) -> str:
    """Return what a name is called in the table: itself, or its beginning and a digest if it is too long."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: MAX_NAME - _DIGEST - 1]}#{digest}"


def advance(name: str, token: int, using: str) -> None:
    """
    Raise the fence `name` to `token` in the database `using`; raise `StaleToken` if a higher one was there.

    Within a transaction the row stays locked to its end, so no other token comes between. The row is made when it is
    missing; of two that make it at once, both find it.
    """
    if _newer(name, token, using) is not None:
        raise StaleToken(f"The fence {name!r} has seen a newer token than {token}.", lock=name)


def advance_fence(fence: Fence, name: str, using: str) -> None:
    """Do the same for a holder, whose key need not be the name."""
    seen = _newer(name, fence.token, using)
    if seen is not None:
        raise refusal(fence, f"The fence {name!r}", seen)


def _newer(name: str, token: int, using: str) -> int | None:
    """Raise the fence; return the higher token that it has, if it has one."""
    try:
        return _raise(name, token, using)
    except DatabaseError as error:
        if any(phrase in str(error) for phrase in _NO_TABLE):
            raise ImproperlyConfigured(
                f"The database {using!r} has no table {FenceRow._meta.db_table!r}: run manage.py migrate."
            ) from error
        raise


def _raise(name: str, token: int, using: str) -> int | None:
    place = row_name(name)
    table = FenceRow._default_manager.using(using)
    rows = table.filter(name=place)
    while not rows.filter(token__lte=token).update(token=token):
        seen: int | None = rows.values_list("token", flat=True).first()
        if seen is None:
            # Without an error for who comes second: it would end his transaction. He waits for the first one's end.
            table.bulk_create([FenceRow(name=place, token=token)], ignore_conflicts=True)
        elif seen > token:
            return seen
    return None
