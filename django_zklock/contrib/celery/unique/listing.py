"""
Read the reservations of unique tasks in a few round trips, and delete one for an operator.

For the admin, `manage.py zklock` and `queued`. Their texts are in the language of the page.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock import conf
from django_zklock.contrib.celery.unique import record
from django_zklock.contrib.celery.unique.record import Reservation, State, Verdict
from django_zklock.contrib.celery.unique.reservations import deletion
from django_zklock.core import clock
from django_zklock.core.queue.command_line import command
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import DirectoryState, NamesReply, Node, to_datetime
from django_zklock.exceptions import LockChangedHands, UnreadableQueue, ZooKeeperUnavailable
from django_zklock.locks.arguments import check_no_running_loop, check_seconds
from django_zklock.locks.requests import Done, OptimisticUpdate, Step, call, run
from django_zklock.names.template import unescape
from django_zklock.operations.audit import check_by, check_reason, record_action
from django_zklock.operations.client import Ask
from django_zklock.report.formatting import clean, host_and_pid, keys_text, time_text

MAX_READ: Final = 1000
"""Reservations that one call reads. The names of all are searched."""

MAX_DEAD: Final = 5  # dead reservations that the doctor names
HEAD: Final = ("task", "lock", "state", "since", "sent by", "task id", "key")
DELETED: Final = "Deleted. The next call sends the task.", "If the message still exists, the task may run twice."

ReservationState: TypeAlias = Literal["publishing", "queued", "started", "dead", "unreadable"]
"""
The state that the next call of the task meets. It sends the task only if the reservation is "dead".

"publishing": a process is sending the task. "queued": its message is with the broker. "started": a worker has begun.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationInfo:
    """The reservation of a unique task, or of a task that waits for its lock with `on_conflict="coalesce"`."""

    key: str
    """The key of the reservation, which has the kind, the task and the lock."""
    task: str
    """The name of the task."""
    lock: str
    """The key of its lock; of several locks, their keys joined by slashes."""
    waits: bool
    """Whether it is that of a task that waits, with "coalesce"."""
    task_id: str
    """The id of the task that has the key; empty if the reservation cannot be read."""
    state: ReservationState
    why: str = ""
    """Why it is dead or cannot be read, or what is special about its state."""
    since: datetime | None = None
    """When it was made, by ZooKeeper's clock. None if that is not known."""
    until: float | None = None
    """When it ends if no worker runs the task, in seconds since 1970; None: never."""
    host: str = ""
    """The host that has sent the task; empty if an older release has sent it."""
    pid: int = 0
    what: str = ""
    """The view, task or command that has sent the task."""
    token: str = ""
    """Identifies this reservation among those that follow each other under the key."""
    path: str = ""

    @property
    def by(self) -> str:
        """Host, process and work of the sender; empty if they are not known."""
        return " · ".join(filter(None, (host_and_pid(self.host, self.pid), clean(self.what)))) if self.host else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """The reservations that were asked for, in the order of their keys."""

    shown: tuple[ReservationInfo, ...] = ()
    matching: int = 0
    """The number of those that were asked for. The first ones of them are shown."""
    total: int = 0
    problem: str = ""
    """Why there may be more; empty if this is all."""


def read(words: str = "", *, lock: str | None = None, reply_timeout: float, most: int = MAX_READ) -> Reservations:
    """
    Return the reservations whose keys contain all words, or those of a lock.

    The names of all are searched; at most `most` are read, together. Never raises because ZooKeeper does not answer:
    then `problem` says so.
    """
    ask, directory = _asking(reply_timeout), record.directory(conf.current().base)
    wanted = words.casefold().split()
    names: list[str] = []
    selected: list[str] = []
    try:
        reply: NamesReply = ask(lambda gateway, done: gateway.children(directory, done))
        if isinstance(reply, ZkError):
            return Reservations(problem="" if isinstance(reply, NodeMissing) else str(reply))
        names = sorted(reply)
        for name in names:
            key = record.key_of(name)
            text = f"{key} {unescape(key)}".casefold()
            if lock in (None, _parts(key)[2]) and all(word in text for word in wanted):
                selected.append(name)
        shown = _read_all(ask, directory, selected[:most])
    except ZooKeeperUnavailable as error:
        return Reservations(matching=len(selected), total=len(names), problem=str(error))
    return Reservations(shown=tuple(shown), matching=len(selected), total=len(names))


def read_one(key: str, *, reply_timeout: float) -> ReservationInfo | None:
    """Return the reservation with this key, if there is one. Raises `ZooKeeperUnavailable`."""
    directory, _slash, name = record.path_of(conf.current().base, key).rpartition("/")
    return next(iter(_read_all(_asking(reply_timeout), directory, [name])), None)


