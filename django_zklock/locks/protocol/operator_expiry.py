"""
Knows what a contender does about an operator's hold ahead of it: say so, and end it once its time is over.

A hold outlives the process that asked for it, so somebody else has to end it then. Nobody trusts a local clock for
that: the stamp of a write of one's own, made after the end, is the proof, and the version of the hold's node tells
that it is the same hold still. Runs on the protocol's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from django_zklock.locks.protocol.node import Request
from django_zklock.locks.protocol.replies import Turns
from django_zklock.queue import operators, rules
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.operators import OperatorHold
from django_zklock.queue.order import Queue
from django_zklock.zk.clock import ServerClock
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, Outdated, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, Node, NodeReply, WriteReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.multi import Delete

audit = logging.getLogger("zklock.audit")

AGAIN = 1.0  # seconds until what was refused is tried again
AT_ONCE = 10  # holds that are read together


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
        self._waits = False  # the contender does

    def ask(self, queue: Queue, me: str, own: Node | None, done: Callable[[bool | None], object]) -> None:
        """
        Tell `me`, who does not wait, whether there is a way yet: True, try on; False, there is none; None, no answer.

        There is one if nothing but holds is in the way, and those are over. With the `own` node in the queue that is
        proven, and they are gone then; without, it only seems so, and the contender has to enter the queue to know.
        """
        ahead = queue[: queue.place(me)]
        holds = [child.name for child in ahead if operators.is_operator(child.name)]
        if self._is_way(queue, me, holds):
            self._sift(queue, me, own, done, holds, {})
        elif holds and holds[0] == queue[0].name:
            self._read_all(holds[:1], lambda found: done(None if found is None else False))  # to say who it is
        else:
            done(False)

    def _sift(
        self,
        queue: Queue,
        me: str,
        own: Node | None,
        done: Callable[[bool | None], object],
        unread: list[str],
        over: dict[str, OperatorHold | None],
    ) -> None:
        """Do so by reading holds, the newest first, until it is clear; those that are `over`, or gone, are no more."""

        def on_read(found: dict[str, OperatorHold | None] | None) -> None:
            if found is None:
                done(None)
                return
            over.update({name: hold for name, hold in found.items() if hold is None or self._is_past(hold, own)})
            self._sift(queue, me, own, done, unread[:-AT_ONCE], over)

        if not self._is_way(queue, me, (*unread, *over)):
            done(False)
        elif unread:
            self._read_all(unread[-AT_ONCE:], on_read)
        elif own is None:
            done(True)
        else:
            self._end_all([hold for hold in over.values() if hold is not None], done)

    def glance(self, queue: Sequence[Child], verdict: rules.WaitFor, own: Node) -> None:
        """
        Learn of a hold further ahead than those that are waited for, and end it if it is over by now.

        The one just behind it may be a client that knows nothing of operators, and would wait for ever. If nobody of
        ours is between, it is this contender that ends it later, too.
        """
        self._waits = True
        self._client.operator = None
        for name in self._timers.keys() - set(verdict.children):
            self.rest(name)
        ahead = queue[: next((place for place, each in enumerate(queue) if each.name == own.name), 0)]
        holds = [each for each in ahead if operators.is_operator(each.name) and each.name not in verdict.children]
        for found in holds[:AT_ONCE]:
            behind = (each for each in ahead if each.sequence > found.sequence)
            stay = not any(each.by_us and not operators.is_operator(each.name) for each in behind)
            if stay or found is holds[0]:
                self._visit(found.name, own, stay=stay)

    def _visit(self, name: str, own: Node, *, stay: bool) -> None:
        """Read a hold, and end it if it is over; `stay`: or else visit it again when it is to be over."""
        self._timers.pop(name, None)

        def on_read(answer: NodeReply) -> None:
            hold = read_hold(self._request.key, answer) if isinstance(answer, Node) else None
            if hold is None or name in self._timers:
                return
            self._client.operator = self._client.operator or hold
            if is_over(hold, own.ctime):
                self._end(hold, lambda gone: None)
            elif stay and self._left(hold) > 0:
                self._set(hold, self._left(hold), lambda: self._visit(name, own, stay=True))
            elif stay:
                self._prove(hold, own)

        self._gateway.read(f"{self._request.parent}/{name}", self._turns.pass_on(on_read))

    def heed(self, ahead: Node, own: Node | None) -> None:
        """Take note of one that is waited for, and see to its end if it is a hold."""
        self._waits = True
        self.rest(ahead.name)
        hold = read_hold(self._request.key, ahead)
        if hold is not None and own is not None:
            self._client.operator = hold
            self._arm(hold, own)

    def rest_all(self) -> None:
        """See to none of them any more: nothing is waited for."""
        self._waits = False
        for name in list(self._timers):
            self.rest(name)

    def rest(self, name: str) -> None:
        """See to this one no more."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # --- the end of a hold --------------------------------------------------------------------------------------

    def _arm(self, hold: OperatorHold, own: Node, *, at_least: float = 0.0) -> None:
        self._set(hold, max(at_least, self._left(hold)), lambda: self._prove(hold, own))

    def _set(self, hold: OperatorHold, seconds: float, call: Callable[[], object]) -> None:
        if self._waits:
            self._timers[_name(hold)] = self._gateway.session.loop.call_later(seconds, lambda: self._turns.run(call))

    def _left(self, hold: OperatorHold) -> float:
        """Return the seconds that a hold has left, as far as the server's clock is known."""
        now = self._clock.now()
        return 0.0 if now is None else hold.until.timestamp() - now

    def _prove(self, hold: OperatorHold, own: Node) -> None:
        """Have the own node stamped, which changes nothing in the queue."""
        self._timers.pop(_name(hold), None)

        def on_stamped(answer: NodeReply) -> None:
            if _name(hold) in self._timers or isinstance(answer, (OutcomeUnknown, SessionGone, NodeMissing)):
                return  # the contender will look again
            if isinstance(answer, ZkError) or not is_over(hold, answer.mtime):
                self._arm(hold, own, at_least=AGAIN if isinstance(answer, ZkError) else 0.01)
            else:
                self._end(hold, lambda gone: self._arm(hold, own, at_least=AGAIN) if gone is False else None)

        self._gateway.write(own.path, own.data, -1, self._turns.pass_on(on_stamped))

    def _end(self, hold: OperatorHold, done: Callable[[bool | None], object]) -> None:
        def on_removed(answer: WriteReply) -> None:
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

        self._gateway.commit((Delete(path=hold.path, version=hold.version),), self._turns.pass_on(on_removed))

    # --- small parts --------------------------------------------------------------------------------------------

    def _is_way(self, queue: Queue, me: str, without: Collection[str]) -> bool:
        return isinstance(self._request.rule(queue.without(without), me), rules.Granted)

    def _is_past(self, hold: OperatorHold, own: Node | None) -> bool:
        past = self._seems_over(hold) if own is None else is_over(hold, own.ctime)
        if not past:
            self._client.operator = hold
        return past

    def _seems_over(self, hold: OperatorHold) -> bool:
        now = self._clock.now()
        if now is None:
            if not self._request.only_look:
                return True  # it is learnt by entering
            now = time.time()
        return is_over(hold, now)

    def _read_all(self, names: Sequence[str], done: Callable[[dict[str, OperatorHold | None] | None], object]) -> None:
        """Read holds, all at once; None for one that is gone. What is no hold, or cannot be read, is left out."""
        found: dict[str, OperatorHold | None] = {}
        answers: list[Any] = []

        def on_read(name: str, answer: NodeReply) -> None:
            answers.append(answer)
            hold = read_hold(self._request.key, answer) if isinstance(answer, Node) else None
            if hold is not None or isinstance(answer, NodeMissing):
                found[name] = hold
            if len(answers) == len(names):
                unclear = any(isinstance(each, (OutcomeUnknown, SessionGone)) for each in answers)
                self._client.operator = next((hold for hold in found.values() if hold is not None), None)
                done(None if unclear else found)

        for name in names:
            self._gateway.read(f"{self._request.parent}/{name}", self._turns.pass_on(partial(on_read, name)))

    def _end_all(self, holds: Sequence[OperatorHold], done: Callable[[bool | None], object]) -> None:
        """End holds that are over; tell whether all are gone, or None if that is not clear."""
        told: list[bool | None] = []

        def on_end(gone: bool | None) -> None:
            told.append(gone)
            if len(told) == len(holds):
                done(None if None in told else all(told))

        for hold in holds:
            self._end(hold, on_end)
        if not holds:
            done(True)


def _name(hold: OperatorHold) -> str:
    return hold.path.rpartition("/")[2]
