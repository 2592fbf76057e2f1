"""
The remote control commands of a worker: `inspect zklocks`, and `inspect scheduled` with the tasks that wait for locks.

A worker imports them when it starts. A program that sends `celery -A project inspect zklocks` must import it, too.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from celery.utils.functional import maybe_list
from celery.worker import control
from celery.worker.control import inspect_command
from celery.worker.state import active_requests, revoked, revoked_stamps

from django_zklock.contrib.celery.dispatch import DISPATCHER
from django_zklock.contrib.celery.dispatch.dispatcher import Dispatcher
from django_zklock.contrib.celery.dispatch.loops import run_logged
from django_zklock.contrib.celery.dispatch.waiting_tasks import WaitingTask
from django_zklock.contrib.celery.messages import headers_of, short_id
from django_zklock.contrib.celery.unique import lifecycle
from django_zklock.inspection import ContenderInfo, LockInfo, Snapshot, snapshot

REPLY_TIMEOUT: Final = 0.7  # seconds for the snapshot of all locks; `inspect` waits one second for a worker


@inspect_command()
def zklocks(state: Any, **kwargs: object) -> dict[str, Any]:
    """List the locks that this worker's processes hold, keep for their next users, and wait for."""
    pool = state.consumer.pool
    processes = (pool.info or {}).get("processes") if pool is not None else None
    dispatcher: Dispatcher | None = getattr(state.consumer, DISPATCHER, None)
    tasks = {} if dispatcher is None else dict(dispatcher.tasks)  # a copy: the dispatcher may have its own thread
    waiting = [task for task in tasks.values() if task.asked_at is not None]
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


def _ending_reservations(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that revokes tasks and ends the reservations of those that have not begun."""

    @functools.wraps(command)
    def revoke(*args: Any, **kwargs: Any) -> Any:
        reply = command(*args, **kwargs)
        for request in list(lifecycle.received):
            in_pool = request in active_requests or request._apply_result is not None
            if not in_pool and _is_revoked(request):
                run_logged(lifecycle.end_all, headers_of(request), request.id)
        return reply

    return revoke


def _is_revoked(request: Any) -> bool:
    if request.id in revoked:
        return True
    for name, values in request.stamps.items():
        of_revoked = maybe_list(revoked_stamps.get(name, ()))
        if any(value in of_revoked for value in maybe_list(values) or ()):
            return True
    return False


for _name in ("revoke", "revoke_by_stamped_headers", "terminate"):
    control.Panel.data[_name] = _ending_reservations(control.Panel.data[_name])


def _locks_of(shown: Snapshot, processes: set[int], tasks: Iterable[WaitingTask]) -> dict[str, Any]:
    held: list[dict[str, Any]] = []
    idle: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for lock, ahead, contender in _contenders_of(shown, processes):
        item = _item(lock.key, contender.about, contender.what, contender.pid, contender.came)
        if ahead >= len(lock.holders):
            waiting.append({**item, "ahead": ahead})
        elif lock.idle_for is None:
            held.append(item)
        else:
            idle.append({"lock": lock.key, "pid": contender.pid, "idle_for": lock.idle_for})
    lengths = {lock.key: len(lock.holders) + len(lock.waiters) for lock in shown.locks}
    waiting += _without_znode(tasks, lengths, {item["id"] for item in waiting})
    problems = [f"{lock.key}: {lock.problem}" for lock in shown.locks if lock.problem]
    problem = shown.problem or "; ".join([*problems, *shown.skipped])
    return {"held": held, "idle": idle, "waiting": waiting, "problem": problem}


def _contenders_of(shown: Snapshot, processes: set[int]) -> Iterator[tuple[LockInfo, int, ContenderInfo]]:
    """Yield the contenders of this worker, each with its lock, and with the number of contenders ahead of it."""
    host = socket.gethostname()
    for lock in shown.locks:
        for ahead, contender in enumerate((*lock.holders, *lock.waiters)):
            if contender.host == host and contender.pid in processes:
                yield lock, ahead, contender


def _item(lock: str, about: Mapping[str, str], what: str, pid: int, since: datetime) -> dict[str, Any]:
    task, task_id = about.get("task", ""), about.get("id", "")
    return {"lock": lock, "task": task, "id": task_id, "what": what, "pid": pid, "since": since.isoformat()}


def _without_znode(
    tasks: Iterable[WaitingTask], ahead: dict[str, int], with_znode: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield the tasks that wait behind so many of this worker that they have no znode yet."""
    for task in tasks:
        if short_id(task.request.id) in with_znode or task.acquisition.holds:
            continue
        key = task.keys[0]
        about = {"task": task.request.task.name, "id": short_id(task.request.id)}
        since = datetime.fromtimestamp(task.since, timezone.utc)
        yield {**_item(key, about, "", os.getpid(), since), "ahead": ahead.get(key, 0)}
        ahead[key] = ahead.get(key, 0) + 1
