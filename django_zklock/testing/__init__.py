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
    from django_zklock.testing.runner import ZkLockRunner
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester, flush_logs

__all__ = ["DevServer", "LockTester", "ZkLockRunner", "ZkLockTestMixin", "flush_logs"]

FORBIDDEN = (
    "This test acquires or inspects a lock, so it would contact the ZooKeeper in settings.ZKLOCK. To give all tests a "
    'server for tests, set TEST_RUNNER = "django_zklock.testing.ZkLockRunner" or, with pytest, zklock_all = true in '
    "its configuration. For one test, list ZkLockTestMixin first among the bases of its case, or request the fixture "
    '`zklock`. To use the ZooKeeper in the settings, add "REAL_IN_TESTS": True to ZKLOCK or, with pytest, mark the '
    "test with @pytest.mark.zklock_real."
)

_MODULES = {
    "DevServer": "django_zklock.testing.server",
    "LockTester": "django_zklock.testing.tester",
    "ZkLockRunner": "django_zklock.testing.runner",
    "ZkLockTestMixin": "django_zklock.testing.cases",
    "flush_logs": "django_zklock.testing.tester",
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
