"""
The operator hold: a znode in a queue that lasts without a session, until a time by ZooKeeper's clock.

Its guid has a mark, by which a listing shows it. Its payload says who holds the lock, why, and for how many seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON, printable
from django_zklock.core.queue.nodes import Child, Mark, Payload, mark_of, new_guid, parse
from django_zklock.core.queue.order import Queue
from django_zklock.core.queue.untrusted import moment, number

# The items of `Payload.about` that describe a hold.
OPERATOR: Final = "operator"
REASON: Final = "reason"
SECONDS: Final = "seconds"
MINIMUM: Final = "minimum"
TASK_ID: Final = "id"

MAX_TASK_ID: Final = 200
"""Characters of the id of a task in its reservation."""
LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a hold may last."""

RESERVATIONS: Final = "%21unique"
"""
The first part of the keys whose holds are reservations: an escaped exclamation mark, which other keys hardly have.
"""


@dataclass(frozen=True, slots=True)
class HoldLabel:
    """The person who holds a lock as an operator, and the reason; or the task that reserves its key."""

    by: str
    reason: str
    task_id: str = ""
    """The id of the task, if the hold is its reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHold:
    """
    A lock that is held for a time and belongs to no session: by a person or a task, or as a minimum hold.

    It ends `seconds` after its znode was made, by ZooKeeper's clock. No text in it has control characters.
    """

    key: str
    path: str
    """The path of its znode."""
    token: int
    """The czxid of its znode. `end_hold` asks for it."""
    by: str
    """The person who holds the lock; the work that held it, if this is a minimum hold."""
    reason: str
    since: datetime
    """When its znode was made."""
    seconds: float
    minimum: bool = False
    """Whether it is a minimum hold (`min_hold`)."""
    task_id: str = ""
    """The id of the task whose reservation this is; empty for other holds."""

    @property
    def until(self) -> datetime:
        """When it ends by itself, by ZooKeeper's clock."""
        return self.since + timedelta(seconds=self.seconds)

    @property
    def who(self) -> str:
        """The holder, for messages."""
        return self.by if self.minimum or self.task_id else f"operator {self.by}"

    def is_over(self, now: float) -> bool:
        """Return whether its time is over at `now`: seconds since 1970 by ZooKeeper's clock."""
        return now >= self.until.timestamp()

    def __str__(self) -> str:
        """Return the holder, the end and the reason, in one line."""
        return f"{self.who} until {self.until:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


def is_operator(name: str) -> bool:
    """Return whether a znode with this name is an operator hold; never raises."""
    try:
        child = parse(name)
    except UnreadableQueue:
        return False
    return child is not None and mark_of(child.guid) is Mark.OPERATOR


def guid_of_task(task_id: str) -> str:
    """Return the guid of the reservation of this task. By it, a worker finds the reservation in a listing."""
    return new_guid(Mark.OPERATOR, hashlib.sha256(task_id.encode()).hexdigest()[:32])


def holds_ahead(queue: Queue, me: str = "") -> tuple[str, ...]:
    """Return the names of the operator holds ahead of the contender `me`, or all; the first in the queue first."""
    return tuple(child.name for child in queue[: queue.index_of(me)] if _is_hold(child))


def holds_to_end(queue: Queue, me: str, watched: Collection[str]) -> tuple[str, ...]:
    """
    Return the names of the holds that the waiter `me` has to end: those it watches, and those just ahead of it.

    If another waiter of ours is in between, that one ends the hold. When that waiter leaves, `me` lists the queue
    again. A client of Curator or kazoo in between does not count, because it ends no hold.
    """
    names: list[str] = []
    between = False
    for child in reversed(queue[: queue.index_of(me)]):
        if not _is_hold(child):
            between = between or child.by_us
        elif not between or child.name in watched:
            names.append(child.name)
    return tuple(names)


def _is_hold(child: Child) -> bool:
    return mark_of(child.guid) is Mark.OPERATOR


def operator_hold(
    payload: Payload | None, *, key: str, path: str, token: int, owner: int, ctime: float
) -> OperatorHold | None:
    """
    Return the operator hold in a znode with this payload, or None; never raises.

    `owner` is the session of an ephemeral znode, 0 for a hold. `ctime` is in seconds since 1970.
    """
    if payload is None or owner or not payload.about.get(OPERATOR) or not is_operator(path.rpartition("/")[2]):
        return None
    try:
        seconds, since = number(float(payload.about.get(SECONDS, "")), 0, LONGEST), moment(ctime)
    except ValueError:
        return None
    return OperatorHold(
        key=key,
        path=path,
        token=token,
        by=payload.about[OPERATOR],
        reason=payload.about.get(REASON, ""),
        since=since,
        seconds=seconds,
        minimum=bool(payload.about.get(MINIMUM)),
        task_id=payload.about.get(TASK_ID, ""),
    )


def hold_data(
    payload: Payload, *, by: str, reason: str, seconds: float, minimum: bool = False, task_id: str = ""
) -> bytes:
    """
    Return the data of a hold's znode: the payload with the items that `operator_hold` reads.

    It is a `minimum` hold, the reservation of a task with this id, or else the hold of a person.
    """
    more = {MINIMUM: "yes"} if minimum else {}
    if task_id:
        more = {TASK_ID: task_id}
    by, reason = printable(by or "python", MAX_BY), printable(reason, MAX_REASON)  # without a name, it is no hold
    about = {OPERATOR: by, REASON: reason, SECONDS: f"{seconds:.3f}", **more}
    return replace(payload, what=f"{'' if more else 'operator '}{by}: {reason}", about=about).encode()
