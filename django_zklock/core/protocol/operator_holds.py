"""
Create operator holds in place of a holder's znode, and delete them when their time is over.

An operator hold needs no session. It lasts until a time by ZooKeeper's clock. The process that created it deletes it;
if that process has ended, the contenders behind the hold do so, or the next look at all locks, as that of the admin.
They may race, but no other znode ever gets its name.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from django_zklock.core import clock
from django_zklock.core.errors import ZkLockError
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.registry import Registry, Successor
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue import operator_hold
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS, path
from django_zklock.core.queue.nodes import Mark, Payload, new_guid, prefix
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import CLOCK_NODE, Callback, Gateway, Node
from django_zklock.core.zk.multi import Create, Delete
from django_zklock.core.zk.session import Session

audit = Logger("zklock.audit")

RETRY = 1.0  # seconds until a refused or interrupted request is sent again
SOONEST = 0.01  # seconds until the next check, at least
LATEST = 60.0  # seconds until the next check, at most, as the clock of the server may have been wrong

MOST_DELETED = 100  # holds that one look at all locks deletes at most


class HoldCheck:
    """
    One check of operator holds: read them, ask for the time if one may be over, delete those that are over.

    The attributes are the result.
    """

    def __init__(self, gateway: Gateway, key: str, parent: str) -> None:
        self.ended: set[str] = set()  # names of the holds that it has deleted, or that were gone already
        self.remaining: dict[str, OperatorHold] = {}  # the holds that are not over, in the order of the queue
        self.refusal: ZkError | None = None  # of the last request, if ZooKeeper refuses it
        self._nodes: dict[str, Node] = {}  # of these
        self._gateway = gateway
        self._key = key
        self._parent = parent

    @property
    def first(self) -> Node | None:
        """The znode of the hold that is first in the queue, for messages."""
        return next((self._nodes[name] for name in self.remaining), None)

    def next_check(self, names: Iterable[str]) -> float | None:
        """Return the seconds until the next check of these holds; None if none of them remains."""
        ends = [self.remaining[name].until.timestamp() for name in names if name in self.remaining]
        now = self._gateway.clock.now()
        if not ends or now is None:
            return RETRY if ends else None
        seconds = min(ends) - now
        return min(max(seconds, SOONEST), LATEST) if seconds > 0 else RETRY  # if it is over, its delete was refused

    def run(self, names: Sequence[str]) -> Story[HoldCheck]:
        """Check the holds with these names, in the order of the queue. Return this."""
        gateway = self._gateway
        yield from self._read(names)
        latest = gateway.clock.latest()
        if any(latest is None or hold.is_over(latest) for hold in self.remaining.values()):
            try:
                # The local clock does not prove that a hold is over. So ask the server for its time.
                yield partial(gateway.sync_clock, f"{self._parent}/{CLOCK_NODE}")
                yield from self._delete_ended(gateway.clock.now() or 0.0)
            except ZkError as error:
                self.refusal = error
        return self

    def _read(self, names: Sequence[str]) -> Story[None]:
        replies = yield partial(self._gateway.read_each, [f"{self._parent}/{name}" for name in names])
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, NodeMissing):
                self.ended.add(name)
            elif isinstance(reply, ZkError):
                self.refusal = reply
            elif (hold := read_hold(self._key, reply)) is not None:  # else a contender has the name of a hold
                self.remaining[name], self._nodes[name] = hold, reply

    def _delete_ended(self, now: float) -> Story[None]:
        ended = [name for name, hold in self.remaining.items() if hold.is_over(now)]
        if not ended:
            return
        by_us = True
        try:
            yield partial(self._gateway.commit, [Delete(path=self.remaining[name].path) for name in ended])
        except NodeMissing:
            by_us = False  # another process has deleted one of them. The queue is listed again all the same
        for name in ended:
            hold = self.remaining.pop(name)
            self.ended.add(name)
            if by_us:
                extra = {"lock": self._key, "token": hold.token}
                audit.info("the hold of lock %r by %s is over", self._key, hold, extra=extra)


def read_hold(key: str, node: Node) -> OperatorHold | None:
    """Return the operator hold in a znode, or None if the znode is no hold."""
    return operator_hold.operator_hold(
        Payload.decode(node.data), key=key, path=node.path, token=node.czxid, owner=node.owner, ctime=node.ctime
    )


def check(
    session: Session, key: str, parent: str, name: str, done: Callback[HoldCheck | ZkLockError] = lambda checked: None
) -> None:
    """Check one hold, and delete it if it is over."""
    StoryRun(session, lambda: HoldCheck(session.gateway, key, parent).run((name,)), done).begin()


def delete_ended(session: Session, holds: Collection[tuple[str, str]]) -> None:
    """Delete holds that seem to be over: some of these keys with the names of their znodes."""
    # At random: those that this client may not delete must not keep the others from their turn.
    for key, name in random.sample([*holds], min(len(holds), MOST_DELETED)):
        check(session, key, path(session.options.base, key), name)


def successor(session: Session, spec: QueueSpec, caller: Caller, grant: Grant, own: Node) -> Successor | None:
    """
    Return the operator hold that takes the place of a holder's znode: that of a person or a task, or a minimum hold.

    One transaction deletes the holder's znode and creates the hold with the same sequence number, so it has that
    position in the queue. If the process crashes before it, the lock stays held until the session timeout is over. Then
    it is free. The next waiter does not mistake the delete of the holder's znode for its turn: the guid of such a
    holder has a mark, which makes the waiter list the queue again.

    None if the time is over, or for a lock that was released before its work began: the caller gave up at the grant, or
    did not get the other locks that it needs.
    """
    label, payload = caller.operator, Payload.decode(own.data)
    # A person or a task gets the full time, from the release on.
    seconds = spec.min_hold if label is not None else grant.since + spec.min_hold - clock.now()
    if payload is None or not grant.begun or seconds <= 0:
        return None
    task_id = "" if label is None else label.task_id
    guid = operator_hold.guid_of_task(task_id) if task_id else new_guid(Mark.OPERATOR)
    payload = replace(payload, guid=guid, owner=0, max_hold=0, session_timeout=0)
    payload = replace(payload, release_request={}, waits_for={}, unknown={})  # these are about the holder's znode
    if label is None:
        reason = f"held for at least {spec.min_hold:g} s"
        data = operator_hold.hold_data(payload, by=payload.what, reason=reason, seconds=seconds, minimum=True)
    else:
        data = operator_hold.hold_data(payload, by=label.by, reason=label.reason, seconds=seconds, task_id=task_id)
    name = f"{prefix(guid, grant.kind)}{own.name[-SEQUENCE_DIGITS:]}"
    follower = Successor(Create(path=f"{spec.parent}/{name}", data=data), clock.now() + seconds)
    if not task_id:  # a sender may reserve keys for very many tasks, and most end early
        session.loop.call_later(seconds, partial(end_in_time, session, spec, name, follower))
    return follower


def end_in_time(session: Session, spec: QueueSpec, name: str, follower: Successor) -> None:
    """Delete a hold when its time is over. Otherwise it would stay while no caller wants the lock."""

    def on_checked(checked: HoldCheck | ZkLockError) -> None:
        pause = checked.next_check((name,)) if isinstance(checked, HoldCheck) else RETRY
        if pause is None and any(deletion.successor is follower for deletion in session.attached(Registry).deleting):
            pause = RETRY  # ZooKeeper has not carried out its transaction yet
        if pause is not None:
            session.loop.call_later(pause, partial(end_in_time, session, spec, name, follower))

    check(session, spec.key, spec.parent, name, on_checked)
