"""
Read the operator holds in a queue, and delete those whose time is over by ZooKeeper's clock.

A hold outlives the process that made it, so another process may have to end it: the process that made it, if it still
lives, or else the contenders that the hold keeps waiting. They may race; only one delete succeeds, and the znode's name
is never given to another one. Runs on the protocol's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_zklock.queue import operators
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operators import OperatorHold
from django_zklock.zk.changes import Remove
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Callback, Gateway, Node
from django_zklock.zk.server_clock import CLOCK_NODE, ServerClock
from django_zklock.zk.session import Session

audit = logging.getLogger("zklock.audit")

RETRY = 1.0  # seconds until a refused or interrupted request is sent again
SOONEST = 0.01  # seconds until the next check, at least
LATEST = 60.0  # and at most, as the clock of the server may have been wrong


@dataclass(frozen=True, slots=True)
class CheckedHolds:
    """What a check has found."""

    gone: frozenset[str]
    """Names of those that are deleted, or are over if the check only looked."""
    left: Mapping[str, OperatorHold]
    """By their names those that still hold, the first in the queue first."""
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

    Each request passes its reply through `guard`. `done` gets None if the connection broke meanwhile.
    """

    def __init__(
        self,
        gateway: Gateway,
        key: str,
        parent: str,
        guard: Callable[[Callback], Callback] = lambda callback: callback,
        *,
        only_look: bool = False,
    ) -> None:
        self._gateway = gateway
        self._key = key
        self._parent = parent
        self._guard = guard
        self._only_look = only_look
        self._clock = gateway.session.attached(ServerClock)
        self._gone: set[str] = set()
        self._left: dict[str, OperatorHold] = {}
        self._done: Callable[[CheckedHolds | None], object]

    def run(self, names: Sequence[str], done: Callable[[CheckedHolds | None], object]) -> None:
        """Check the holds with these names, the first in the queue first."""
        self._done = done
        reads = [partial(self._gateway.read, f"{self._parent}/{name}") for name in names]
        self._send(reads, partial(self._on_read, names))

    def _on_read(self, names: Sequence[str], answers: Sequence[Any]) -> None:
        for name, answer in zip(names, answers, strict=True):
            hold = read_hold(self._key, answer) if isinstance(answer, Node) else None
            if isinstance(answer, NodeMissing):
                self._gone.add(name)
            elif hold is not None:  # else it is a contender that only has such a name
                self._left[name] = hold
        now = self._clock.now()
        if any(now is None or hold.is_over(now) for hold in self._left.values()):
            # What this process has counted since the last stamp is a reason to ask, and no proof.
            tell_time = partial(self._gateway.tell_time, f"{self._parent}/{CLOCK_NODE}")
            self._send([tell_time], self._on_time)
        else:
            self._report()

    def _on_time(self, answers: Sequence[Any]) -> None:
        now = None if isinstance(answers[0], ZkError) else self._clock.now()
        over = [name for name, hold in self._left.items() if now is not None and hold.is_over(now)]
        if self._only_look:
            self._on_deleted(over, [None] * len(over))
        else:
            deletes = [partial(self._gateway.change, (Remove(path=self._left[name].path),)) for name in over]
            self._send(deletes, partial(self._on_deleted, over))

    def _on_deleted(self, names: Sequence[str], answers: Sequence[Any]) -> None:
        for name, answer in zip(names, answers, strict=True):
            if answer is None and not self._only_look:
                hold = self._left[name]
                extra = {"lock": self._key, "token": hold.token}
                audit.info("the hold of lock %r by %s is over", self._key, hold, extra=extra)
            if answer is None or isinstance(answer, NodeMissing):
                self._gone.add(name)
                del self._left[name]
        self._report()

    def _report(self) -> None:
        self._done(CheckedHolds(frozenset(self._gone), self._left, self._clock.now()))

    def _send(self, requests: Sequence[Callable[[Callback], object]], done: Callable[[Sequence[Any]], object]) -> None:
        """Send these requests; pass all answers on, or report that the connection broke."""
        answers: dict[int, Any] = {}

        def on_answer(number: int, answer: Any) -> None:
            answers[number] = answer
            if len(answers) < len(requests):
                return
            if any(isinstance(each, (OutcomeUnknown, SessionGone)) for each in answers.values()):
                self._done(None)
            else:
                done([answers[each] for each in range(len(requests))])

        for number, request in enumerate(requests):
            request(self._guard(partial(on_answer, number)))
        if not requests:
            done(())


def read_hold(key: str, node: Node) -> OperatorHold | None:
    """Return the operator hold that a znode is, or None."""
    return operators.operator_hold(
        Payload.decode(node.data), key=key, path=node.path, token=node.czxid, owner=node.owner, ctime=node.ctime
    )


def end_in_time(session: Session, key: str, path: str, seconds: float) -> None:
    """Have this process end a hold, if it lives that long. So none is left behind where nobody wants the lock."""
    parent, _, name = path.rpartition("/")

    def check() -> None:
        HoldCheck(session.attached(Gateway), key, parent).run((name,), on_checked)

    def on_checked(found: CheckedHolds | None) -> None:
        again = RETRY if found is None else found.next_check((name,))
        if again is not None:
            session.loop.call_later(again, check)
        else:
            session.attached(Gateway).tidy(parent)

    session.loop.call_later(seconds, check)
