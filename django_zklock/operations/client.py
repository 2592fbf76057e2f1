"""A client for the queue of one lock: blocking requests with a deadline, for threads that are not contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from django_zklock import conf
from django_zklock.core import clock
from django_zklock.core.queue import order
from django_zklock.core.queue.nodes import Child
from django_zklock.core.queue.order import Queue
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import Callback, DirectoryState, Gateway, Node, NodeReply
from django_zklock.core.zk.multi import Delete
from django_zklock.exceptions import LockChangedHands, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks import holders
from django_zklock.locks.arguments import check_seconds
from django_zklock.locks.holders import Limits, permit_limit
from django_zklock.locks.requests import (
    Commit,
    Decide,
    Done,
    OptimisticUpdate,
    Step,
    WaitUntilGone,
    call,
    run,
)
from django_zklock.names import template as names

REPLY_TIMEOUT: Final = 5.0
"""Seconds to wait for ZooKeeper's replies, in addition to those to wait for the lock."""
BATCH: Final = 100  # znodes that are read together

Ask: TypeAlias = Callable[[Gateway, Callback[Any]], object]


class QueueClient:
    """
    Requests about one lock, from one thread, with one deadline for all of them.

    Every method but `wait_gone` raises `ZooKeeperUnavailable` when the deadline is over. ZooKeeper may still carry out
    a request that was sent by then.
    """

    def __init__(self, key: str, reply_timeout: float) -> None:
        check_seconds("reply_timeout", reply_timeout)
        self.base = conf.current().base
        names.check_key(key)
        self.key = names.show_tails(key)
        self.parent = names.path(self.base, key)
        self.session = process.current()
        self.limits: Limits = holders.UNKNOWN_LIMITS
        self._deadline = clock.now() + reply_timeout

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - clock.now())

    def run(self, decide: Decide) -> Any:
        """Run an update of the lock's directory; return its value."""
        update = OptimisticUpdate(self.session, self.parent, decide, directory=self.parent)
        with self._errors_with_key():
            return run(update, self._deadline)

    def wait_gone(self, name: str, seconds: float) -> bool:
        """Wait until a znode of the queue is gone; return False if that takes more than these seconds."""

        def decide(directory: DirectoryState | None, session_id: int) -> Step:
            return WaitUntilGone(name) if directory is not None and name in directory.children else Done(True)

        try:
            with self._errors_with_key():
                run(OptimisticUpdate(self.session, self.parent, decide), clock.now() + seconds)
        except ZooKeeperUnavailable:
            return False
        return True

    def request(self, ask: Ask) -> Any:
        """Send a request until ZooKeeper answers it, so perhaps twice; return the reply, which may be a `ZkError`."""
        with self._errors_with_key():
            return call(self.session, ask, self._deadline)

    def read(self, name: str) -> Node | None:
        """Return a znode of the queue, or None if it is gone. Raises `ZkLockError` if ZooKeeper refuses the read."""
        reply: NodeReply = self.request(lambda gateway, done: gateway.read(f"{self.parent}/{name}", done))
        if isinstance(reply, NodeMissing):
            return None
        if isinstance(reply, ZkError):
            raise self.with_key(reply)
        return reply

    def holders(self, guid: str = "", token: int | None = None) -> Iterator[tuple[Child, Node]]:
        """Yield the holders with their znodes, or the one with this guid and token. `limits` are those of the queue."""
        queue = order.ordered(self.run(children))
        self.limits = self.limits_in(queue)
        for index in holders.holder_indexes(queue, self.limits):
            child = queue[index]
            node = self.read(child.name) if guid in ("", child.guid) else None
            if node is not None and token in (None, node.czxid):
                yield child, node

    def changed_hands(self, named: object) -> LockChangedHands:
        """Return the error that the lock has no holder, or not the one of this token or guid."""
        what = f"is not held by the contender {named} any more" if named else "has no holder"
        return LockChangedHands(f"The lock {self.key!r} {what}.", lock=self.key)

    def limits_in(self, queue: Queue) -> dict[str, int]:
        """
        Return by name the limits by which contenders hold permits; 1 if a znode is gone.

        Contenders further back than the highest known limit are not read. They wait, unless their own limit is higher.
        """
        limits: dict[str, int] = {}
        marker = self.read(queue.limit_marker) if queue.limit_marker else None
        names = holders.permits_at_front(queue)
        while len(limits) < min(len(names), max(limits.values(), default=1)):
            paths = {f"{self.parent}/{name}": name for name in names[len(limits) : len(limits) + BATCH]}
            nodes = self.request(lambda gateway, done, paths=tuple(paths): gateway.read_all(paths, done))  # type: ignore[misc]
            if isinstance(nodes, ZkError):
                raise self.with_key(nodes)
            limits |= dict.fromkeys(paths.values(), 1)
            for path, node in nodes.items():
                change = None if marker is None or node.czxid > marker.czxid else marker.data
                limits[paths[path]] = permit_limit(queue, node.data, change)
        return limits

    @contextmanager
    def _errors_with_key(self) -> Iterator[None]:
        try:
            yield
        except ZkLockError as error:
            self.with_key(error)
            raise

    def with_key(self, error: ZkLockError) -> ZkLockError:
        """Return the error, with the key of the lock."""
        error.lock = error.lock or self.key
        return error


def children(directory: DirectoryState | None, session_id: int) -> Step:
    """Read the names of all children; for `QueueClient.run`."""
    return Done(() if directory is None else directory.children)


@dataclass(slots=True)
class DeleteNode:
    """
    Delete a znode of the queue, for `QueueClient.run`. The value is True if this update deleted it.

    It is False if the znode is gone or, with the `limits` of its queue, if it does not hold the lock. The version does
    not matter: no other znode ever gets this name, and it belongs to the same contender whatever its data are.
    """

    _parent: str
    _name: str
    _limits: Limits | None = None
    tried: int = 0
    """How many deletes were sent and not refused. If the znode is gone then, the reply to one may have been lost."""

    def __call__(self, directory: DirectoryState | None, session_id: int) -> Step:
        if directory is None or self._name not in directory.children:
            return Done(False)
        if self._limits is not None:
            queue = order.ordered(directory.children)
            if queue.index_of(self._name) not in holders.holder_indexes(queue, self._limits):
                return Done(False)
        self.tried += 1
        return Commit((Delete(path=f"{self._parent}/{self._name}"),), True, self._on_refused)

    def _on_refused(self) -> None:
        self.tried -= 1
