"""
The remote control commands of a worker: `inspect zklocks`, and `inspect scheduled` with the tasks that wait for locks.

A worker imports them when it starts. A program that sends `celery -A project inspect zklocks` must import it, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from celery.worker import control
from celery.worker.control import inspect_command

from django_zklock.contrib.celery.dispatch.dispatcher import DISPATCHER, Dispatcher
from django_zklock.contrib.celery.dispatch.waiting_task import WaitingTask
from django_zklock.contrib.celery.introspection import short_id
from django_zklock.inspection import ContenderInfo, Snapshot, snapshot
from django_zklock.locks.multi import keys_of
from django_zklock.zk import process

REPLY_TIMEOUT: Final = 0.7  # seconds for the snapshot of all locks; `inspect` waits one second for a worker
CLOSE_TIMEOUT: Final = 0.2  # seconds


@inspect_command()
def zklocks(state: Any, **kwargs: object) -> dict[str, Any]:
    """List the locks that this worker's processes hold, keep for their next users, and wait for."""
    pool = state.consumer.pool
    processes = (pool.info or {}).get("processes") if pool is not None else None
    waiting = {task_id: task for task_id, task in _tasks(state).items() if task.asked_at is not None}
    had_session = process.peek() is not None
    try:
        found = snapshot(reply_timeout=REPLY_TIMEOUT, max_age=0, max_locks=None, max_waiters=None)
    finally:
        if processes and not had_session and not waiting:
            process.reset(CLOSE_TIMEOUT)  # no task has needed one
    return _locks_of(found, {os.getpid(), *(processes or [])}, waiting)


_scheduled: Any = control.Panel.data["scheduled"]


@inspect_command(alias="dump_schedule")
def scheduled(state: Any, **kwargs: object) -> list[dict[str, Any]]:
    """List of currently scheduled ETA/countdown tasks, and of those that wait for their locks."""
    waiting = [task.request for task in _tasks(state).values() if task.is_queued]
    in_queue = [{"eta": None, "priority": 6, "request": request.info()} for request in waiting]
    return [*_scheduled(state, **kwargs), *in_queue]


def _tasks(state: Any) -> dict[str, WaitingTask]:
    dispatcher: Dispatcher | None = getattr(state.consumer, DISPATCHER, None)
    return {} if dispatcher is None else dict(dispatcher.tasks)  # it may change meanwhile, on a thread of its own


def _locks_of(found: Snapshot, processes: set[int], tasks: Mapping[str, WaitingTask]) -> dict[str, Any]:
    host = socket.gethostname()

    def items(lock: str, contenders: tuple[ContenderInfo, ...]) -> list[tuple[int, dict[str, Any]]]:
        return [
            (
                number,
                {
                    "lock": lock,
                    "task": each.about.get("task", ""),
                    "id": each.about.get("id", ""),
                    "what": each.what,
                    "pid": each.pid,
                    "since": each.came.isoformat(),
                },
            )
            for number, each in enumerate(contenders)
            if each.host == host and each.pid in processes
        ]

    held = [item for lock in found.locks if lock.idle_for is None for _, item in items(lock.key, lock.holders)]
    idle = [
        {"lock": lock.key, "pid": item["pid"], "idle_for": lock.idle_for}
        for lock in found.locks
        if lock.idle_for is not None
        for _, item in items(lock.key, lock.holders)
    ]
    waiting = [
        {**item, "ahead": len(lock.holders) + number}
        for lock in found.locks
        for number, item in items(lock.key, lock.waiters)
    ]
    waiting += _without_znode(tasks, {lock.key: len(lock.holders) + len(lock.waiters) for lock in found.locks}, waiting)
    problems = [f"{lock.key}: {lock.problem}" for lock in found.locks if lock.problem]
    problem = found.problem or "; ".join([*problems, *found.notes])
    return {"held": held, "idle": idle, "waiting": waiting, "problem": problem}


def _without_znode(
    tasks: Mapping[str, WaitingTask], ahead: dict[str, int], shown: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the tasks that wait behind so many of this worker that they have no znode yet."""
    with_znode = {each["id"] for each in shown}
    for task_id, task in tasks.items():
        if short_id(task_id) in with_znode or task.acquisition.holds:
            continue
        key = keys_of(task.locks)[0]
        yield {
            "lock": key,
            "task": task.request.task.name,
            "id": short_id(task_id),
            "what": "",
            "pid": os.getpid(),
            "since": datetime.fromtimestamp(task.since, timezone.utc).isoformat(),
            "ahead": ahead.get(key, 0),
        }
        ahead[key] = ahead.get(key, 0) + 1
