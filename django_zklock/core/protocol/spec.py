"""The lock that a contender wants, and the work that it describes to the others in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.operator_hold import HoldLabel

if TYPE_CHECKING:
    from django_zklock.core.zk.gateway import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """The lock that a contender wants."""

    key: str
    parent: str  # path of the key's directory; a key has one, as a lock is known by either
    kind: Kind
    limit: int | None = None  # of permits, if it is a semaphore
    compat: str | None = None  # the client whose processes share the queue, and whose names its znodes get
    min_hold: float = 0.0  # seconds from the grant; on a release before, an operator hold replaces the znode
    max_waiters: int | None = None  # how many may wait; one more gives up at once
    max_hold: float | None = None  # seconds from the grant, after which the holder loses the lock
    warn_after: float | None = None  # seconds from the grant, after which the holder logs a warning
    linger: float = 0.0  # seconds for which this process keeps a released lock for its next owners here
    template: str = ""  # of the key
    lasts: str = ""  # "leader", "run" or "lease" if the hold is meant to last; see `Payload`
    resumes: Node | None = None  # the znode by which an earlier process of this session held the lock


class Caller(NamedTuple):
    """The work that a contender describes to others in the queue."""

    thread: str  # its name
    what: str  # the work
    about: Mapping[str, str] = MappingProxyType({})  # the work, item by item
    owner: int = 0  # the number of the thread, greenlet or task in this process
    operator: HoldLabel | None = None  # the person who is to hold the lock; None if it is for work
