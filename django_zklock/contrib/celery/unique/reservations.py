"""
Change reservations in ZooKeeper.

A publisher *reserves* the key, sends the message, and *concludes* whether it was sent. A worker *starts* the task. It
*ends* the reservation when the task no longer counts, or *detaches* from it if the task is delivered again. The next
publisher decides whether a reservation still counts (`Reservation.judge`).

All functions block until their timeout at most, also under an event loop, as sending a message does.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Final, TypeAlias

from django.http import HttpRequest

from django_zklock import conf
from django_zklock.contrib.celery.unique import record
from django_zklock.contrib.celery.unique.record import Reservation, State, Verdict
from django_zklock.core import clock
from django_zklock.core.execution import work
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.protocol.story import Story, StoryRun, drive
from django_zklock.core.queue.escaping import printable
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import CLOCK_NODE, DirectoryState, Gateway, Node
from django_zklock.core.zk.multi import Check, Create, Delete, SetData
from django_zklock.core.zk.session import Session
from django_zklock.decorators.context import AcquireAgain
from django_zklock.exceptions import LockTimeout, TooManyLocks, ZkLockError, ZooKeeperUnavailable
from django_zklock.http import requests
from django_zklock.locks.requests import (
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

logger = Logger("django_zklock.reservations")

SWEEP_EVERY: Final = 3600.0  # seconds between two searches of a worker for reservations that are dead
SWEEP_MOST: Final = 100  # reservations that one search reads
DEAD_FOR: Final = 24 * 3600.0  # seconds; the message of a younger one may still be with the broker
RESERVE_TIMEOUT: Final = 5.0  # seconds that a publisher waits for ZooKeeper, or for another publisher
REPLY_TIMEOUT: Final = 1.0  # seconds that other callers wait for the outcome; the update continues in the background
MAX_TEXT: Final = 200  # characters of each text about the publisher


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The key is reserved by this other task, which waits or runs."""

    task_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The caller's task has the key."""

    key: str
    task_id: str
    token: str
    before: State | None
    """The earlier state of the task, if it is sent again."""


@dataclass(frozen=True, slots=True)
class Attached:
    """This process runs the task of this key. `attachment` is a part of the name of its child of the reservation."""

    key: str
    task_id: str
    token: str
    attachment: str


def reserve(
    key: str,
    task_id: str,
    *,
    again: bool = False,
    late: bool = False,
    until: float | None = None,
    has_ended: Callable[[str], bool] | None = None,
    timeout: float = RESERVE_TIMEOUT,
) -> Reserved | Duplicate:
    """
    Reserve the key for this task, before its message is sent. Returns a `Duplicate` if another task has the key.

    A reservation that no longer counts is replaced. While another publisher sends its message, this waits to see
    whether that succeeds.

    Args:
        key: the key of a lock, or several keys joined by slashes.
        task_id: of the task.
        again: whether the task is sent again, and keeps its key. A new call with the same id is a duplicate.
        late: whether the broker delivers the task again if its worker dies.
        until: when the reservation ends if no process runs the task, in seconds since 1970; None: never.
        has_ended: called with the id of the task that has the key, in the calling thread. True if that task has ended,
            whatever its reservation says.
        timeout: seconds to wait at most.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer. Nothing is reserved, or it will be withdrawn.
        LockTimeout: another publisher did not finish in time, so the outcome for its task is unknown.

    """
    ended_token = ""  # of a reservation whose task has ended
    deadline = clock.now() + timeout
    while True:
        new = Reservation(
            task_id=task_id,
            token=str(uuid.uuid4()),
            state=State.PUBLISHING,
            late=late,
            until=until,
            host=printable(socket.gethostname(), MAX_TEXT),
            pid=os.getpid(),
            what=printable(_current_work(), MAX_TEXT),
        )
        outcome: Reserved | Duplicate = _run(
            key, _reserving(key, new, ended_token, again=again), deadline - clock.now(), guess=None
        )
        if isinstance(outcome, Reserved) or has_ended is None:
            return outcome
        if outcome.token == ended_token or not has_ended(outcome.task_id):
            return outcome
        ended_token = outcome.token


