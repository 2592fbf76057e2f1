"""
For tests of code that takes locks, and for trying things out: servers, faults, and questions about queues.

The names are resolved when they are first used: a server needs neither Django nor kazoo, and the pytest plugin, which
is loaded with every run of pytest, needs none of this before a test asks for a lock.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.testing.cases import ZkLockTestMixin
    from django_zklock.testing.ensemble import Ensemble
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester

__all__ = ["DevServer", "Ensemble", "LockTester", "ZkLockTestMixin"]

_HOMES = {
    "DevServer": "django_zklock.testing.server",
    "Ensemble": "django_zklock.testing.ensemble",
    "LockTester": "django_zklock.testing.tester",
    "ZkLockTestMixin": "django_zklock.testing.cases",
}


if not TYPE_CHECKING:  # else a type checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # from now on found without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
