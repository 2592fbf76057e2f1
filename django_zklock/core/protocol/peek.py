"""
Look whether a lock is free, for a contender that does not wait.

A try that fails writes nothing. It lists the queue, and reads the holder for the message of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.protocol.operator_holds import HoldCheck
from django_zklock.core.protocol.registry import ListingReply, Registry
from django_zklock.core.protocol.reply_guard import ReplyGuard
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.queue import operator_hold, order
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.zk.errors import OutcomeUnknown, ZkError
from django_zklock.core.zk.gateway import Node, NodeReply

NEWCOMER = "me"  # stands for the name of the znode that the contender does not have yet


@dataclass(frozen=True, slots=True)
class Holder:
    """The contender or the operator hold that has the lock, as far as it is known."""

    payload: Payload | None = None
    operator: OperatorHold | None = None


PeekReply: TypeAlias = Holder | UnreadableQueue | ZkError | None
"""
None: the lock is free. `NodeMissing`: it is free, and its directory does not exist. `OutcomeUnknown` or `SessionGone`:
look again when there is a connection.
"""


class Peek:
    """One look at the queue, in up to two round trips; `done` gets the result."""

    def __init__(
        self, registry: Registry, spec: QueueSpec, replies: ReplyGuard, done: Callable[[PeekReply], object]
    ) -> None:
        self._registry = registry
        self._spec = spec
        self._replies = replies
        self._done = done

    def start(self) -> None:
        """List the queue."""
        self._registry.list_names(self._spec.parent, self._replies.wrap(self._on_listed))

    def _on_listed(self, reply: ListingReply) -> None:
        if isinstance(reply, ZkError):
            self._done(reply)
            return
        try:
            queue = reply.queue.with_newcomer(NEWCOMER, self._spec.kind)
        except UnreadableQueue as error:
            self._done(error)
            return
        holds = operator_hold.holds_ahead(queue, NEWCOMER)
        if self._is_granted(queue):
            self._done(None)
        elif holds:
            check = HoldCheck(self._registry.session.gateway, self._spec.key, self._spec.parent, self._replies.wrap)
            check.run(holds, partial(self._on_holds_checked, queue))
        else:
            self._read_holder(queue)

    def _is_granted(self, queue: order.Queue) -> bool:
        return isinstance(order.rule_for(self._spec.kind, self._spec.limit or 1)(queue, NEWCOMER), order.Granted)

    def _on_holds_checked(self, queue: order.Queue, checked: HoldCheck | None) -> None:
        if checked is None:
            self._done(OutcomeUnknown())
            return
        remaining = queue.without(checked.ended)
        if self._is_granted(remaining):
            self._done(None)
        elif checked.first is not None:
            self._done(Holder(operator=checked.first))
        else:
            self._read_holder(remaining)

    def _read_holder(self, queue: order.Queue) -> None:
        path = f"{self._spec.parent}/{queue[0].name}"
        self._registry.session.gateway.read(path, self._replies.wrap(self._on_holder_read))

    def _on_holder_read(self, reply: NodeReply) -> None:
        self._done(Holder(Payload.decode(reply.data) if isinstance(reply, Node) else None))
