"""Read the queue of a lock from outside: whether it is empty, and its holders and waiters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.owner import current_owner
from django_zklock.execution.waiters import Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.locks.acquisition import Acquisition, Waiter
from django_zklock.locks.protocol.contender import Busy
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.replies import ReplyGuard
from django_zklock.locks.spec import LockSpec
from django_zklock.queue import order
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.order import Queue
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import NamesReply, Node, NodeReply
from django_zklock.zk.requests import OnConnected
from django_zklock.zk.session import Session

MOST_READ = 50  # contenders whose data are read; no caller needs those further behind

QueueNodes: TypeAlias = "tuple[tuple[Child, Node | None], ...]"
"""A queue, in its order; None for a znode that was not read, or was gone by then."""

QueueWaiter: TypeAlias = "ThreadWaiter[QueueNodes | ZkLockError] | TaskWaiter[QueueNodes | ZkLockError]"


@dataclass(frozen=True, slots=True)
class QueuedContender:
    """One contender in a queue, as other processes see it."""

    name: str
    """The name of its znode, which no other contender ever had."""
    payload: Payload | None
    """None for a client of another kind, or if the znode was gone when it was read."""


def look(spec: LockSpec, waiter: Waiter) -> Routine[bool]:
    """Return whether the queue has any contender now. Raises `ZooKeeperUnavailable`."""
    session = process.current()
    acquisition = Acquisition(spec, current_owner())
    acquisition.start(session, waiter, session.options.connect_timeout, 0.0, only_look=True)
    try:
        outcome = yield from waiter.outcome(acquisition.timeout)
    finally:
        acquisition.abandon()
    if outcome is None or isinstance(outcome, Exception):
        raise acquisition.failure(outcome)
    return isinstance(outcome, Busy)


def contenders(spec: LockSpec) -> tuple[QueuedContender, ...]:
    """
    Return the holders and waiters of a lock, in the order of the queue.

    It costs one listing, and one read for each of the first fifty, all sent at once. Raises `ZooKeeperUnavailable`.
    """
    nodes = run(read_queue(process.current(), spec.key, spec.parent, ThreadWaiter()))
    return tuple(
        QueuedContender(child.name, None if node is None else Payload.decode(node.data)) for child, node in nodes
    )


def read_queue(
    session: Session,
    key: str,
    parent: str,
    waiter: QueueWaiter,
    *,
    most: int = MOST_READ,
    reply_timeout: float | None = None,
) -> Routine[QueueNodes]:
    """
    List a queue, and read the first `most` znodes in it.

    Raises `ZooKeeperUnavailable` if that takes more than `reply_timeout` seconds (None: the connect timeout).
    """
    reply_timeout = session.options.connect_timeout if reply_timeout is None else reply_timeout
    read = _QueueRead(session, key, parent, most, waiter.set)
    session.post(read.begin)
    try:
        found = yield from waiter.outcome(reply_timeout)
    finally:
        read.give_up()
    if found is None:
        raise ZooKeeperUnavailable(session.explain(reply_timeout), lock=key)
    if isinstance(found, ZkLockError):
        found.lock = found.lock or key
        raise found
    return found


class _QueueRead:
    """One read of a queue; it runs on the protocol's thread."""

    def __init__(
        self, session: Session, key: str, parent: str, most: int, done: Callable[[QueueNodes | ZkLockError], object]
    ) -> None:
        self._session = session
        self._parent = parent
        self._most = most
        self._done: Callable[[QueueNodes | ZkLockError], object] | None = done
        self._replies = ReplyGuard(key, self._on_failure)
        self._queue = Queue()
        self._nodes: dict[str, Node | None] = {}

    def begin(self) -> None:
        """Send the requests, as soon as there is a connection."""
        self._session.attached(OnConnected).call(self._list)

    def give_up(self) -> None:
        """Send no more requests; from any thread."""
        self._done = None
        self._session.post(lambda: self._session.attached(OnConnected).cancel(self._list))

    def _list(self) -> None:
        if self._done is not None:
            gateway = self._session.attached(Registry).gateway
            gateway.children(self._parent, self._replies.wrap(self._on_listed))

    def _on_listed(self, answer: NamesReply) -> None:
        if isinstance(answer, ZkError):
            self._conclude(() if isinstance(answer, NodeMissing) else answer)
            return
        try:
            self._queue = order.ordered(answer)
        except UnreadableQueue as error:
            self._conclude(error)
            return
        if not self._queue:
            self._conclude(())
        gateway = self._session.attached(Registry).gateway
        for child in self._queue[: self._most]:
            on_read = self._replies.wrap(functools.partial(self._on_read, child))
            gateway.read(f"{self._parent}/{child.name}", on_read)

    def _on_read(self, child: Child, answer: NodeReply) -> None:
        if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
            self._conclude(answer)
            return
        self._nodes[child.name] = answer if isinstance(answer, Node) else None
        if len(self._nodes) == len(self._queue[: self._most]):
            self._conclude(tuple((each, self._nodes.get(each.name)) for each in self._queue))

    def _on_failure(self, error: Exception) -> None:
        self._conclude(ZkLockError(f"Reading the queue failed: {error!r}."))

    def _conclude(self, found: QueueNodes | ZkLockError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(found)
