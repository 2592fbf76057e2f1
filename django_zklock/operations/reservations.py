"""
Reservations: only one task of a key exists, from before it is sent until it has started or is done.

A publisher *reserves* the key and sends the message. Then it *confirms* the reservation, or *withdraws* it if the
message could not be sent. A worker *starts* the task. It *frees* the key when the task no longer counts, or *leaves*
the task to the next delivery. The next publisher decides whether a reservation still counts (`queue.reservations`).

All functions block for `deadline` seconds at most, also under an event loop, as sending a message does.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from django_zklock import clock, conf
from django_zklock.exceptions import LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.queue import reservations as rules
from django_zklock.queue.reservations import Reservation, State, Verdict
from django_zklock.zk import process
from django_zklock.zk.gateway import DirectoryState
from django_zklock.zk.multi import Check, Create, Delete, SetData
from django_zklock.zk.requests import (
    UNKNOWN,
    Commit,
    Decide,
    Done,
    OptimisticUpdate,
    Step,
    StillThere,
    WaitUntilGone,
    run,
)

logger = logging.getLogger("django_zklock.reservations")

DEADLINE: Final = 5.0  # seconds that a publisher waits for ZooKeeper, or for another publisher
REPLY_TIMEOUT: Final = 1.0  # seconds that other callers wait for the outcome; the update continues in the background


@dataclass(frozen=True, slots=True)
class Taken:
    """The key is reserved by this task, which waits or runs."""

    key: str
    task_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The caller's task has the key. Send its message, then confirm or withdraw the reservation."""

    key: str
    task_id: str
    token: str
    before: State | None
    """The earlier state of the task, if it is sent again."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A worker of this process runs the task of this key."""

    key: str
    task_id: str
    token: str
    attachment: str


def reserve(
    key: str,
    task_id: str,
    *,
    late: bool = False,
    until: float | None = None,
    is_over: Callable[[str], bool] | None = None,
    deadline: float = DEADLINE,
) -> Reserved | Taken:
    """
    Reserve the key for this task, before its message is sent. Returns `Taken` if another task has the key.

    A task that has the key already gets it again. A reservation that no longer counts is replaced. While another
    publisher sends its message, this waits to see whether that succeeds.

    Args:
        key: the key of a lock, or several keys joined by slashes.
        task_id: of the task; unique.
        late: whether the broker delivers the task again if its worker dies.
        until: when the reservation ends if no process runs the task, in seconds since 1970; None: never.
        is_over: called with the id of the task that has the key, in the calling thread. True if that task has ended,
            whatever its reservation says.
        deadline: seconds to wait at most.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer. Nothing is reserved, or it will be withdrawn.
        LockTimeout: another publisher did not finish in time, so the outcome for its task is unknown.

    """
    over = ""
    latest = clock.now() + deadline
    while True:
        plan = _Reserving(key, task_id, late=late, until=until, over=over)
        found: Reserved | Taken = _run(key, plan.decide, latest - clock.now(), guess=None)
        if isinstance(found, Reserved) or is_over is None or found.token == over or not is_over(found.task_id):
            return found
        over = found.token


def confirm(reserved: Reserved, *, deadline: float = REPLY_TIMEOUT) -> None:
    """Record that the message was sent; in the background if ZooKeeper does not answer in time."""
    _complete(reserved.key, _confirming(reserved), deadline)


def withdraw(reserved: Reserved, *, deadline: float = REPLY_TIMEOUT) -> None:
    """Record that the message was not sent: the key is free, or its task is in its earlier state again."""
    _complete(reserved.key, _withdrawing(reserved), deadline)


@contextmanager
def confirmed(reserved: Reserved) -> Iterator[None]:
    """Confirm the reservation when the block has sent the message; withdraw it if the block raises."""
    try:
        yield
    except BaseException:
        withdraw(reserved)
        raise
    confirm(reserved)


def start(key: str, task_id: str, *, late: bool = False, deadline: float = REPLY_TIMEOUT) -> Attached | None:
    """
    Record that this process runs the task. Returns None if the task does not have the key, or ZooKeeper is away.

    From then on the reservation counts for as long as the session of this process lives.
    """
    try:
        found: Attached | None = _run(key, _starting(key, task_id, late, str(uuid.uuid4())), deadline)
    except ZooKeeperUnavailable as error:
        logger.warning("the start of task %r was not recorded in its reservation %r: %s", task_id, key, error)
        return None
    return found


