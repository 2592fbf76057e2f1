"""Knows how a row of the table is raised to a token, by any number of callers at once; knows nothing of locks."""

from __future__ import annotations

import hashlib

from django_zklock.contrib.fences.models import Fence
from django_zklock.exceptions import StaleToken

MAX_NAME = 255
_DIGEST = 64  # characters


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
    place = row_name(name)
    rows = Fence._default_manager.using(using).filter(name=place)
    if rows.filter(token__lte=token).update(token=token):
        return
    if not rows.filter(token__gt=token).exists():
        # Without an error for who comes second: it would end his transaction. He waits for the first one's end.
        Fence._default_manager.using(using).bulk_create([Fence(name=place, token=token)], ignore_conflicts=True)
        if rows.filter(token__lte=token).update(token=token):
            return
    raise StaleToken(f"The fence {name!r} has seen a newer token than {token}.", lock=name)
