"""
Copies of a task: two deliveries of one message, of which one does the work.

The id alone does not tell: a sender may choose one id for several calls, and a broadcast queue delivers one message to
each worker.

A broker delivers a message again if the first copy is not acknowledged: its worker died, or was only slow (Redis'
visibility timeout, a lost connection). The second copy cannot know which. The znode of a dead process exists until its
session ends, and no longer. So the second copy waits until the znode is gone. Then it acquires the lock like any other
task, and asks the result backend, under the lock, whether the work is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from celery import Task
from celery.exceptions import Ignore

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.messages import COPIES_HEADER, COPY_HEADER
from django_zklock.core import clock
from django_zklock.core.execution.waiters import Routine
from django_zklock.core.locks.held import RELEASE_TIMEOUT
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.escaping import printable
from django_zklock.core.zk import process
from django_zklock.decorators.context import FunctionContext
from django_zklock.locks.queue_reader import read_queue

logger = Logger("django_zklock.celery")

NONE: Final = "none"  # in `COPY_HEADER`
LOOK_EVERY: Final = 1.0  # seconds between two looks for the other copy; more than RELEASE_TIMEOUT
ANSWER_WITHIN: Final = 10.0  # seconds for the result backend, while the copy waits
SESSION_ENDS_WITHIN: Final = 1.5
"""How many times its timeout a dead session may last: ZooKeeper rounds it up by a tick, at most half of a timeout."""


def is_copy(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """
    Return whether two descriptions of tasks are those of two deliveries of one message.

    The broker has marked one of them as delivered again. RabbitMQ's messages have no tag; their ids must do.
    """
    if _shown(first, "id") != _shown(second, "id"):
        return False
    if not first.get("redelivered") and not second.get("redelivered"):
        return False
    tags = {_shown(first, "message"), _shown(second, "message")}
    return len(tags) == 1 or "" in tags


def _shown(about: Mapping[str, str], name: str) -> str:
    """Return an item as a znode shows it."""
    return printable(about.get(name, ""))


def copy_in(queue: Iterable[ContenderInfo], about: Mapping[str, str]) -> ContenderInfo | None:
    """Return the first contender that is a copy of the task with this description; None if there is none."""
    return next((contender for contender in queue if is_copy(about, contender.about)), None)


def may_have_copy(call: FunctionContext) -> bool:
    """Return whether a task has to look for copies first. A shared lock would be granted to both of them."""
    return "redelivered" in call.about or any(spec.shares for spec in call.lock.specs)


def until_session_ends(copy: ContenderInfo, headers: Mapping[str, Any]) -> float:
    """Return the seconds until another copy is gone if its process is dead; 0 if it was found to be alive."""
    if headers.get(COPIES_HEADER):
        return 0.0
    return SESSION_ENDS_WITHIN * (copy.session_timeout or process.current().timeout)


def wait_alone(
    task: Task[..., Any],
    task_id: str,
    call: FunctionContext,
    headers: dict[str, Any],
    new_waiter: Callable[[], Any],
    *,
    run_blocking: Callable[[Callable[[], object]], object],
    longest: Callable[[ContenderInfo], float],
) -> Routine[bool]:
    """
    Wait until no other copy is in the queues of the task's locks, at most `longest(copy)` seconds.

    Return False if one is still there. If the task has met a copy, its headers say so. `run_blocking` runs a function
    on a thread that the result backend may block.

    A result is of an earlier call with the same id if the other copy stays in the queue after it was read. Else it may
    be that copy's own: its result is stored while its release is on its way.
    """
    copy = yield from _first_copy(call, new_waiter)
    if copy is None:
        return True
    headers.setdefault(COPY_HEADER, NONE)
    until = clock.now() + longest(copy)
    if until <= clock.now():
        return False
    logger.info("task %r waits for another delivery of its message: %s", task_id, copy)
    waiter = new_waiter()
    if waiter.on_queued is not None:
        waiter.on_queued()
    run_blocking(lambda: waiter.set(messages.finished_at(task.backend, task_id)))
    earlier = yield from waiter.outcome(ANSWER_WITHIN)
    while clock.now() < until:
        yield from new_waiter().outcome(LOOK_EVERY)
        if (yield from _first_copy(call, new_waiter)) is None:
            return True
        headers[COPY_HEADER] = earlier or NONE
    return False


def _first_copy(call: FunctionContext, new_waiter: Callable[[], Any]) -> Routine[ContenderInfo | None]:
    for spec in call.lock.specs:
        queue = yield from read_queue(process.current(), spec.key, spec.parent, new_waiter())
        copy = copy_in(queue, call.about)
        if copy is not None:
            return copy
    return None


def check_done(task: Task[..., Any]) -> None:
    """
    Raise `Ignore` if another copy has done the work; called under the lock, before the work.

    A result is stored only after the release was sent, so a copy that finds none looks once more, a little later. If it
    finds none then, it does the work.
    """
    request: Any = task.request
    earlier = messages.text(request, COPY_HEADER)
    if not earlier:
        return
    for pause in (RELEASE_TIMEOUT, 0.0):
        done = messages.finished_at(task.backend, str(request.id))
        if done and done != earlier:
            raise Ignore(f"another copy of task {request.id} has done the work")
        time.sleep(pause)
    # From now on, this copy is the one that works.
    request.headers = {name: value for name, value in request.headers.items() if name != COPY_HEADER}