def _current_work() -> str:
    """Return what this thread runs: a task, a view or a command; never its arguments, which may be secrets."""
    current = work.current()
    if current is not None:
        return current.what
    # A view that has no lock says nowhere that it runs. A middleware would cost each request; this costs the publisher.
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("_get_response", "_get_response_async"):  # of Django's handler
            request = frame.f_locals.get("request")
            if isinstance(request, HttpRequest):
                return requests.route(request)
        frame = frame.f_back
    program, *arguments = sys.argv or [""]
    name = os.path.basename(program) or "python"
    return " ".join([name, *arguments[:1]]) if name in ("manage.py", "django-admin") else name


@contextmanager
def confirmed(reserved: Reserved) -> Iterator[None]:
    """Keep the reservation if the block has sent the message, or the task waits here; withdraw it if it raises."""
    try:
        yield
    except BaseException as error:
        conclude(reserved, sent=isinstance(error, AcquireAgain))
        raise
    conclude(reserved, sent=True)


def conclude(reserved: Reserved, *, sent: bool, reply_timeout: float = REPLY_TIMEOUT) -> None:
    """
    Record whether the message was sent; in the background if ZooKeeper does not answer in time.

    If it was not, the key is free, or its task is in its earlier state again.
    """

    def change(node: DirectoryState, own: Reservation, session_id: int) -> Step:
        state = State.QUEUED if sent else reserved.before
        if own.state is not State.PUBLISHING:
            state = own.state  # a worker has already started the task
        if state is None:
            return deletion(node)
        return _write(node, own, replace(own, state=state), *_deletes(node, record.publishers(node.children)))

    _complete(reserved.key, _if_own(reserved.task_id, reserved.token, change), reply_timeout)


def start(key: str, task_id: str, *, late: bool = False, reply_timeout: float = REPLY_TIMEOUT) -> Attached | None:
    """
    Record that this process runs the task. Returns None if the task does not have the key, or ZooKeeper is away.

    From then on the reservation counts for as long as the session of this process lives.
    """
    attachment = str(uuid.uuid4())

    def change(node: DirectoryState, own: Reservation, session_id: int) -> Step:
        name = record.worker(attachment, session_id)
        attached = Attached(key, task_id, own.token, attachment)
        if name in node.children:
            return Done(attached)
        child = Create(path=f"{node.path}/{name}", ephemeral=True)
        return _write(node, own, replace(own, state=State.STARTED, late=late), child, value=attached)

    try:
        attached: Attached | None = _run(key, _if_own(task_id, "", change, otherwise=None), reply_timeout)
    except ZooKeeperUnavailable as error:
        logger.warning("the start of task %r was not recorded in its reservation %r: %s", task_id, key, error)
        return None
    return attached


def detach(attached: Attached, *, waits: bool = False, reply_timeout: float = REPLY_TIMEOUT) -> None:
    """Record that this process no longer runs the task; with `waits`, that its message is in the broker again."""

    def change(node: DirectoryState, own: Reservation, session_id: int) -> Step:
        new = replace(own, state=State.QUEUED) if waits and own.state is State.STARTED else own
        return _write(node, own, new, *_deletes(node, record.workers(node.children, attached.attachment)))

    _complete(attached.key, _if_own(attached.task_id, attached.token, change), reply_timeout)


