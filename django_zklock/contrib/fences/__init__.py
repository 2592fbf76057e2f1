"""
Fences for resources without a row of their own: a table with the highest token of each name.

Opt in by `"django_zklock.contrib.fences"` in `INSTALLED_APPS` and `manage.py migrate`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.contrib.fences.rows import advance

__all__ = ["advance"]


if not TYPE_CHECKING:  # Django imports this package before models can be imported

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("django_zklock.contrib.fences.rows"), name)
