"""
Distributed locks on ZooKeeper, for Django and Celery.

The public names are resolved when they are first used, so that importing the package costs neither kazoo nor settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.decorators import zk_locked
    from django_zklock.locks.current import current_hold
    from django_zklock.locks.hold import Hold
    from django_zklock.locks.leader import Leader, zk_leader
    from django_zklock.locks.lock import Lock, zk_lock
    from django_zklock.locks.multihold import MultiHold
    from django_zklock.locks.observing import Candidate
    from django_zklock.locks.readwrite import ReadWriteLock
    from django_zklock.locks.several import MultiLock, zk_locks
    from django_zklock.receiving import require_fence
    from django_zklock.tokens import FenceVerifier

__all__ = [
    "Candidate",
    "FenceVerifier",
    "Hold",
    "Leader",
    "Lock",
    "MultiHold",
    "MultiLock",
    "ReadWriteLock",
    "current_hold",
    "require_fence",
    "zk_leader",
    "zk_lock",
    "zk_locked",
    "zk_locks",
]
__version__ = "0.1.0"

_HOMES = {
    "Candidate": "django_zklock.locks.observing",
    "FenceVerifier": "django_zklock.tokens",
    "Hold": "django_zklock.locks.hold",
    "Leader": "django_zklock.locks.leader",
    "Lock": "django_zklock.locks.lock",
    "MultiHold": "django_zklock.locks.multihold",
    "MultiLock": "django_zklock.locks.several",
    "ReadWriteLock": "django_zklock.locks.readwrite",
    "current_hold": "django_zklock.locks.current",
    "require_fence": "django_zklock.receiving",
    "zk_leader": "django_zklock.locks.leader",
    "zk_lock": "django_zklock.locks.lock",
    "zk_locked": "django_zklock.decorators",
    "zk_locks": "django_zklock.locks.several",
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