def of_key(key: str, *, reply_timeout: float) -> tuple[ReservationInfo, ...]:
    """Return the reservation with this key, else those of the lock with this key. Raises `ZooKeeperUnavailable`."""
    info = read_one(key, reply_timeout=reply_timeout) if record.is_key(key) else None
    if info is not None:
        return (info,)
    listed = read(lock=key, reply_timeout=reply_timeout)
    if listed.problem:
        raise ZooKeeperUnavailable(listed.problem, lock=key)
    return listed.shown


def delete(info: ReservationInfo, *, reason: str, by: str, reply_timeout: float = 5.0) -> None:
    """
    Delete this reservation, so that the next call sends the task. If the message still exists, it may run twice.

    A reservation that has followed it under the key stays. The deletion is written to the log `zklock.audit`.

    Raises:
        LockChangedHands: the reservation is gone: its task has ended, or another one has the key.
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, it may be deleted.
        ValueError: `reason` or `by` is empty.

    """
    check_no_running_loop("delete", "await sync_to_async(delete)(...)")
    by, reason = check_by(by), check_reason(reason)
    check_seconds("reply_timeout", reply_timeout)
    tried = False

    def decide(node: DirectoryState | None, session_id: int) -> Step:
        nonlocal tried
        if node is None or _token_of(node.data) != info.token:
            return Done(tried)  # if it is gone after a try, only the reply was lost
        tried = True
        return deletion(node)

    who = f"task {info.task} {info.task_id} ({info.state}{f'; sent by {info.by}' if info.by else ''})"
    record_deletion = partial(record_action, "reservation deleted", info.lock, by, reason, who=who)
    try:
        done = run(OptimisticUpdate(process.current(), info.path, decide), clock.now() + reply_timeout)
    except ZooKeeperUnavailable:
        if tried:
            record_deletion(sure=False)
        raise
    if not done:
        raise LockChangedHands(
            f"The reservation {info.key!r} is no longer that of task {info.task_id}: the task has ended, or another "
            "one has the key.",
            lock=info.lock,
        )
    record_deletion()


# --- texts ------------------------------------------------------------------------------------------------------------


def sentence(info: ReservationInfo) -> str:
    """Return for an operator which task has the reservation, since when and by whom."""
    if info.state == "unreadable":
        return _("The reservation of task %(task)s cannot be read, so the task is not sent.") % {"task": info.task}
    texts = {
        "publishing": _("Task %(task)s is being sent for it since %(since)s"),
        "queued": _("Task %(task)s is queued for it since %(since)s"),
        "started": _("Task %(task)s has started; it was queued for it at %(since)s"),
        "dead": _("The reservation of task %(task)s of %(since)s is dead: the next call sends it"),
    }
    text = texts[info.state] % {"task": clean(info.task), "since": since_text(info)}
    return _("%(text)s, by %(by)s.") % {"text": text, "by": info.by} if info.by else f"{text}."


def found_text(count: int) -> str:
    """Return how many reservations a search finds."""
    text = ngettext(
        "%(count)d reservation of a unique task has these words.",
        "%(count)d reservations of unique tasks have these words.",
        count,
    )
    return text % {"count": count}


def since_text(info: ReservationInfo) -> str:
    """Return when a reservation was made."""
    return time_text(info.since) if info.since is not None else "?"


def findings(listed: Reservations) -> list[tuple[str, str]]:
    """Return the results and texts of the checks of the doctor."""
    unreadable = [info.key for info in listed.shown if info.state == "unreadable"]
    checks = [("error", f"{key}: cannot be read, so this task is not sent") for key in unreadable]
    if listed.total or listed.problem:
        part = f"{len(listed.shown)} of them were read." if len(listed.shown) < listed.matching else ""
        checks.append(("info", " ".join(filter(None, (f"{listed.total} of unique tasks.", part, listed.problem)))))
    dead = [info.key for info in listed.shown if info.state == "dead"]
    if dead:
        checks.append(("info", f"dead, so the next publisher takes it over: {keys_text(dead, MAX_DEAD)}"))
    return checks


def cells(info: ReservationInfo) -> tuple[str, ...]:
    """Return a row of a table with `HEAD`."""
    return info.task, info.lock, info.state, since_text(info), info.by, info.task_id, info.key


