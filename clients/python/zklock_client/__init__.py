"""Locks of a django-zklock coordinator for Python programs, sync and async. Needs neither Django nor ZooKeeper."""

from __future__ import annotations

from zklock_client.client import AsyncZkLockClient, ZkLockClient
from zklock_client.errors import (
    ClientUnusable,
    CoordinatorUnavailable,
    LeaseRefused,
    LockBusy,
    LockLost,
    LockNotHeld,
    LockTimeout,
    ZkLockError,
)
from zklock_client.lease import Lease

__all__ = [
    "AsyncZkLockClient",
    "ClientUnusable",
    "CoordinatorUnavailable",
    "Lease",
    "LeaseRefused",
    "LockBusy",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "ZkLockClient",
    "ZkLockError",
]