def end(
    key: str, task_id: str, *, attached: Attached | None = None, reply_timeout: float = REPLY_TIMEOUT
) -> Exception | None:
    """
    End the reservation of a task that no longer counts; harmless if the task does not have the key.

    It ends even if another worker is attached: after a redelivery, the first worker may be dead, and its session may
    not have expired yet. With `attached`, the caller is a worker that has done nothing. Then another attached worker
    keeps the key for as long as it lives. Returns None if it is done in time. Else it returns why not: ZooKeeper has
    refused it, or it continues in the background.
    """

    def change(node: DirectoryState, own: Reservation, session_id: int) -> Step:
        mine = [] if attached is None else record.workers(node.children, attached.attachment)
        if attached is not None and set(record.workers(node.children)) - set(mine):
            # If the other worker is dead and only its session lasts, the task will not be delivered again.
            return _write(node, own, replace(own, late=False), *_deletes(node, mine))
        return deletion(node)

    return _complete(key, _if_own(task_id, "", change), reply_timeout)


def sweep(session: Session) -> None:
    """
    Delete reservations whose keys nobody uses again, now and each hour. On the protocol's thread.

    It reads some of all at random, and deletes those that are dead and older than a day, by ZooKeeper's clock.
    """
    session.loop.call_later(SWEEP_EVERY, partial(sweep, session))
    StoryRun(session, partial(_sweep, session)).begin()


def _sweep(session: Session) -> Story[None]:
    gateway, directory = session.gateway, record.directory(session.options.base)
    with suppress(ZkError):
        yield partial(gateway.sync_clock, f"{directory}/{CLOCK_NODE}")
    names: list[str] = yield partial(gateway.children, directory)
    for name in random.sample(names, min(len(names), SWEEP_MOST)):
        drive(_delete_if_dead(gateway, f"{directory}/{name}"))


def _delete_if_dead(gateway: Gateway, path: str) -> Story[None]:
    node: DirectoryState | None = yield partial(gateway.read_directory, path)
    if node is None:
        return
    reservation, before = Reservation.decode(node.data), (gateway.clock.now() or 0.0) - DEAD_FOR
    mark: Node = yield partial(gateway.read, f"{path}/{reservation.mark}")
    if mark.ctime < before and reservation.judge(node.children, before) is Verdict.DEAD:
        gateway.commit(deletion(node).operations)


# --- steps of an update, on the protocol's thread ---------------------------------------------------------------------


def _reserving(key: str, new: Reservation, ended_token: str, *, again: bool) -> Decide:
    """Return the plan of a publisher. It may run again after a lost reply, so it remembers the task's earlier state."""
    before: State | None = None

    def decide(node: DirectoryState | None, session_id: int) -> Step:
        nonlocal before
        path = _path(key)
        name = record.publisher(new.token, session_id)
        created = Create(path=f"{path}/{new.mark}"), Create(path=f"{path}/{name}", ephemeral=True)
        if node is None:
            reserved = Reserved(key, new.task_id, new.token, before)
            return Commit((Create(path=path, data=new.encode()), *created), reserved)
        current = Reservation.decode(node.data)
        if current.token == new.token or (again and current.task_id == new.task_id):
            if current.state is not State.PUBLISHING:
                before = current.state
            reserved = Reserved(key, new.task_id, current.token, before)
            if current.state is State.PUBLISHING and name in node.children:
                return Done(reserved)
            renewed = replace(current, state=State.PUBLISHING, until=new.until)
            return _write(node, current, renewed, created[1], value=reserved)
        verdict = Verdict.DEAD if current.token == ended_token else current.judge(node.children, time.time())
        if verdict is Verdict.SENDING:
            return WaitUntilGone(record.publishers(node.children)[0])
        if verdict is Verdict.LIVE:
            return Done(Duplicate(current.task_id, current.token))
        data = SetData(path=path, data=new.encode(), version=node.version)
        reserved = Reserved(key, new.task_id, new.token, before)
        return Commit((*_deletes(node, node.children), data, *created), reserved)

    return decide


_Change: TypeAlias = Callable[[DirectoryState, Reservation, int], Step]


def _if_own(task_id: str, token: str, change: _Change, *, otherwise: object = True) -> Decide:
    """Return a plan: `change` the reservation if this task has it, with this token if one is given."""

    def decide(node: DirectoryState | None, session_id: int) -> Step:
        own = None if node is None else Reservation.decode(node.data)
        if node is None or own is None or own.task_id != task_id or token not in ("", own.token):
            return Done(otherwise)
        return change(node, own, session_id)

    return decide


