"""Knows what becomes of a task that does not get its lock, or loses it: it is sent again, or skipped, or fails."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore

from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.contrib.celery import coalescing, copies, messages
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, LOST_HEADER
from django_zklock.exceptions import LockBusy, LockHeldByCaller, LockLost, LockNotAcquired, ZkLockError
from django_zklock.locks.lock import Lock
from django_zklock.locks.looking import Contending, contenders, is_shared
from django_zklock.locks.multi import Locks, joined, keys_of, locks_of

logger = logging.getLogger("django_zklock.celery")

_COMES_AGAIN = ("retry", "coalesce")


def entering(task: Task[..., Any], lock: Locks, options: LockOptions) -> None:
    """
    Keep a copy of a task from waiting behind another one: it would not learn that the work is done by then.

    Also from getting a share beside it, where the lock is one that others share.
    """
    for each in locks_of(lock):
        if options.timeout != 0 or is_shared(each):
            error = LockBusy(f"The lock {each.key!r} is held by another copy of this task.", lock=each.key)
            _refuse_copy(task, _seen(each), error, options)


def refused(task: Task[..., Any], error: ZkLockError, lock: Locks, options: LockOptions) -> Any:
    """
    Return what a task returns that did not get its lock, or raise what ends this run of it.

    `error` is a `LockNotAcquired`, or says that nobody could tell who has the lock; then nothing is skipped.
    """
    if isinstance(error, LockHeldByCaller):
        raise error
    policy = options.on_conflict
    if isinstance(error, LockNotAcquired):
        queues = {each.key: _seen(each) for each in locks_of(lock)}
        if policy == "skip" and not queues.get(error.lock or ""):
            messages.come_again(task, CONFLICTS_HEADER, error)  # whoever had it is gone, or unknown: a copy perhaps
        for queue in queues.values():
            _refuse_copy(task, queue, error, options)
        if policy == "skip":
            return skip(task, str(error), options)
        if policy == "coalesce" and not _spent(task, CONFLICTS_HEADER, options):
            other = coalescing.wait_or_yield(task, joined(keys_of(lock)), error)
            return skip(task, f"{error} Task {other} waits for it and will do this, too.", options)
    if policy in _COMES_AGAIN and not _spent(task, CONFLICTS_HEADER, options):
        messages.come_again(task, CONFLICTS_HEADER, error)
    raise error


def lost(task: Task[..., Any], error: LockLost, options: LockOptions) -> NoReturn:
    """Fail, or send the task again, its own retries uncounted."""
    if options.on_lost == "retry" and not _spent(task, LOST_HEADER, options):
        messages.come_again(task, LOST_HEADER, error)
    raise error


def _seen(lock: Lock) -> tuple[Contending, ...]:
    try:
        return contenders(lock)
    except ZkLockError as unknown:
        logger.info("nobody can tell who has the lock %s: %s", lock.key, unknown, extra={"lock": lock.key})
        return ()


def _refuse_copy(task: Task[..., Any], queue: tuple[Contending, ...], error: ZkLockError, options: LockOptions) -> None:
    """Deal with a task that met another copy of itself in the queue of its lock; it is no conflict."""
    copy = copies.own(task, queue)
    if copy is None:
        return
    spent = _spent(task, CONFLICTS_HEADER, options)
    over = spent if options.on_conflict in _COMES_AGAIN else copies.outlived(task, copy)
    if over:
        # Its result is the result, whatever it will be.
        raise Ignore(f"another copy of task {task.request.id} is at work")
    copies.meet_again(task, copy, error)


def skip(task: Task[..., Any], reason: str, options: LockOptions) -> Any:
    """
    End the task without its work: with the value that its options give, else as REVOKED.

    None would pass for the result, and a chain would go on with it.
    """
    if options.skip_value is not UNSET:
        return options.skip_value
    messages.revoke(task, task.request, reason)
    raise Ignore(reason)


def _spent(task: Task[..., Any], header: str, options: LockOptions) -> bool:
    most = options.max_conflicts
    return isinstance(most, int) and messages.counted(task.request, header) >= most
