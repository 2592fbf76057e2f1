"""Knows which parts of locks for Celery listen to it; a part that a process has no use for is not imported there."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_zklock.contrib.celery.beat import ZkScheduler

__all__ = ["ZkScheduler", "connect"]

LISTENERS: Final = ("worker", "leaks", "events", "callers", "coalesce")
"""The modules here that connect to Celery's signals when they are imported."""


def connect() -> None:
    """Connect to Celery; doing it again changes nothing."""
    for name in LISTENERS:
        import_module(f"{__name__}.{name}")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the scheduler when somebody asks for it: a worker has no use for `celery.beat`."""
        if name != "ZkScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("django_zklock.contrib.celery.beat").ZkScheduler
