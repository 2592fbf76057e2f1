"""
The remote control commands of a worker: `inspect zklocks`, and `inspect scheduled` with the tasks that wait for locks.

A worker imports them when it starts. A program that sends `celery -A project inspect zklocks` must import it, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from celery.worker import control
from celery.worker.control import inspect_command

from django_zklock.contrib.celery.dispatch.dispatcher import DISPATCHER, Dispatcher
from django_zklock.contrib.celery.dispatch.waiting_task import WaitingTask
from django_zklock.contrib.celery.introspection import short_id
from django_zklock.inspection import ContenderInfo, Snapshot, snapshot
from django_zklock.locks.multi import keys_of

REPLY_TIMEOUT: Final = 0.7  # seconds for the snapshot of all locks; `inspect` waits one second for a worker


@inspect_command()
def zklocks(state: Any, **kwargs: object) -> dict[str, Any]:
    """List the locks that this worker's processes hold, keep for their next users, and wait for."""
    pool = state.consumer.pool
    processes = (pool.info or {}).get("processes") if pool is not None else None
    dispatcher: Dispatcher | None = getattr(state.consumer, DISPATCHER, None)
    tasks = {} if dispatcher is None else dict(dispatcher.tasks)  # a copy: the dispatcher may have its own thread
    waiting = {task_id: task for task_id, task in tasks.items() if task.asked_at is not None}
    shown = snapshot(reply_timeout=REPLY_TIMEOUT, max_age=0, max_locks=None, max_waiters=None)
    return _locks_of(shown, {os.getpid(), *(processes or [])}, waiting)


_scheduled: Any = control.Panel.data["scheduled"]


@inspect_command(alias="dump_schedule")
def scheduled(state: Any, **kwargs: object) -> list[dict[str, Any]]:
    """List of currently scheduled ETA/countdown tasks, and of those that wait for their locks."""
    dispatcher: Dispatcher | None = getattr(state.consumer, DISPATCHER, None)
    waiting = [] if dispatcher is None else list(dispatcher.waiting)
    in_queue = [{"eta": None, "priority": 6, "request": task.request.info()} for task in waiting]
    return [*_scheduled(state, **kwargs), *in_queue]


def _locks_of(shown: Snapshot, processes: set[int], tasks: Mapping[str, WaitingTask]) -> dict[str, Any]:
    host = socket.gethostname()

    def of_worker(contenders: tuple[ContenderInfo, ...]) -> Iterator[tuple[int, ContenderInfo]]:
        for number, contender in enumerate(contenders):
            if contender.host == host and contender.pid in processes:
                yield number, contender

    held: list[dict[str, Any]] = []
    idle: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for lock in shown.locks:
        for _, holder in of_worker(lock.holders):
            if lock.idle_for is None:
                held.append(_item(lock.key, holder))
            else:
                idle.append({"lock": lock.key, "pid": holder.pid, "idle_for": lock.idle_for})
        for number, waiter in of_worker(lock.waiters):
            waiting.append({**_item(lock.key, waiter), "ahead": len(lock.holders) + number})
    lengths = {lock.key: len(lock.holders) + len(lock.waiters) for lock in shown.locks}
    waiting += _without_znode(tasks, lengths, {item["id"] for item in waiting})
    problems = [f"{lock.key}: {lock.problem}" for lock in shown.locks if lock.problem]
    problem = shown.problem or "; ".join([*problems, *shown.skipped])
    return {"held": held, "idle": idle, "waiting": waiting, "problem": problem}


def _item(key: str, contender: ContenderInfo) -> dict[str, Any]:
    return {
        "lock": key,
        "task": contender.about.get("task", ""),
        "id": contender.about.get("id", ""),
        "what": contender.what,
        "pid": contender.pid,
        "since": contender.came.isoformat(),
    }


def _without_znode(
    tasks: Mapping[str, WaitingTask], ahead: dict[str, int], with_znode: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield the tasks that wait behind so many of this worker that they have no znode yet."""
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
