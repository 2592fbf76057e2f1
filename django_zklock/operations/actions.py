"""The list of operators' actions in ZooKeeper, which is the same on every host: add to it, and read it."""

from __future__ import annotations

import logging
from typing import Final

from django_zklock import clock, conf
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.validation import check_no_running_loop, check_seconds
from django_zklock.operations import action_list
from django_zklock.operations.action_list import Action
from django_zklock.operations.client import REPLY_TIMEOUT
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import Callback, DirectoryState, Gateway, NodeReply
from django_zklock.zk.multi import Create, SetData
from django_zklock.zk.requests import Commit, Done, OptimisticUpdate, Step, call
from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.operations")

WAIT: Final = 1.0
"""Seconds that an operation waits until its action is on the list. A write that takes longer goes on by itself."""
MOST_TRIES: Final = 20
"""Other operators may write at the same time."""


def add_action(session: Session, base: str, action: Action) -> None:
    """Add an action to the list, if possible. A failure is logged only."""
    written: ThreadWaiter[bool] = ThreadWaiter()

    def done(outcome: object) -> None:
        if outcome is not True:
            logger.warning("an action on the lock %r is not on the list of actions: %s", action.key, outcome)
        written.set(True)

    OptimisticUpdate(session, action_list.node_path(base), _Append(base, action), done).start()
    if action.sure:  # else ZooKeeper does not answer
        written.wait(WAIT)


class _Append:
    """The update of the list. Its value is True, or a text that says why the action is not on the list."""

    def __init__(self, base: str, action: Action) -> None:
        self._path = action_list.node_path(base)
        self._action = action
        self._tries = 0

    def __call__(self, found: DirectoryState | None, session_id: int) -> Step:
        before = b"" if found is None else found.data
        if any(each.id == self._action.id for each in action_list.decode(before)):
            return Done(True)
        self._tries += 1
        if self._tries > MOST_TRIES:
            return Done("too many others write to it")
        data = action_list.appended(before, self._action)
        if found is None:
            return Commit((Create(path=self._path, data=data),), True)
        return Commit((SetData(path=self._path, data=data, version=found.version),), True)


def recent_actions(key: str = "", *, reply_timeout: float = REPLY_TIMEOUT) -> tuple[Action, ...]:
    """
    Return the last actions of operators on all hosts, or those on the lock `key`; newest first.

    ZooKeeper keeps the last 200 of all locks together, and at most 64 KB. Raises `ZooKeeperUnavailable`.
    """
    check_no_running_loop("recent_actions", "await sync_to_async(recent_actions)(...)")
    check_seconds("reply_timeout", reply_timeout)
    path = action_list.node_path(conf.current().base)
    deadline = clock.now() + reply_timeout

    def read(gateway: Gateway, done: Callback[NodeReply]) -> None:
        gateway.read(path, done)

    reply = call(process.current(), read, deadline)
    if isinstance(reply, NodeMissing):
        return ()
    if isinstance(reply, ZkError):
        raise reply
    return tuple(each for each in reversed(action_list.decode(reply.data)) if key in ("", each.key))
