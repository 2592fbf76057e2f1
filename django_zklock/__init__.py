"""
Distributed locks on ZooKeeper, for Django and Celery.

Each public name is imported when it is first used. So `import django_zklock` imports no kazoo and reads no settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.decorators.locked import zk_locked
    from django_zklock.locks.election import Leader, zk_leader
    from django_zklock.locks.hold import Hold, current_hold
    from django_zklock.locks.lock import Lock, ReadWriteLock, zk_lock, zk_read, zk_semaphore, zk_write
    from django_zklock.locks.multi import zk_locks

__all__ = [
    "Hold",
    "Leader",
    "Lock",
    "ReadWriteLock",
    "current_hold",
    "zk_leader",
    "zk_lock",
    "zk_locked",
    "zk_locks",
    "zk_read",
    "zk_semaphore",
    "zk_write",
]
__version__ = "0.1.0"

_MODULES = {
    "Hold": "django_zklock.locks.hold",
    "Leader": "django_zklock.locks.election",
    "Lock": "django_zklock.locks.lock",
    "ReadWriteLock": "django_zklock.locks.lock",
    "current_hold": "django_zklock.locks.hold",
    "zk_leader": "django_zklock.locks.election",
    "zk_lock": "django_zklock.locks.lock",
    "zk_locked": "django_zklock.decorators.locked",
    "zk_locks": "django_zklock.locks.multi",
    "zk_read": "django_zklock.locks.lock",
    "zk_semaphore": "django_zklock.locks.lock",
    "zk_write": "django_zklock.locks.lock",
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