def lines(info: ReservationInfo) -> list[str]:
    """Return in lines what a person wants to know of a reservation, and the next command."""
    until = f"It ends at {time_text(to_datetime(info.until))} if no worker runs the task." if info.until else ""
    texts = [info.key, sentence(info), f"Task id: {info.task_id}", info.why, until]
    delete = command("unique delete", info.key, task_id=info.task_id or None, reason="")
    risk = "If its message is lost, delete it. If the message still exists, the task may run twice."
    return [*filter(None, texts), risk, f"Next: {delete}"]


def to_json(info: ReservationInfo) -> dict[str, Any]:
    """Return the fields of a reservation for JSON. Its times are in UTC, and what is absent is null."""
    times = {"since": info.since, "until": to_datetime(info.until) if info.until else None}
    written = {name: time and time.isoformat() for name, time in times.items()}
    known = {**asdict(info), **written, "pid": info.pid or None}
    return {name: None if value == "" else value for name, value in known.items()}


# --- reading ----------------------------------------------------------------------------------------------------------


def _asking(reply_timeout: float) -> Callable[[Ask], Any]:
    """Return a function that sends a request and returns the reply, until this time is over."""
    return partial(call, process.current(), deadline=clock.now() + reply_timeout)


def _read_all(ask: Callable[[Ask], Any], directory: str, names: Sequence[str]) -> list[ReservationInfo]:
    """Return the reservations with these names that exist: one round trip for them, and one for their times."""
    states = _states(ask, directory, names)
    dead = [name for name, node in states.items() if _state(node)[0] == "dead"]
    # Data and children are read one after the other. A change in between may make a live one look dead, but not twice.
    own = {name: node for name, node in states.items() if name not in dead}
    own |= _states(ask, directory, dead)
    marks = {name: f"{node.path}/{_token_of(node.data)}-token" for name, node in own.items()}
    times = ask(lambda gateway, done: gateway.read_all([*marks.values()], done))
    if isinstance(times, ZkError):
        raise times
    return [_info(name, own[name], times.get(marks[name])) for name in names if name in own]


def _states(ask: Callable[[Ask], Any], directory: str, names: Sequence[str]) -> dict[str, DirectoryState]:
    """Return by name the znodes that exist, with their children. Raises what ZooKeeper answers instead."""
    if not names:
        return {}
    paths = [f"{directory}/{name}" for name in names]
    replies = ask(lambda gateway, done: gateway.read_directories(paths, done))
    states: dict[str, DirectoryState] = {}
    for name, reply in zip(names, replies, strict=True):
        if isinstance(reply, ZkError):
            raise reply
        if reply is not None:
            states[name] = reply
    return states


def _info(name: str, node: DirectoryState, mark: Node | None) -> ReservationInfo:
    key = record.key_of(name)
    kind, task, lock = _parts(key)
    state, why, own = _state(node)
    return ReservationInfo(
        key=key,
        task=task,
        lock=lock,
        waits=kind == "waiting",
        task_id="" if own is None else clean(own.task_id),
        state=state,
        why=why,
        since=None if mark is None else to_datetime(mark.ctime),
        until=None if own is None else own.until,
        host="" if own is None else clean(own.host),
        pid=0 if own is None else own.pid,
        what="" if own is None else clean(own.what),
        token=_token_of(node.data),
        path=node.path,
    )


def _state(node: DirectoryState) -> tuple[ReservationState, str, Reservation | None]:
    """Return the state of a reservation, why, and its data."""
    try:
        own = Reservation.decode(node.data)
    except UnreadableQueue as error:
        return "unreadable", str(error), None
    if own.judge(node.children, time.time()) is Verdict.DEAD:
        if own.state is State.PUBLISHING:
            return "dead", _("Its sender ended before it was known whether the message was sent."), own
        if own.state is State.STARTED and not own.late:
            return "dead", _("Its worker ended, and the broker does not deliver the task again."), own
        return "dead", _("Its time is over (unique_for or expires)."), own
    is_started = bool(record.workers(node.children))
    if own.state is State.STARTED and not is_started:
        return "started", _("Its worker is gone. The broker delivers the task again."), own
    return "started" if is_started else own.state.value, "", own


def _parts(key: str) -> tuple[str, str, str]:
    """Return the kind of a reservation, the name of its task, and the key of its lock."""
    kind, _slash, rest = key.partition("/")
    task, _slash, lock = rest.partition("/")
    return (kind, unescape(task), lock) if lock else ("", "", key)


def _token_of(data: bytes) -> str:
    """Return what identifies a reservation; for one that cannot be read, a digest of its data."""
    try:
        return Reservation.decode(data).token
    except UnreadableQueue:
        return hashlib.sha256(data).hexdigest()[:36]
