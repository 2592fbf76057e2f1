"""Look from outside whether anybody is in the queue of a lock."""

from __future__ import annotations

import functools

from django_zklock.core.execution.waiters import Routine, TaskWaiter, ThreadWaiter
from django_zklock.core.protocol.operator_holds import HoldCheck
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue import order
from django_zklock.core.queue.operator_hold import holds_ahead
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Gateway
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable


def is_used(
    session: Session, key: str, parent: str, waiter: ThreadWaiter[bool | ZkLockError] | TaskWaiter[bool | ZkLockError]
) -> Routine[bool]:
    """
    Return whether a lock has a holder or a waiter. `parent` is its directory.

    If only operator holds are there, those that are over are deleted, and do not count. Raises `ZooKeeperUnavailable`
    if that takes longer than the connect timeout.
    """
    longest = session.options.connect_timeout
    look = StoryRun(session, functools.partial(_look, session.gateway, key, parent), waiter.set)
    look.start()
    try:
        outcome = yield from waiter.outcome(longest)
    finally:
        look.stop()
    if outcome is None:
        raise ZooKeeperUnavailable(session.explain(longest), lock=key)
    if isinstance(outcome, ZkLockError):
        outcome.lock = key
        raise outcome
    return outcome


def _look(gateway: Gateway, key: str, parent: str) -> Story[bool]:
    try:
        names: list[str] = yield functools.partial(gateway.children, parent)
    except NodeMissing:
        return False
    queue = order.ordered(names)
    holds = holds_ahead(queue)
    if holds and len(holds) == len(queue):
        checked = yield from HoldCheck(gateway, key, parent).run(holds)
        queue = queue.without(checked.ended)
    return len(queue) > 0
