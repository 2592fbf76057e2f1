"""
The remote control command of a worker: `inspect zklocks`.

A worker imports it when it starts. A program that sends the command, such as `celery -A project inspect zklocks`, must
import it, too.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from celery.worker.control import inspect_command

from django_zklock.inspection import Survey, survey
from django_zklock.zk import process

PATIENCE: Final = 0.7  # seconds for the snapshot of all locks; `inspect` waits one second for a worker
CLOSE_TIMEOUT: Final = 0.2  # seconds


@inspect_command()
def zklocks(state: Any, **kwargs: object) -> dict[str, Any]:
    """List the locks that this worker's processes hold and wait for."""
    pool = state.consumer.pool
    processes = (pool.info or {}).get("processes") if pool is not None else None
    had_session = process.peek() is not None
    try:
        found = survey(PATIENCE)
    finally:
        if processes and not had_session:
            process.reset(CLOSE_TIMEOUT)  # the main process of a pool takes no locks, and forks
    return _listed(found, set(processes or [os.getpid()]))


def _listed(found: Survey, processes: set[int]) -> dict[str, Any]:
    host = socket.gethostname()
    held: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for key, queue in sorted(found.queues.items()):
        for ahead, contender in enumerate(queue):
            payload = contender.payload
            if payload is None or payload.host != host or payload.pid not in processes:
                continue
            item = {
                "lock": key,
                "task": payload.about.get("task", ""),
                "id": payload.about.get("id", ""),
                "what": payload.what,
                "pid": payload.pid,
                "since": payload.since,
            }
            if contender.name in found.held_by[key]:
                held.append(item)
            else:
                waiting.append({**item, "ahead": ahead})
    return {"held": held, "waiting": waiting, "problem": found.problem}
