"""Raise the token of a fence, with any number of concurrent callers."""

from __future__ import annotations

from typing import Any

from django.db import connections

from django_zklock.contrib.fences.models import Fence
from django_zklock.core.queue.escaping import shortened
from django_zklock.exceptions import StaleToken
from django_zklock.fencing.row_tokens import current

MAX_NAME = 255
_INSERT = "INSERT INTO zklock_fences_fence (name, token) VALUES (%(name)s, %(token)s) "
_OR_RAISE = "ON CONFLICT (name) DO UPDATE SET token = %(token)s WHERE zklock_fences_fence.token <= %(token)s"
# MySQL counts 2 rows if it has raised the token, and 1 if it has inserted the row or left it unchanged.
_OR_RAISE_MYSQL = "ON DUPLICATE KEY UPDATE token = GREATEST(token, %(token)s)"


def advance(name: str, token: int, using: str) -> None:
    """
    Raise the fence `name` to `token` in the database `using`. Raises `StaleToken` if it has a higher token.

    Within a transaction the row stays locked to the end, so no other token can come in between. A missing row is
    inserted; any number of callers can do that at the same time.
    """
    if try_advance(name, token, using) is not None:
        raise StaleToken(f"The fence {name!r} has seen a newer token than {token}.", lock=name)


def try_advance(name: str, token: int, using: str) -> int | None:
    """Raise the fence as `advance` does and return None, or return the higher token that it has."""
    # One statement, which locks this row alone. With two, callers that insert at the same time end in deadlocks on
    # MySQL: each has a shared lock on the new row, or on the gap where it will be, and waits for the other's.
    values: dict[str, Any] = {"name": shortened(name, MAX_NAME), "token": token}
    mysql = connections[using].vendor == "mysql"
    with connections[using].cursor() as cursor:
        cursor.execute(_INSERT + (_OR_RAISE_MYSQL if mysql else _OR_RAISE), values)
        if cursor.rowcount == (2 if mysql else 1):
            return None
    rows = Fence._default_manager.using(using).filter(name=values["name"])
    token_now: int | None = current(rows).values_list("token", flat=True).first()
    return token_now if token_now is not None and token_now > token else None
