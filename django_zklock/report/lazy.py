"""
Import `inspection`, `operations` and `background` when they are first used.

Django imports the admin of every app when it starts, and these import kazoo.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_zklock import inspection, operations
    from django_zklock.report import background

__all__ = ["background", "inspection", "operations"]

_MODULES: Final = {
    "inspection": "django_zklock.inspection",
    "operations": "django_zklock.operations",
    "background": "django_zklock.report.background",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, import_module(_MODULES[name]))