def leave(attached: Attached, *, waits: bool = False, deadline: float = REPLY_TIMEOUT) -> None:
    """Record that this process no longer runs the task; with `waits`, that its message is in the broker again."""
    _complete(attached.key, _leaving(attached, waits), deadline)


def free(key: str, task_id: str, *, attached: Attached | None = None, deadline: float = REPLY_TIMEOUT) -> bool:
    """
    Free the key of a task that no longer counts; harmless if the task does not have it.

    This ends the reservation even if another worker is attached: of a redelivered task, that may be the dead first
    worker whose session lasts. With `attached`, the caller is a worker that has done nothing. Then another attached
    worker keeps the key for as long as it lives. Returns True if it is done in time; else it continues in the
    background.
    """
    return _complete(key, _freeing(task_id, attached), deadline)


# --- plans, on the protocol's thread ----------------------------------------------------------------------------------


class _Reserving:
    """The plan of a publisher. After a lost reply it is called again, so it keeps its state."""

    def __init__(self, key: str, task_id: str, *, late: bool, until: float | None, over: str) -> None:
        self._key = key
        self._path = _path(key)
        self._new = Reservation(
            task_id=task_id, token=str(uuid.uuid4()), state=State.PUBLISHING, late=late, until=until
        )
        self._over = over  # token of a reservation whose task has ended
        self._before: State | None = None

    def decide(self, found: DirectoryState | None, session_id: int) -> Step:
        new = self._new
        mark = Create(path=f"{self._path}/{new.mark}")
        name = rules.publisher(new.token, session_id)
        child = Create(path=f"{self._path}/{name}", ephemeral=True)
        if found is None:
            return Commit((Create(path=self._path, data=new.encode()), mark, child), self._reserved(new.token))
        current = Reservation.decode(found.data)
        if current.task_id == new.task_id:
            if current.state is State.PUBLISHING and name in found.children:
                return Done(self._reserved(current.token))
            if current.state is not State.PUBLISHING:
                self._before = current.state
            now = replace(current, state=State.PUBLISHING, until=new.until)
            return _write(found, current, now, child, value=self._reserved(current.token))
        verdict = Verdict.DEAD if current.token == self._over else rules.judge(current, found.children, time.time())
        if verdict is Verdict.SENDING:
            return WaitUntilGone(rules.publishers(found.children)[0])
        if verdict is Verdict.LIVE:
            return Done(Taken(self._key, current.task_id, current.token))
        replaced = SetData(path=self._path, data=new.encode(), version=found.version)
        return Commit((*_deletes(found, found.children), replaced, mark, child), self._reserved(new.token))

    def _reserved(self, token: str) -> Reserved:
        return Reserved(self._key, self._new.task_id, token, self._before)


_Change: TypeAlias = Callable[[DirectoryState, Reservation, int], Step]


def _if_own(task_id: str, token: str, change: _Change, *, otherwise: object = True) -> Decide:
    """Return a plan: `change` the reservation if this task has it, with this token if one is given."""

    def decide(found: DirectoryState | None, session_id: int) -> Step:
        own = None if found is None else Reservation.decode(found.data)
        if found is None or own is None or own.task_id != task_id or token not in ("", own.token):
            return Done(otherwise)
        return change(found, own, session_id)

    return decide


def _confirming(reserved: Reserved) -> Decide:
    def change(found: DirectoryState, own: Reservation, session_id: int) -> Step:
        # If it is no longer PUBLISHING, a worker has already started the task.
        now = replace(own, state=State.QUEUED) if own.state is State.PUBLISHING else own
        return _write(found, own, now, *_deletes(found, rules.publishers(found.children)))

    return _if_own(reserved.task_id, reserved.token, change)


