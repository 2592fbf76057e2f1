"""
Knows those ahead in a queue whose end one contender waits for: it watches them, and tells what becomes of them.

Runs on the protocol's thread. Whose end that is, and what it means, the rule and the contender know.
"""

from __future__ import annotations

from typing import Protocol

from django_zklock.exceptions import ZkLockError
from django_zklock.locks.protocol import faultpoints
from django_zklock.locks.protocol.replies import Turns
from django_zklock.queue import rules
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, Node, NodeReply, Watch


class Successor(Protocol):
    """Who waits."""

    def on_ahead_read(self, node: Node) -> None:
        """One of those ahead is this; it is watched from now on."""

    def on_ahead_gone(self, *, alone: bool) -> None:
        """One of them is gone; `alone`: that is a grant."""

    def on_ahead_changed(self) -> None:
        """The queue may not mean what it did, and is to be looked at again."""

    def on_refused(self, error: ZkLockError) -> None:
        """ZooKeeper does not let them be watched."""


class Predecessors:
    """Those that one contender waits for."""

    def __init__(self, gateway: Gateway, parent: str, turns: Turns, successor: Successor) -> None:
        self._gateway = gateway
        self._parent = parent
        self._turns = turns
        self._successor = successor
        self._watches: dict[str, Watch] = {}  # by name
        self._limit: Watch | None = None
        self._alone = False

    def wait_for(self, verdict: rules.WaitFor) -> None:
        """Wait for these, and for nobody else any more."""
        self._alone = verdict.alone
        for name in self._watches.keys() - set(verdict.children):
            self._forget(name)
        if verdict.heed_limit and self._limit is None:
            self._heed_limit()
            return
        for name in verdict.children:
            if name not in self._watches:
                self._watch(name)

    def forget(self) -> None:
        """Wait for nobody."""
        for name in list(self._watches):
            self._forget(name)
        watch, self._limit = self._limit, None
        if watch is not None:
            watch.cancel()

    def _watch(self, name: str) -> None:
        def on_read(answer: NodeReply) -> None:
            if isinstance(answer, Node):
                self._successor.on_ahead_read(answer)
                if answer.version:
                    self._successor.on_ahead_changed()  # since the look, perhaps: it may be one who reads now
            elif isinstance(answer, NodeMissing):
                self._on_gone(name)
            elif not isinstance(answer, (OutcomeUnknown, SessionGone)):  # else there will be another look
                self._successor.on_refused(answer)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_gone(name)
            else:
                self._forget(name)
                self._successor.on_ahead_changed()  # it may share the lock from now on, or be another's

        faultpoints.reach("before_watch")
        watch = self._gateway.read(
            f"{self._parent}/{name}", self._turns.pass_on(on_read), self._turns.pass_on(on_event)
        )
        if watch is not None:
            self._watches[name] = watch
        faultpoints.reach("after_watch")

    def _on_gone(self, name: str) -> None:
        self._forget(name)
        self._successor.on_ahead_gone(alone=self._alone)

    def _heed_limit(self) -> None:
        """Watch the directory, whose data is written whenever the limit is changed, and have the queue looked at."""

        def on_read(answer: NodeReply) -> None:
            if isinstance(answer, ZkError) and not isinstance(answer, (NodeMissing, OutcomeUnknown, SessionGone)):
                self._successor.on_refused(answer)  # nobody would tell of a change

        def on_event(deleted: bool) -> None:
            self._limit = None
            self._successor.on_ahead_changed()

        self._limit = self._gateway.read(self._parent, self._turns.pass_on(on_read), self._turns.pass_on(on_event))
        self._successor.on_ahead_changed()

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