def _deletes(node: DirectoryState, children: Iterable[str]) -> tuple[Delete, ...]:
    return tuple(Delete(path=f"{node.path}/{name}") for name in children)


def _write(
    node: DirectoryState, own: Reservation, new: Reservation, *operations: Create | Delete, value: object = True
) -> Step:
    """Return the step that replaces `own` by `new`, with these operations; `Done` if nothing changes."""
    if new == own and not operations:
        return Done(value)
    # Written even if `new` equals `own`: a publisher that has read the old version must fail.
    data = SetData(path=node.path, data=new.encode(), version=node.version)
    return Commit((Check(path=f"{node.path}/{own.mark}"), data, *operations), value)


def deletion(node: DirectoryState) -> Commit:
    """Return the step that deletes a reservation."""
    return Commit((*_deletes(node, node.children), Delete(path=node.path, version=node.version)), True)


class _Update(OptimisticUpdate):
    """An update that registers this session's children of the reservation: they are ephemeral, so they count."""

    _paths = frozenset[str]()  # of these children, as last read, or after the transaction under way

    def _step(self, state: DirectoryState | None) -> Step:
        ends = tuple(name("", self.session.session_id or 0) for name in (record.publisher, record.worker))
        children = () if state is None else state.children
        self._paths = frozenset(f"{self._path}/{name}" for name in children if name.endswith(ends))
        step = super()._step(state)
        if isinstance(step, Commit):
            created = {change.path for change in step.operations if isinstance(change, Create) and change.ephemeral}
            if created:
                self.session.attached(Registry).add(self._path, *self._paths, *created)
            deleted = {change.path for change in step.operations if isinstance(change, Delete)}
            self._paths = (self._paths - deleted) | created
        return step

    def conclude(self, outcome: Any) -> None:
        registry = self.session.attached(Registry)
        registry.discard(self._path)
        if self._paths and not isinstance(outcome, Exception):
            with suppress(TooManyLocks):  # it was carried out all the same
                registry.add(self._path, *self._paths)
        super().conclude(outcome)


# --- updates, on the caller's thread ----------------------------------------------------------------------------------


def _run(key: str, plan: Decide, timeout: float, *, guess: object = UNKNOWN) -> Any:
    """Run an update and return its value. After `timeout` seconds, give up and undo it."""
    update = _Update(process.current(), _path(key), plan, guess=guess, orphaned=_undo)
    try:
        return run(update, clock.now() + timeout)
    except StillThere as error:
        raise LockTimeout(
            f"Another publisher has been sending a task for {key!r} for {timeout:.1f} s. The outcome is unknown.",
            lock=key,
        ) from error
    except ZkLockError as error:
        error.lock = error.lock or key
        raise


def _undo(value: object) -> None:
    if isinstance(value, Reserved):
        conclude(value, sent=False, reply_timeout=0)
    elif isinstance(value, Attached):
        detach(value, reply_timeout=0)


def _complete(key: str, plan: Decide, reply_timeout: float) -> Exception | None:
    """Run an update, however long it takes. Return why it was not done within `reply_timeout` seconds, or None."""
    session, waiter = process.current(), ThreadWaiter[tuple[object]]()

    def done(outcome: object) -> None:
        if isinstance(outcome, Exception):
            logger.error("the reservation of %r could not be changed: %s", key, outcome)
        waiter.set((outcome,))

    _Update(session, _path(key), plan, done).start()
    outcomes = waiter.wait(reply_timeout) if reply_timeout > 0 else None
    (outcome,) = outcomes or (ZooKeeperUnavailable(session.explain(reply_timeout), lock=key),)
    return outcome if isinstance(outcome, Exception) else None


def _path(key: str) -> str:
    return record.path_of(conf.current().base, key)
