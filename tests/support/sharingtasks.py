"""Celery tasks that share their lock, as readers or with permits of a semaphore."""

from __future__ import annotations

from typing import Any

from celery.result import allow_join_result

from django_zklock import zk_lock, zk_locked
from support.celeryapp import app
from support.policytasks import POLICIES, work

SHARES: dict[str, dict[str, Any]] = {"read": {"kind": "read"}, "permit": {"limit": 2}}

for _kind, _how in SHARES.items():
    for _name, _options in POLICIES.items():
        app.task(name=f"sharing.{_kind}.{_name}")(zk_locked("{key}", **_how, **_options)(work))


@app.task(name="sharing.waits")
def waits(key: str, kind: str, name: str) -> str:
    """Hold a lock, and wait for a task that shares it."""
    with zk_lock(key, **SHARES[kind]), allow_join_result():
        try:
            return str(app.send_task(name, (key,)).get(timeout=30, interval=0.01))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
