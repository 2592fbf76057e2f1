"""Read the queue of a lock from outside."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

from django_zklock.core.execution.waiters import Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.operator_holds import HoldCheck
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue import order
from django_zklock.core.queue.nodes import Child
from django_zklock.core.queue.operator_hold import holds_ahead
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Gateway, Node, NodeReply
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable

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
    read = StoryRun(session, functools.partial(_read, session.gateway, key, parent, most), waiter.set)
    read.start()
    try:
        outcome = yield from waiter.outcome(reply_timeout)
    finally:
        read.stop()
    if outcome is None:
        raise ZooKeeperUnavailable(session.explain(reply_timeout), lock=key)
    if isinstance(outcome, ZkLockError):
        outcome.lock = key
        raise outcome
    return outcome


def _read(gateway: Gateway, key: str, parent: str, most: int) -> Story[tuple[Any, ...]]:
    # A task is skipped only if the holder that is described has not released since.
    list_names = gateway.children_after_sync if most else gateway.children
    while True:
        try:
            names: list[str] = yield functools.partial(list_names, parent)
        except NodeMissing:
            return ()
        queue = order.ordered(names)
        first = queue[:most]
        if not first:
            return (yield from _without_ended_holds(gateway, key, parent, queue))
        replies: list[NodeReply] = yield functools.partial(
            gateway.read_each, [f"{parent}/{child.name}" for child in first]
        )
        infos = []
        for child, reply in zip(first, replies, strict=True):
            if isinstance(reply, Node):
                infos.append(ContenderInfo.from_node(key, child, reply))
            elif not isinstance(reply, NodeMissing):
                raise reply
        if infos:
            return tuple(infos)
        # All of them have left meanwhile.


def _without_ended_holds(gateway: Gateway, key: str, parent: str, queue: order.Queue) -> Story[tuple[Child, ...]]:
    holds = holds_ahead(queue)
    if holds and len(holds) == len(queue):
        checked = yield from HoldCheck(gateway, key, parent).run(holds)
        queue = queue.without(checked.ended)
    return queue.children
