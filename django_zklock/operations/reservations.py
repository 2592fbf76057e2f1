"""
Knows how a task gets to be the only one of its key between its publishing and its end; knows nothing of Celery.

A publisher *reserves* the key and sends the message; then it *confirms*, or *withdraws* what could not be sent. A
worker *starts* the task, and *frees* the key at the moment the task no longer counts, or *leaves* it to the next
delivery. The rules by which a reservation counts are in `queue.reservations`: they are applied by the next publisher,
and by nobody else.

All functions block for `deadline` seconds at most, also under an event loop, as sending a message does.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django_zklock import conf
from django_zklock.exceptions import LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.queue import reservations as rules
from django_zklock.queue.reservations import Reservation, State, Verdict
from django_zklock.zk import process
from django_zklock.zk.gateway import DirectoryState
from django_zklock.zk.multi import Check, Create, Delete, Operation, SetData
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

DEADLINE = 5.0  # seconds that a publisher waits for ZooKeeper, or for another publisher to be done
PATIENCE = 1.0  # seconds that others wait to hear what came of it; it goes on in the background

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniqueness:
    """How a task wants to be unique."""

    done: bool = False
    """Until it is done; else until it starts."""
    on_duplicate: str = "return"
    """What a caller gets who is not the first: "return" the first one's result, or "raise"."""
    seconds: float | None = None
    """How long a reservation counts with nobody behind it; None: until it is freed."""

    @classmethod
    def given(
        cls, unique: str | None, on_duplicate: str | None, unique_for: float | timedelta | None
    ) -> Uniqueness | None:
        """Return what the options of a decorator mean, None if they ask for nothing; raise `ValueError`."""
        if unique is None:
            if on_duplicate is not None or unique_for is not None:
                raise ValueError(
                    'on_duplicate and unique_for mean nothing without unique="until_start" or "until_done".'
                )
            return None
        if unique not in ("until_start", "until_done"):
            raise ValueError(f'unique is "until_start" or "until_done", not {unique!r}.')
        if on_duplicate not in (None, "return", "raise"):
            raise ValueError(f'on_duplicate is "return" or "raise", not {on_duplicate!r}.')
        seconds: Any = unique_for.total_seconds() if isinstance(unique_for, timedelta) else unique_for
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf")
        ):
            raise ValueError(f"unique_for is a number of seconds above 0, or a timedelta, not {unique_for!r}.")
        return cls(done=unique == "until_done", on_duplicate=on_duplicate or "return", seconds=seconds)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The key is this task's; its message may be sent, and then has to be confirmed or withdrawn."""

    key: str
    task_id: str
    token: str
    before: State | None
    """Where the task was before, if it is published again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The key is another task's, which waits or runs."""

    key: str
    task_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Attached:
    """A worker of this process is behind the task of this key."""

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
    Make this task the one of its key, before its message is sent; or learn which one is.

    A task that has the key passes, as it does when it is published again. A reservation that counts no more is
    taken over. While another publisher is at it, this waits to see whether that one fails.

    Args:
        key: any text that is a key of a lock, or some of them joined by slashes.
        task_id: of the task; two tasks never have one id.
        late: whether the broker delivers the task again if its worker dies.
        until: when the reservation counts no more if nobody is behind it, in seconds since 1970; None: never.
        is_over: asked with the id of the task that has the key, in the calling thread; True if it has ended for
            good, whatever its reservation says.
        deadline: seconds to wait at most.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer. Nothing is reserved, or what is will be withdrawn.
        LockTimeout: another publisher had not come to an end in time, so nobody can tell what will come of its task.

    """
    over: str | None = None
    latest = time.monotonic() + deadline
    while True:
        entry = _Entry(key, task_id, late=late, until=until, over=over)
        found: Reserved | Taken = _run(key, entry.plan, latest - time.monotonic(), guess=None, orphaned=_withdraw_later)
        if isinstance(found, Reserved) or is_over is None or found.token == over or not is_over(found.task_id):
            return found
        over = found.token


def confirm(reserved: Reserved, *, deadline: float = PATIENCE) -> None:
    """Say that the message was sent; if ZooKeeper does not answer in time, it is said as soon as it does."""
    _see_to(reserved.key, partial(_confirm, reserved), deadline)


def withdraw(reserved: Reserved, *, deadline: float = PATIENCE) -> None:
    """Say that the message was not sent: the key is free, or in the state it was in before."""
    _see_to(reserved.key, partial(_withdraw, reserved), deadline)


def start(key: str, task_id: str, *, late: bool = False, deadline: float = PATIENCE) -> Attached | None:
    """
    Say that this process has begun with the task; None if it does not have the key, or ZooKeeper does not answer.

    From now on the reservation counts for as long as the session of this process lives.
    """
    attachment = str(uuid.uuid4())
    plan = partial(_start, key, task_id, late, attachment)
    try:
        found: Attached | None = _run(key, plan, deadline, orphaned=_leave_later)
    except ZooKeeperUnavailable as error:
        logger.warning("the start of task %s could not be told, as others of %r will see: %s", task_id, key, error)
        return None
    return found


def leave(attached: Attached, *, waits: bool = False, deadline: float = PATIENCE) -> None:
    """Say that this process does no more with the task; with `waits`, that a message of it waits again."""
    _see_to(attached.key, partial(_leave, attached, waits), deadline)


def free(key: str, task_id: str, *, attached: Attached | None = None, deadline: float = PATIENCE) -> bool:
    """
    Free the key of a task that no longer counts; harmless if it does not have it.

    It is the end of the task, whoever is behind it: of a redelivered one, there may be the dead first worker whose
    session lasts. With `attached`, it is the word of a worker that did nothing, as another one may be at the same
    task: then the key stays that one's, for as long as it lives. True if it is known to be done; else it is done as
    soon as ZooKeeper answers.
    """
    return _see_to(key, partial(_free, key, task_id, attached), deadline)


def holder(key: str, *, deadline: float = PATIENCE) -> str | None:
    """Return the id of the task that has the key now, by the rules of the next publisher; None if none has."""
    found: str | None = _run(key, _holder, deadline)
    return found


# --- the plans: on the protocol's thread ------------------------------------------------------------------------------


class _Entry:
    """The plan of one publisher; its state is what it has to know again after a lost answer."""

    def __init__(self, key: str, task_id: str, *, late: bool, until: float | None, over: str | None) -> None:
        self._key = key
        self._path = _path(key)
        self._mine = Reservation(
            task_id=task_id, token=str(uuid.uuid4()), state=State.PUBLISHING, late=late, until=until
        )
        self._over = over
        self._before: State | None = None

    def plan(self, found: DirectoryState | None, session_id: int) -> Step:
        child = Create(path=f"{self._path}/{rules.publisher(self._mine.token, session_id)}", ephemeral=True)
        if found is None:
            node = Create(path=self._path, data=self._mine.encode())
            return Commit((node, self._mark(), child), self._reserved(self._mine.token))
        theirs = Reservation.decode(found.data)
        if theirs.task_id == self._mine.task_id:
            return self._again(found, theirs, session_id)
        verdict = Verdict.DEAD if theirs.token == self._over else rules.judge(theirs, found.children, time.time())
        if verdict is Verdict.SENDING:
            return WaitUntilGone(rules.publishers(found.children)[0])
        if verdict is Verdict.LIVE:
            return Done(Taken(self._key, theirs.task_id, theirs.token))
        node_now = SetData(path=self._path, data=self._mine.encode(), version=found.version)
        return Commit(
            (*_removed(found, found.children), node_now, self._mark(), child), self._reserved(self._mine.token)
        )

    def _again(self, found: DirectoryState, own: Reservation, session_id: int) -> Step:
        name = rules.publisher(self._mine.token, session_id)
        now = replace(own, state=State.PUBLISHING, until=self._mine.until)
        if own.state is State.PUBLISHING and name in found.children:
            return Done(self._reserved(own.token))
        if own.state is not State.PUBLISHING:
            self._before = own.state
        return Commit(
            (
                Check(path=f"{self._path}/{own.mark}"),
                SetData(path=self._path, data=now.encode(), version=found.version),
                Create(path=f"{self._path}/{name}", ephemeral=True),
            ),
            self._reserved(own.token),
        )

    def _mark(self) -> Create:
        return Create(path=f"{self._path}/{self._mine.mark}")

    def _reserved(self, token: str) -> Reserved:
        return Reserved(self._key, self._mine.task_id, token, self._before)


def _confirm(reserved: Reserved, found: DirectoryState | None, session_id: int) -> Step:
    own = _own(found, reserved.token)
    if found is None or own is None:
        return Done(True)  # the worker was faster, to the end of the task
    leaving = _removed(found, rules.publishers(found.children))
    if own.state is State.PUBLISHING:
        return _rewrite(found, replace(own, state=State.QUEUED), leaving)
    return Commit(leaving, True) if leaving else Done(True)


def _withdraw(reserved: Reserved, found: DirectoryState | None, session_id: int) -> Step:
    own = _own(found, reserved.token)
    if found is None or own is None:
        return Done(True)
    if own.state is State.PUBLISHING and reserved.before is None:
        return _all_gone(found)
    leaving = _removed(found, rules.publishers(found.children))
    if own.state is State.PUBLISHING and reserved.before is not None:
        return _rewrite(found, replace(own, state=reserved.before), leaving)
    return Commit(leaving, True) if leaving else Done(True)


def _start(key: str, task_id: str, late: bool, attachment: str, found: DirectoryState | None, session_id: int) -> Step:
    own = None if found is None else Reservation.decode(found.data)
    if found is None or own is None or own.task_id != task_id:
        return Done(None)
    name = rules.worker(attachment, session_id)
    attached = Attached(key, task_id, own.token, attachment)
    if name in found.children:
        return Done(attached)
    me = Create(path=f"{found.path}/{name}", ephemeral=True)
    return _rewrite(found, replace(own, state=State.STARTED, late=late), (me,), attached)


def _leave(attached: Attached, waits: bool, found: DirectoryState | None, session_id: int) -> Step:
    own = _own(found, attached.token)
    if found is None or own is None:
        return Done(True)
    leaving = _removed(found, _of(attached, found))
    if waits and own.state is State.STARTED:
        return _rewrite(found, replace(own, state=State.QUEUED), leaving)
    return Commit(leaving, True) if leaving else Done(True)


def _free(key: str, task_id: str, attached: Attached | None, found: DirectoryState | None, session_id: int) -> Step:
    own = None if found is None else Reservation.decode(found.data)
    if found is None or own is None or own.task_id != task_id:
        return Done(True)
    if attached is not None:
        mine = _of(attached, found)
        if set(rules.workers(found.children)) - set(mine):
            # If it is dead, and only its session lasts, nobody else will come.
            return _rewrite(found, replace(own, late=False), _removed(found, mine))
    return _all_gone(found)


def _holder(found: DirectoryState | None, session_id: int) -> Step:
    if found is None:
        return Done(None)
    theirs = Reservation.decode(found.data)
    dead = rules.judge(theirs, found.children, time.time()) is Verdict.DEAD
    return Done(None if dead else theirs.task_id)


def _own(found: DirectoryState | None, token: str) -> Reservation | None:
    own = None if found is None else Reservation.decode(found.data)
    return own if own is not None and own.token == token else None


def _of(attached: Attached, found: DirectoryState) -> list[str]:
    return [name for name in rules.workers(found.children) if name.startswith(attached.attachment)]


def _removed(found: DirectoryState, children: Iterable[str]) -> tuple[Operation, ...]:
    return tuple(Delete(path=f"{found.path}/{name}") for name in children)


def _rewrite(found: DirectoryState, now: Reservation, more: tuple[Operation, ...], value: object = True) -> Step:
    put = SetData(path=found.path, data=now.encode(), version=found.version)
    return Commit((Check(path=f"{found.path}/{now.mark}"), put, *more), value)


def _all_gone(found: DirectoryState) -> Step:
    return Commit((*_removed(found, found.children), Delete(path=found.path, version=found.version)), True)


def _path(key: str) -> str:
    return rules.place(conf.current().base, key)


# --- the synchronous face ---------------------------------------------------------------------------------------------


def _run(
    key: str,
    plan: Decide,
    deadline: float,
    *,
    guess: object = UNKNOWN,
    orphaned: Callable[[Any], object] | None = None,
) -> Any:
    """Run an update and return its value; give up after `deadline` seconds."""
    session = process.current()
    update = OptimisticUpdate(session, _path(key), plan, guess=guess, orphaned=orphaned)
    try:
        return run(update, time.monotonic() + deadline)
    except StillThere as error:
        raise LockTimeout(
            f"Another publisher has been sending a task for {key!r} for {deadline:.1f} s, and nobody can tell what "
            "will come of it.",
            lock=key,
        ) from error
    except ZkLockError as error:
        error.lock = error.lock or key
        raise


def _see_to(key: str, plan: Decide, deadline: float) -> bool:
    """Have a plan followed, however long it takes; wait for it for `deadline` seconds, and tell whether it is done."""
    waiter: ThreadWaiter[bool] = ThreadWaiter()

    def done(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            logger.error("the reservation of %r stays as it is: %s", key, outcome)
        waiter.set(not isinstance(outcome, Exception))

    OptimisticUpdate(process.current(), _path(key), plan, done).start()
    return bool(waiter.wait(deadline)) if deadline > 0 else False


def _withdraw_later(value: Any) -> None:
    if isinstance(value, Reserved):
        _see_to(value.key, partial(_withdraw, value), 0)


def _leave_later(value: Any) -> None:
    if isinstance(value, Attached):
        _see_to(value.key, partial(_leave, value, False), 0)
