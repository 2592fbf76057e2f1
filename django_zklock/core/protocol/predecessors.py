"""
Watch the predecessors of one contender, and report their changes to it.

The rule of the lock says which contenders to watch. The contender decides what a change means.
"""

from __future__ import annotations

from typing import Protocol

from django_zklock.core.errors import ZkLockError
from django_zklock.core.protocol.reply_guard import ReplyGuard
from django_zklock.core.queue import order
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.core.zk.gateway import Gateway, Node, NodeReply


class Successor(Protocol):
    """The contender that waits."""

    def on_ahead_read(self, node: Node) -> None:
        """A predecessor was read, and is watched."""

    def on_ahead_gone(self, *, was_last: bool) -> None:
        """A predecessor is gone. With `was_last`, the lock is granted without another listing."""

    def on_ahead_changed(self) -> None:
        """The queue may have another meaning now."""

    def on_refused(self, error: ZkLockError) -> None:
        """ZooKeeper refuses the watch."""


class Predecessors:
    """The predecessors that one contender waits for."""

    def __init__(self, gateway: Gateway, parent: str, replies: ReplyGuard, successor: Successor) -> None:
        self._gateway = gateway
        self._parent = parent
        self._replies = replies
        self._successor = successor
        self._watches: dict[str, Watch] = {}  # by name
        self._limit: Watch | None = None  # of the directory, whose data are written with the limit
        self._is_last = False  # of the verdict, see `order.WaitFor`

    def wait_for(self, verdict: order.WaitFor) -> None:
        """Watch these predecessors, and no others."""
        self._is_last = verdict.is_last
        for name in self._watches.keys() - set(verdict.children):
            self._forget(name)
        if verdict.depends_on_limit and self._limit is None:
            self._watch_limit()
            return
        for name in verdict.children:
            if name not in self._watches:
                self._watch(name)

    def forget(self) -> None:
        """Watch nothing."""
        for name in list(self._watches):
            self._forget(name)
        watch, self._limit = self._limit, None
        if watch is not None:
            watch.cancel()

    def _watch(self, name: str) -> None:
        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, Node):
                self._successor.on_ahead_read(reply)
                if reply.version:
                    self._successor.on_ahead_changed()  # it may have become a reader since the listing
            elif isinstance(reply, NodeMissing):
                # Another znode may have its position since the listing: that of a hand-over, or of its adopter.
                self._forget(name)
                self._successor.on_ahead_gone(was_last=False)
            elif not isinstance(reply, INTERRUPTED):  # else the queue is listed again when connected
                self._successor.on_refused(reply)

        def on_event(deleted: bool) -> None:
            self._forget(name)
            if deleted:
                self._successor.on_ahead_gone(was_last=self._is_last)
            else:
                self._successor.on_ahead_changed()  # its data were written: it may have become a reader

        watch = self._gateway.read(f"{self._parent}/{name}", self._replies.wrap(on_read), self._replies.wrap(on_event))
        if watch is not None:
            self._watches[name] = watch

    def _watch_limit(self) -> None:
        """Watch the directory, whose data are written with each change of the limit. Then list the queue again."""

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, ZkError) and not isinstance(reply, (NodeMissing, OutcomeUnknown, SessionGone)):
                self._successor.on_refused(reply)  # without a watch, no change would be noticed

        def on_event(deleted: bool) -> None:
            self._limit = None
            self._successor.on_ahead_changed()

        self._limit = self._gateway.read(self._parent, self._replies.wrap(on_read), self._replies.wrap(on_event))
        self._successor.on_ahead_changed()

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
