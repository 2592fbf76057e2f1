"""Knows which parts of locks for Celery listen to it; a part that a process has no use for is not imported there."""

from __future__ import annotations

from importlib import import_module
from typing import Final

LISTENERS: Final = ("calls", "process", "callers", "coalescing")
"""The modules here that connect to Celery's signals when they are imported."""


def connect() -> None:
    """Connect to Celery; doing it again changes nothing."""
    for name in LISTENERS:
        import_module(f"{__name__}.{name}")
