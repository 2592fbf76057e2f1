"""Decide what happens to a task that does not get its lock, or loses it: it is sent again, is skipped, or fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any, Final, NoReturn

from celery import Task
from celery.exceptions import Ignore

from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.contrib.celery import messages, redelivery
from django_zklock.contrib.celery.dispatch.result import WaitResult
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, LOST_HEADER
from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.lifecycle import WAITING_HEADER, waiting_key
from django_zklock.contrib.celery.unique.reservations import Taken
from django_zklock.exceptions import LockBusy, LockLost, LockNotAcquired, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, joined, keys_of, locks_of
from django_zklock.locks.queue_reader import ContenderInfo, contenders

logger = logging.getLogger("django_zklock.celery")

_SENT_AGAIN: Final = ("retry", "coalesce")

MESSAGE_DELAY: Final = 120.0
"""
Seconds beyond its delay for which a waiting task keeps its reservation.

Its message may be lost without a report. If the message is only later than this, a second task waits, too. Then the
work runs once more than needed, but no call is lost.
"""


def before_acquire(task: Task[..., Any], lock: Locks, options: LockOptions) -> None:
    """
    End this run if another copy of the task is in the queue of the lock.

    A copy must not wait behind the other one: it would not notice that the work is done by then. It must not
    share a read lock or a semaphore with the other one either.
    """
    for single in locks_of(lock):
        if options.timeout != 0 or single.spec.shares:
            error = LockBusy(f"The lock {single.key!r} is held by another copy of this task.", lock=single.key)
            _end_if_copy(task, _read_queue(single), error, options)


def on_not_acquired(
    task: Task[..., Any], error: ZkLockError, lock: Locks, options: LockOptions, waited: WaitResult | None
) -> Any:
    """
    Return the result of a task that did not get its lock, or raise what ends this run.

    `error` is a `LockNotAcquired`, or says that ZooKeeper is not available. In the second case nothing is skipped.
    `waited` is the result of the wait in the worker's main process, if it has waited there.
    """
    policy = options.on_conflict
    if isinstance(error, LockNotAcquired):
        if waited is None or not waited.checked_copies:
            _look_for_copies(task, error, lock, options, () if waited is None else waited.own)
        if policy == "skip":
            return _skip(task, str(error), options)
        if policy == "coalesce" and not _is_spent(task, CONFLICTS_HEADER, options):
            other = _wait_or_yield(task, joined(keys_of(lock)), error)
            return _skip(task, f"{error} Task {other} waits for it and will do this work, too.", options)
    again = policy in _SENT_AGAIN or (policy == "wait" and not isinstance(error, LockNotAcquired))
    if again and not _is_spent(task, CONFLICTS_HEADER, options):
        messages.send_again(task, CONFLICTS_HEADER, error)
    raise error


def _look_for_copies(
    task: Task[..., Any], error: ZkLockError, lock: Locks, options: LockOptions, own: Collection[str]
) -> None:
    """End this run if another copy of the task is in a queue, or may have been. `own` are guids of the task itself."""
    queues = {
        single.key: tuple(contender for contender in _read_queue(single) if contender.guid not in own)
        for single in locks_of(lock)
    }
    if options.on_conflict == "skip" and not queues.get(error.lock or ""):
        messages.send_again(task, CONFLICTS_HEADER, error)  # the holder is gone or unknown; perhaps it was a copy
    for queue in queues.values():
        _end_if_copy(task, queue, error, options)


def on_lost(task: Task[..., Any], error: LockLost, options: LockOptions) -> NoReturn:
    """Fail, or send the task again, which does not count as a retry of its own."""
    if options.on_lost == "retry" and not _is_spent(task, LOST_HEADER, options):
        messages.send_again(task, LOST_HEADER, error)
    raise error


def _read_queue(lock: Lock) -> tuple[ContenderInfo, ...]:
    try:
        return contenders(lock.key, lock.spec.parent)
    except ZkLockError as error:
        logger.info("the queue of the lock %r cannot be read: %s", lock.key, error, extra={"lock": lock.key})
        return ()


def _end_if_copy(
    task: Task[..., Any], queue: tuple[ContenderInfo, ...], error: ZkLockError, options: LockOptions
) -> None:
    """End this run if another copy of the task is in the queue. That is not a conflict."""
    if redelivery.copy_of(task.request.id, queue) is None:
        return
    if _is_spent(task, CONFLICTS_HEADER, options):
        raise Ignore(f"another copy of task {task.request.id} does the work")  # its result is the result
    redelivery.retry_later(task, error)


def _wait_or_yield(task: Task[..., Any], lock_key: str, error: ZkLockError) -> str:
    """
    Return the id of the task of the same name that waits for the lock. If there is none, send this task again.

    In the second case, raise what ends this run.
    """
    key = waiting_key(task, lock_key)
    request: Any = task.request
    times = messages.count(request, CONFLICTS_HEADER) + 1
    delay = messages.delay_before(times)
    until = time.time() + delay + MESSAGE_DELAY
    try:
        reservation = reservations.reserve(key, str(request.id), late=bool(task.acks_late), until=until)
    except (ZooKeeperUnavailable, LockTimeout) as unknown:
        messages.send_again(task, CONFLICTS_HEADER, unknown)
    if isinstance(reservation, Taken):
        return reservation.task_id
    with reservations.confirmed(reservation):
        signature = messages.send(task, {CONFLICTS_HEADER: times, WAITING_HEADER: key}, delay, error)
    messages.end_run(signature, delay, error)


def _skip(task: Task[..., Any], reason: str, options: LockOptions) -> Any:
    """
    End the task without its work: with the value that its options give, else as REVOKED.

    A result of None would look like the work's own result, and a chain would continue with it.
    """
    if options.skip_value is not UNSET:
        return options.skip_value
    messages.revoke(task, task.request, reason)
    raise Ignore(reason)


def _is_spent(task: Task[..., Any], header: str, options: LockOptions) -> bool:
    most = options.max_conflicts
    return isinstance(most, int) and messages.count(task.request, header) >= most