def _withdrawing(reserved: Reserved) -> Decide:
    def change(found: DirectoryState, own: Reservation, session_id: int) -> Step:
        if own.state is State.PUBLISHING and reserved.before is None:
            return _delete(found)
        now = replace(own, state=reserved.before) if own.state is State.PUBLISHING and reserved.before else own
        return _write(found, own, now, *_deletes(found, rules.publishers(found.children)))

    return _if_own(reserved.task_id, reserved.token, change)


def _starting(key: str, task_id: str, late: bool, attachment: str) -> Decide:
    def change(found: DirectoryState, own: Reservation, session_id: int) -> Step:
        name = rules.worker(attachment, session_id)
        attached = Attached(key, task_id, own.token, attachment)
        if name in found.children:
            return Done(attached)
        child = Create(path=f"{found.path}/{name}", ephemeral=True)
        return _write(found, own, replace(own, state=State.STARTED, late=late), child, value=attached)

    return _if_own(task_id, "", change, otherwise=None)


def _leaving(attached: Attached, waits: bool) -> Decide:
    def change(found: DirectoryState, own: Reservation, session_id: int) -> Step:
        now = replace(own, state=State.QUEUED) if waits and own.state is State.STARTED else own
        return _write(found, own, now, *_deletes(found, _workers_of(attached, found)))

    return _if_own(attached.task_id, attached.token, change)


def _freeing(task_id: str, attached: Attached | None) -> Decide:
    def change(found: DirectoryState, own: Reservation, session_id: int) -> Step:
        mine = [] if attached is None else _workers_of(attached, found)
        if attached is not None and set(rules.workers(found.children)) - set(mine):
            # If the other worker is dead and only its session lasts, the task will not be delivered again.
            return _write(found, own, replace(own, late=False), *_deletes(found, mine))
        return _delete(found)

    return _if_own(task_id, "", change)


def _workers_of(attached: Attached, found: DirectoryState) -> list[str]:
    return [name for name in rules.workers(found.children) if name.startswith(attached.attachment)]


def _deletes(found: DirectoryState, children: Iterable[str]) -> tuple[Delete, ...]:
    return tuple(Delete(path=f"{found.path}/{name}") for name in children)


def _write(
    found: DirectoryState, own: Reservation, now: Reservation, *more: Create | Delete, value: object = True
) -> Step:
    """Return the step that makes the reservation `now`, together with `more`; nothing if there is nothing to do."""
    if now == own and not more:
        return Done(value)
    # Written even if it is the same: the new version makes a publisher fail that has read it before.
    data = SetData(path=found.path, data=now.encode(), version=found.version)
    return Commit((Check(path=f"{found.path}/{own.mark}"), data, *more), value)


def _delete(found: DirectoryState) -> Step:
    return Commit((*_deletes(found, found.children), Delete(path=found.path, version=found.version)), True)


def _path(key: str) -> str:
    return rules.place(conf.current().base, key)


# --- updates, on the caller's thread ----------------------------------------------------------------------------------


def _run(key: str, plan: Decide, deadline: float, *, guess: object = UNKNOWN) -> Any:
    """Run an update and return its value. After `deadline` seconds, give up and undo it."""
    update = OptimisticUpdate(process.current(), _path(key), plan, guess=guess, orphaned=_undo)
    try:
        return run(update, clock.now() + deadline)
    except StillThere as error:
        raise LockTimeout(
            f"Another publisher has been sending a task for {key!r} for {deadline:.1f} s. The outcome is unknown.",
            lock=key,
        ) from error
    except ZkLockError as error:
        error.lock = error.lock or key
        raise


def _undo(value: object) -> None:
    if isinstance(value, Reserved):
        withdraw(value, deadline=0)
    elif isinstance(value, Attached):
        leave(value, deadline=0)


def _complete(key: str, plan: Decide, deadline: float) -> bool:
    """Run an update, however long it takes. Wait for it for `deadline` seconds; tell whether it is done by then."""
    waiter: ThreadWaiter[bool] = ThreadWaiter()

    def done(outcome: object) -> None:
        if isinstance(outcome, Exception):
            logger.error("the reservation of %r could not be changed: %s", key, outcome)
        waiter.set(not isinstance(outcome, Exception))

    OptimisticUpdate(process.current(), _path(key), plan, done).start()
    return bool(waiter.wait(deadline)) if deadline > 0 else False
