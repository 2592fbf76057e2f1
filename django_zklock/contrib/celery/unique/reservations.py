"""
Reserve a key for a task before its message is sent, and free the key when the task no longer counts.

A reservation is an operator hold in the queue of a lock of its own (`core.queue.operator_hold`). The sender acquires
that lock, sends the message, and releases the lock. The release leaves the hold, which names the task and has an end. A
sender that fails or dies before its release leaves nothing. So inspection, the admin and the commands show and end
reservations as they show and end other holds.

All functions block until their timeout at most, also under an event loop, as sending a message does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeGuard

from celery.exceptions import Retry

from django_zklock import conf
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import CallerWait, Contender, Outcome
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue import nodes
from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.nodes import Kind, Payload
from django_zklock.core.queue.operator_hold import (
    LONGEST,
    MAX_TASK_ID,
    RESERVATIONS,
    SECONDS,
    HoldLabel,
    OperatorHold,
    guid_of_task,
)
from django_zklock.core.zk import process
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Delete, SetData
from django_zklock.core.zk.session import Session
from django_zklock.decorators.context import AcquireAgain
from django_zklock.exceptions import LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.requests import Commit, Done, OptimisticUpdate, Step, WaitUntilGone
from django_zklock.names import template as names
from django_zklock.operations.client import DeleteNode, QueueClient, children

logger = Logger("django_zklock.reservations")

LASTS: Final = 3600.0
"""Seconds that a reservation lasts, unless `unique_for` says otherwise."""
RESERVE_TIMEOUT: Final = 5.0  # seconds that a sender waits for ZooKeeper, or for another sender
REPLY_TIMEOUT: Final = 1.0  # seconds that other callers wait for the outcome; the change continues in the background


def lock_key(key: str) -> str:
    """Return the key of the lock whose holds are the reservations of `key`."""
    return f"{RESERVATIONS}/{key}"


def is_key(text: object) -> TypeGuard[str]:
    """Return whether this can be the key of a reservation. A header of a message may have anything instead of one."""
    return isinstance(text, str) and text.isascii() and names.is_key(lock_key(text))


@contextmanager
def reserved(
    key: str,
    task_id: str,
    *,
    task: str,
    seconds: float,
    again: bool = False,
    has_ended: Callable[[str], bool] = lambda task_id: False,
    timeout: float = RESERVE_TIMEOUT,
) -> Iterator[str | None]:
    """
    Reserve the key for this task, and send its message in the block. If another task has the key, gives the id of that.

    If the block raises, the key is free again, or reserved as before. While another sender sends its message, this
    waits to see whether that succeeds.

    Args:
        key: the key of a lock, or several keys joined by slashes.
        task_id: of the task.
        task: its name.
        seconds: that the reservation lasts; at most a week.
        again: whether the task is sent again, and keeps its key. A new call with the same id is a duplicate.
        has_ended: called with the id of the task that has the key, in the calling thread. True if that task has ended,
            whatever its reservation says.
        timeout: seconds to wait at most.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer. Nothing is reserved.
        LockTimeout: another sender did not finish in time, so the outcome for its task is unknown.

    """
    client = QueueClient(lock_key(key), timeout)
    seconds = min(max(seconds, 0.0), LONGEST)
    spec = QueueSpec(key=client.key, parent=client.parent, kind=Kind.LOCK, min_hold=seconds)
    label = HoldLabel(f"task {task}", f"{task_id} is queued or runs", _shown_id(task_id))
    while True:
        with _entered(client, spec, _caller(label)) as (contender, outcome):
            if isinstance(outcome, Grant):
                with _reserving(outcome):
                    yield None
                return
        ahead = _ahead(client, contender, outcome)
        if ahead is None:
            continue  # it has left since
        hold = ahead.operator
        if hold is None or not hold.task_id:
            _wait_for(client, ahead)
        elif has_ended(hold.task_id):
            client.run(DeleteNode(client.parent, ahead.name))
        else:
            is_own = again and hold.task_id == label.task_id
            if is_own:
                _extend(client, ahead.name, hold, seconds)
            yield None if is_own else hold.task_id
            return


def _shown_id(task_id: str) -> str:
    """Return the id of a task as its reservation has it. Any text can be the id of a task."""
    return printable(task_id, MAX_TASK_ID)


def _caller(label: HoldLabel) -> Caller:
    what = f"{label.by}: {label.reason}"
    return Caller(thread=threading.current_thread().name, what=what, operator=label)


def _ahead(client: QueueClient, contender: Contender, outcome: Outcome | None) -> ContenderInfo | None:
    """Return who has the key, unless it has left by now. Raise the error that the contender ended with."""
    if outcome is None:
        raise ZooKeeperUnavailable(client.session.explain(), lock=client.key)
    if isinstance(outcome, ZkLockError):
        raise client.with_key(outcome)
    ahead = contender.ahead
    # The server of this session may be behind, and show a reservation whose task has begun. This reads after a sync.
    return ahead if ahead is not None and ahead.name in client.run(children) else None


def _wait_for(client: QueueClient, sender: ContenderInfo) -> None:
    """Wait until another sender has sent its message or failed: its task may never be sent."""
    if not client.wait_gone(sender.name, client.remaining):
        raise LockTimeout(
            f"Another publisher has been sending a task for {client.key!r} for too long: {sender}. The outcome is "
            "unknown.",
            lock=client.key,
        )


@contextmanager
def _entered(client: QueueClient, spec: QueueSpec, caller: Caller) -> Iterator[tuple[Contender, Outcome | None]]:
    """Give a contender and its outcome, and leave the queue at the end of the block."""
    waiter: ThreadWaiter[Outcome] = ThreadWaiter()
    contender = Contender(client.session, spec, caller, CallerWait(waiter.set), waits=False)
    outcome: Outcome | None = None
    try:
        contender.start()
        outcome = waiter.wait(client.remaining)
        yield contender, outcome
    finally:
        contender.abandon()
        if isinstance(outcome, Grant):  # a worker may end the reservation at once, so it should be there
            released: ThreadWaiter[bool] = ThreadWaiter()
            contender.when_released(released.set, confirmed=True)
            released.wait(REPLY_TIMEOUT)


@contextmanager
def _reserving(grant: Grant) -> Iterator[None]:
    """Have the release leave the hold if the block has sent the message, also by a retry, or if the task waits here."""
    try:
        yield
    except (AcquireAgain, Retry):
        grant.begun = True
        raise
    grant.begun = True


def _extend(client: QueueClient, name: str, hold: OperatorHold, seconds: float) -> None:
    """Let a reservation last for so many seconds from now."""
    node = client.read(name)
    payload = None if node is None else Payload.decode(node.data)
    if node is None or payload is None:
        return  # it has ended since
    lasts = min(max(hold.seconds, _now(client.session) - node.ctime + seconds), LONGEST)
    data = replace(payload, about={**payload.about, SECONDS: f"{lasts:.3f}"}).encode()
    change = SetData(path=node.path, data=data, version=node.version)
    client.request(lambda gateway, done: gateway.commit((change,), done))


def end(key: str, task_id: str, *, reply_timeout: float = REPLY_TIMEOUT) -> Exception | None:
    """
    End the reservation of a task that no longer counts; harmless if the task does not have the key.

    Returns None if it is done in time. Else it returns why not: ZooKeeper has refused it, or it continues in the
    background.
    """
    session, waiter = process.current(), ThreadWaiter[tuple[object]]()
    guid = guid_of_task(_shown_id(task_id))

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        sender = ""
        for name in () if directory is None else directory.children:
            if nodes.has_guid(name, guid):
                return Commit((Delete(path=f"{path}/{name}"),), True)
            child = nodes.parse(name)
            if child is not None and child.replaceable:
                sender = name
        # The worker may be faster than the sender, which has not released the lock yet.
        return WaitUntilGone(sender) if sender else Done(True)

    def done(outcome: object) -> None:
        if isinstance(outcome, Exception):
            logger.error("the reservation of %r could not be ended: %s", key, outcome)
        waiter.set((outcome,))

    path = names.path(conf.current().base, lock_key(key))
    OptimisticUpdate(session, path, decide, done).start()
    outcomes = waiter.wait(reply_timeout) if reply_timeout > 0 else None
    (outcome,) = outcomes or (ZooKeeperUnavailable(session.explain(reply_timeout), lock=key),)
    return outcome if isinstance(outcome, Exception) else None


def _now(session: Session) -> float:
    """Return the time by ZooKeeper's clock, in seconds since 1970; by that of this host if nothing was written yet."""
    return session.gateway.clock.now() or time.time()
