"""
Knows what a contender does about an operator's hold ahead of it: say so, and end it once its time is over.

A hold outlives the process that asked for it, so somebody else has to end it then. Nobody trusts a local clock for
that: the stamp of a write of one's own, made after the end, is the proof, and the version of the hold's node tells
that it is the same hold still. Runs on the protocol's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from django_zklock.locks.place import Request
from django_zklock.locks.turns import Turns
from django_zklock.queue import operators, rules
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.operators import OperatorHold
from django_zklock.zk.changes import Remove
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, Outdated, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, Node
from django_zklock.zk.loop import Timer
from django_zklock.zk.server_clock import ServerClock

audit = logging.getLogger("zklock.audit")

AGAIN = 1.0  # seconds until what was refused is tried again


def read_hold(key: str, node: Node) -> OperatorHold | None:
    """Return the operator's hold that a node is, or None."""
    return operators.operator_hold(
        Payload.decode(node.data),
        key=key,
        path=node.path,
        token=node.czxid,
        owner=node.owner,
        mtime=node.mtime,
        version=node.version,
    )


def is_over(hold: OperatorHold, stamp: float) -> bool:
    """Tell whether a hold is over at a time that the server has told."""
    return stamp >= hold.until.timestamp()


class Client(Protocol):
    """Who wants to know."""

    operator: OperatorHold | None
    """The hold that is in the way."""


class Bailiff:
    """Sees to the operator's holds ahead of one contender."""

    def __init__(self, gateway: Gateway, request: Request, turns: Turns, client: Client) -> None:
        self._client = client
        self._gateway = gateway
        self._request = request
        self._turns = turns
        self._clock = gateway.session.attached(ServerClock)
        self._timers: dict[str, Timer] = {}  # by the name of a hold's node

    def ask(
        self, queue: Sequence[Child], verdict: rules.Verdict, own: Node | None, done: Callable[[bool | None], object]
    ) -> None:
        """
        Tell, who does not wait, whether there is a way yet: True, try on; False, there is none; None, no answer came.

        There is one if nothing but a hold is in the way, and that is over. With the `own` node in the queue that is
        proven, and the hold is gone then; without, it only seems so, and the contender has to enter the queue to know.
        """
        alone = isinstance(verdict, rules.WaitFor) and verdict.alone
        waits_for = verdict.children if isinstance(verdict, rules.WaitFor) and alone else (queue[0].name,)
        asked = next((child for child in queue if child.name in waits_for and operators.is_operator(child.name)), None)
        if asked is None:
            done(False)
            return

        def on_read(answer: Any) -> None:
            if isinstance(answer, (OutcomeUnknown, SessionGone)):
                done(None)
                return
            hold = self._client.operator = read_hold(self._request.key, answer) if isinstance(answer, Node) else None
            if hold is None or not alone:
                done(alone and isinstance(answer, NodeMissing))
            elif own is None:
                done(self._seems_over(hold))
            elif is_over(hold, own.ctime):
                self._end(hold, done)
            else:
                done(False)

        self._read(asked, on_read)

    def glance(self, queue: Sequence[Child], verdict: rules.WaitFor, own: Node) -> None:
        """
        Learn of a hold further ahead than those that are waited for, and end it if it is over by now.

        The one just behind it may be a client that knows nothing of operators, and would wait for ever.
        """
        self._client.operator = None
        ahead = (each for each in queue if each.name not in verdict.children and operators.is_operator(each.name))
        found = next(ahead, None)
        me = next((each.sequence for each in queue if each.name == own.name), -1)
        if found is None or found.sequence > me:
            return

        def on_read(answer: Any) -> None:
            hold = read_hold(self._request.key, answer) if isinstance(answer, Node) else None
            if hold is None:
                return
            self._client.operator = self._client.operator or hold
            if is_over(hold, own.ctime):
                self._end(hold, lambda gone: None)

        self._read(found, on_read)

    def heed(self, ahead: Node, own: Node | None) -> None:
        """Take note of one that is waited for, and see to its end if it is a hold."""
        self.rest(ahead.name)
        hold = read_hold(self._request.key, ahead)
        if hold is not None and own is not None:
            self._client.operator = hold
            self._arm(hold, own)

    def rest(self, name: str) -> None:
        """See to this one no more."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # --- the end of a hold --------------------------------------------------------------------------------------

    def _arm(self, hold: OperatorHold, own: Node, *, at_least: float = 0.0) -> None:
        now = self._clock.now()
        left = 0.0 if now is None else hold.until.timestamp() - now
        self._timers[_name(hold)] = self._gateway.session.loop.call_later(
            max(at_least, left), lambda: self._turns.run(self._prove, hold, own)
        )

    def _prove(self, hold: OperatorHold, own: Node) -> None:
        """Have the own node stamped, which changes nothing in the queue."""
        self._timers.pop(_name(hold), None)

        def on_stamped(answer: Any) -> None:
            if _name(hold) in self._timers or isinstance(answer, (OutcomeUnknown, SessionGone, NodeMissing)):
                return  # the contender will look again
            if isinstance(answer, ZkError) or not is_over(hold, answer.mtime):
                self._arm(hold, own, at_least=AGAIN if isinstance(answer, ZkError) else 0.01)
            else:
                self._end(hold, lambda gone: self._arm(hold, own, at_least=AGAIN) if gone is False else None)

        self._gateway.write(own.path, own.data, -1, self._turns.pass_on(on_stamped))

    def _end(self, hold: OperatorHold, done: Callable[[bool | None], object]) -> None:
        def on_removed(answer: Any) -> None:
            if answer is None:
                audit.info(
                    "the hold of lock %s by %s is over, and was ended by the next in the queue",
                    self._request.key,
                    hold,
                    extra={"lock": self._request.key, "token": hold.token},
                )
            if isinstance(answer, (OutcomeUnknown, SessionGone, Outdated)):
                done(None)  # if it was written anew, the watch on it tells
            else:
                done(answer is None or isinstance(answer, NodeMissing))

        self._gateway.change((Remove(path=hold.path, version=hold.version),), self._turns.pass_on(on_removed))

    # --- small parts --------------------------------------------------------------------------------------------

    def _seems_over(self, hold: OperatorHold) -> bool:
        now = self._clock.now()
        if now is None:
            if not self._request.only_look:
                return True  # it is learnt by entering
            now = time.time()
        return is_over(hold, now)

    def _read(self, child: Child, on_read: Callable[[Any], None]) -> None:
        self._gateway.read(f"{self._request.parent}/{child.name}", self._turns.pass_on(on_read))


def _name(hold: OperatorHold) -> str:
    return hold.path.rpartition("/")[2]
