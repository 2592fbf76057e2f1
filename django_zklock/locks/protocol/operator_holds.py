"""
Read the operator holds in a queue, and delete those whose time is over by ZooKeeper's clock.

A hold may outlive the process that made it. If that process lives, it ends the hold; otherwise the contenders that the
hold keeps waiting do so. They may race, but no other znode ever gets the name of a hold. Runs on the protocol's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_zklock.queue import operator_hold
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operator_hold import OperatorHold
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Callback, Gateway, Node, NodeReply, WriteReply
from django_zklock.zk.multi import Delete
from django_zklock.zk.server_clock import CLOCK_NODE, ServerClock
from django_zklock.zk.session import Session

audit = logging.getLogger("zklock.audit")

RETRY = 1.0  # seconds until a refused or interrupted request is sent again
SOONEST = 0.01  # seconds until the next check, at least
LATEST = 60.0  # and at most, as the clock of the server may have been wrong


@dataclass(frozen=True, slots=True)
class CheckedHolds:
    """What a check has found."""

    over: frozenset[str]
    """Names of the holds that were over, and are deleted, or that were gone already."""
    left: Mapping[str, OperatorHold]
    """The holds that are not over, by their names, in the order of the queue."""
    now: float | None
    """The time by ZooKeeper's clock, in seconds since 1970; None if it is unknown."""

    @property
    def first(self) -> OperatorHold | None:
        """The hold that is first in the queue, for messages."""
        return next(iter(self.left.values()), None)

    def next_check(self, names: Iterable[str]) -> float | None:
        """Return the seconds until the next check of these holds; None if none of them is left."""
        ends = [self.left[name].until.timestamp() for name in names if name in self.left]
        if not ends or self.now is None:
            return RETRY if ends else None
        seconds = min(ends) - self.now
        return min(max(seconds, SOONEST), LATEST) if seconds > 0 else RETRY  # it is over, so its delete was refused


class HoldCheck:
    """
    One check of some operator holds: read them, ask for the time if one may be over, delete those that are over.

    Each request passes its reply through `guard`.
    """

    def __init__(
        self,
        gateway: Gateway,
        key: str,
        parent: str,
        guard: Callable[[Callback[Any]], Callback[Any]] = lambda callback: callback,
    ) -> None:
        self._gateway = gateway
        self._key = key
        self._parent = parent
        self._guard = guard
        self._clock = gateway.session.attached(ServerClock)
        self._over: set[str] = set()
        self._left: dict[str, OperatorHold] = {}
        self._done: Callable[[CheckedHolds | None], object]

    def run(self, names: Sequence[str], done: Callable[[CheckedHolds | None], object]) -> None:
        """Check the holds with these names, in the order of the queue. `done` gets None if the connection broke."""
        self._done = done
        answers: list[NodeReply] = []

        def on_read(name: str, answer: NodeReply) -> None:
            answers.append(answer)
            hold = read_hold(self._key, answer) if isinstance(answer, Node) else None
            if isinstance(answer, NodeMissing):
                self._over.add(name)
            elif hold is not None:  # else it is a contender that only has such a name
                self._left[name] = hold
            if len(answers) == len(names):
                self._on_all_read(answers)

        for name in names:
            self._gateway.read(f"{self._parent}/{name}", self._guard(partial(on_read, name)))

    def _on_all_read(self, answers: Sequence[NodeReply]) -> None:
        latest = self._clock.latest()
        if any(map(_interrupted, answers)):
            self._done(None)
        elif any(latest is None or hold.is_over(latest) for hold in self._left.values()):
            # The local clock since the last stamp of the server is a reason to ask the server, and no proof.
            self._gateway.sync_clock(f"{self._parent}/{CLOCK_NODE}", self._guard(self._on_time))
        else:
            self._report()

    def _on_time(self, answer: WriteReply) -> None:
        now = None if isinstance(answer, ZkError) else self._clock.now()
        over = [name for name, hold in self._left.items() if now is not None and hold.is_over(now)]
        if _interrupted(answer):
            self._done(None)
        elif over:
            deletes = [Delete(path=self._left[name].path) for name in over]
            self._gateway.commit(deletes, self._guard(partial(self._on_deleted, over)))
        else:
            self._report()

    def _on_deleted(self, names: Sequence[str], answer: WriteReply) -> None:
        if _interrupted(answer):
            self._done(None)
            return
        # All are deleted, or another process has deleted one of them, so the queue has to be listed again in any case.
        gone = answer is None or isinstance(answer, NodeMissing)
        for name in names if gone else ():
            hold = self._left.pop(name)
            self._over.add(name)
            if answer is None:
                extra = {"lock": self._key, "token": hold.token}
                audit.info("the hold of lock %r by %s is over", self._key, hold, extra=extra)
        self._report()

    def _report(self) -> None:
        self._done(CheckedHolds(frozenset(self._over), self._left, self._clock.now()))


def _interrupted(answer: object) -> bool:
    return isinstance(answer, (OutcomeUnknown, SessionGone))


def read_hold(key: str, node: Node) -> OperatorHold | None:
    """Return the operator hold that a znode is, or None."""
    return operator_hold.operator_hold(
        Payload.decode(node.data), key=key, path=node.path, token=node.czxid, owner=node.owner, ctime=node.ctime
    )


def end_in_time(session: Session, key: str, path: str, seconds: float) -> None:
    """End a hold in `seconds`, when its time is over. So it does not stay if no other caller wants the lock."""
    parent, _, name = path.rpartition("/")

    def check() -> None:
        HoldCheck(session.attached(Gateway), key, parent).run((name,), on_checked)

    def on_checked(found: CheckedHolds | None) -> None:
        again = RETRY if found is None else found.next_check((name,))
        if again is not None:
            session.loop.call_later(again, check)
        else:
            session.attached(Gateway).delete_if_empty(parent)

    session.loop.call_later(seconds, check)
