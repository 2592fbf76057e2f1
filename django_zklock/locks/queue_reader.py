"""Read the queue of a lock from outside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from django_zklock.core.execution.waiters import Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.operator_holds import HoldCheck
from django_zklock.core.protocol.reply_guard import ReplyGuard
from django_zklock.core.queue import order
from django_zklock.core.queue.nodes import Child
from django_zklock.core.queue.operator_hold import holds_ahead
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, ZkError
from django_zklock.core.zk.gateway import NamesReply, Node, NodeReply
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable

MOST_READ = 50  # contenders; no caller needs those behind them

_Outcome: TypeAlias = tuple[Any, ...] | ZkLockError
QueueWaiter: TypeAlias = ThreadWaiter[_Outcome] | TaskWaiter[_Outcome]


def contenders(key: str, parent: str, *, reply_timeout: float | None = None) -> tuple[ContenderInfo, ...]:
    """
    Return the first fifty holders and waiters of `key`, in the order of the queue. `parent` is the directory.

    It costs one listing, then one read for each of them, all sent at once. Raises `ZooKeeperUnavailable` if that takes
    more than `reply_timeout` seconds (None: the connect timeout).
    """
    return run(read_queue(process.current(), key, parent, ThreadWaiter(), reply_timeout=reply_timeout))


def read_queue(
    session: Session,
    key: str,
    parent: str,
    waiter: QueueWaiter,
    *,
    most: int = MOST_READ,
    reply_timeout: float | None = None,
) -> Routine[tuple[ContenderInfo, ...]]:
    """
    Return the first `most` contenders of a queue. It is empty only if the queue is; some may leave during the read.
    With 0, none is described, and operator holds that are over are deleted if they are all that is in the queue.

    Raises `ZooKeeperUnavailable` if that takes more than `reply_timeout` seconds (None: the connect timeout).
    """
    reply_timeout = session.options.connect_timeout if reply_timeout is None else reply_timeout
    read = _QueueRead(session, key, parent, most, waiter.set)
    session.post(read.begin)
    try:
        outcome = yield from waiter.outcome(reply_timeout)
    finally:
        read.give_up()
    if outcome is None:
        raise ZooKeeperUnavailable(session.explain(reply_timeout), lock=key)
    if isinstance(outcome, ZkLockError):
        outcome.lock = key
        raise outcome
    return outcome


class _QueueRead:
    """One read of a queue; it runs on the protocol's thread."""

    def __init__(self, session: Session, key: str, parent: str, most: int, done: Callable[[_Outcome], object]) -> None:
        self._session = session
        self._key = key
        self._parent = parent
        self._most = most
        self._done: Callable[[_Outcome], object] | None = done
        self._replies = ReplyGuard(key, self._on_failure)
        self._infos: dict[str, ContenderInfo | None] = {}  # by name, in the order of the queue

    def begin(self) -> None:
        """Send the requests as soon as there is a connection."""
        self._session.call_when_connected(self._list)

    def give_up(self) -> None:
        """Send no more requests; from any thread."""
        self._done = None
        self._session.post(self._session.cancel_call, self._list)

    def _list(self) -> None:
        if self._done is not None:
            gateway = self._session.gateway
            # A task is skipped only if the holder that is described has not released since.
            list_names = gateway.children_after_sync if self._most else gateway.children
            list_names(self._parent, self._replies.wrap(self._on_listed))

    def _on_listed(self, reply: NamesReply) -> None:
        if isinstance(reply, INTERRUPTED):
            self.begin()
            return
        if isinstance(reply, ZkError):
            self._conclude(() if isinstance(reply, NodeMissing) else reply)
            return
        try:
            queue = order.ordered(reply)
        except UnreadableQueue as error:
            self._conclude(error)
            return
        first = queue[: self._most]
        if not first:
            self._check_holds(queue)
            return
        self._infos = dict.fromkeys(child.name for child in first)
        self._unanswered = len(first)
        self._has_gap = False  # a reply was lost
        gateway = self._session.gateway
        for child in first:
            on_read = self._replies.wrap(functools.partial(self._on_read, child))
            gateway.read(f"{self._parent}/{child.name}", on_read)

    def _check_holds(self, queue: order.Queue) -> None:
        def on_checked(checked: HoldCheck | None) -> None:
            if checked is None:
                self.begin()
            else:
                self._conclude(queue.without(checked.ended).children)

        holds = holds_ahead(queue)
        if holds and len(holds) == len(queue):
            HoldCheck(self._session.gateway, self._key, self._parent, self._replies.wrap).run(holds, on_checked)
        else:
            self._conclude(queue.children)

    def _on_read(self, child: Child, reply: NodeReply) -> None:
        if isinstance(reply, Node):
            self._infos[child.name] = ContenderInfo.from_node(self._key, child, reply)
        elif isinstance(reply, INTERRUPTED):
            self._has_gap = True
        elif not isinstance(reply, NodeMissing):
            self._conclude(reply)
        self._unanswered -= 1
        if self._unanswered:
            return
        infos = tuple(info for info in self._infos.values() if info is not None)
        if self._has_gap:
            self.begin()
        elif infos:
            self._conclude(infos)
        else:
            self._list()  # all of them have left meanwhile

    def _on_failure(self, error: Exception) -> None:
        self._conclude(ZkLockError(f"Reading the queue failed: {error!r}."))

    def _conclude(self, outcome: _Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)
