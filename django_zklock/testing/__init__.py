"""
Tools for tests of code with locks: servers, injected faults, and assertions about queues.

Each name is imported when it is first used. A server needs neither Django nor kazoo. pytest loads the plugin in every
run, and a run without locks should not import all this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.testing.cases import ZkLockTestMixin
    from django_zklock.testing.runner import ZkLockRunner, ZkLockRunnerMixin
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester

__all__ = ["DevServer", "LockTester", "ZkLockRunner", "ZkLockRunnerMixin", "ZkLockTestMixin"]

_MODULES = {
    "DevServer": "django_zklock.testing.server",
    "LockTester": "django_zklock.testing.tester",
    "ZkLockRunner": "django_zklock.testing.runner",
    "ZkLockRunnerMixin": "django_zklock.testing.runner",
    "ZkLockTestMixin": "django_zklock.testing.cases",
}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value  # the next access does not call this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
