"""A blocking client for the queue of one lock, with one deadline for all its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from django_zklock import conf
from django_zklock.exceptions import InvalidLockName, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.validation import refuse_no_span
from django_zklock.queue import names, order, standing
from django_zklock.queue.nodes import own_limit
from django_zklock.queue.order import Queue
from django_zklock.queue.segments import SEQUENCE_TAIL, check_characters, shown
from django_zklock.zk import process
from django_zklock.zk.changes import Change, Remove
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.exchange import Answer, Await, Exchange, Plan, Step, Write
from django_zklock.zk.gateway import Family, Gateway, Node

AT_ONCE = 100  # nodes that are read together
PAUSE = 0.05  # seconds until what was not answered is asked again

PATIENCE: Final = 5.0
"""Seconds that ZooKeeper has for its answers, besides the time to wait for a lock."""

Ask = Callable[[Gateway, Callable[[Any], None]], object]


class QueueClient:
    """Requests about one lock, from one thread, with one deadline for all of them."""

    def __init__(self, key: str, patience: float) -> None:
        refuse_no_span("patience", patience)
        self.key = key
        self.base = conf.current().base
        self.parent = names.path(self.base, checked(key))
        self.session = process.current()
        self._deadline = time.monotonic() + patience

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._deadline - time.monotonic())

    def run(self, plan: Plan, *, directory: str = "") -> Any:
        """
        Follow a plan for the lock's directory; return its value.

        Raises `ZooKeeperUnavailable` when there was no answer in time; what was sent by then may be carried out.
        """
        waiter: ThreadWaiter[tuple[Any]] = ThreadWaiter()
        exchange = Exchange(
            self.session,
            self.parent,
            plan,
            lambda value: waiter.set((value,)),
            directory=directory or self.parent,
        )
        try:
            exchange.start()
            told = waiter.wait(self.left)
        except BaseException:
            exchange.abandon()
            raise
        if told is None:
            exchange.abandon()
            raise self.unanswered()
        if isinstance(told[0], ZkLockError):
            raise self.about(told[0])
        return told[0]

    def gone(self, name: str, patience: float) -> bool:
        """Tell whether a node of the queue is gone within `patience` seconds."""
        waiter: ThreadWaiter[tuple[Any]] = ThreadWaiter()

        def plan(found: Family | None, session_id: int) -> Any:
            return Await(name) if found is not None and name in found.children else Answer(True)

        exchange = Exchange(self.session, self.parent, plan, lambda value: waiter.set((value,)))
        try:
            exchange.start()
            return waiter.wait(max(0.0, patience)) is not None
        finally:
            exchange.abandon()

    def request(self, ask: Ask) -> Any:
        """
        Make one request, again and again until it is answered; return a value, or one of ZooKeeper's errors.

        So it may be carried out twice. Raises `ZooKeeperUnavailable`.
        """
        while True:
            waiter: ThreadWaiter[tuple[Any]] = ThreadWaiter()
            self.session.post(_asking, self.session, ask, waiter)
            told = waiter.wait(self.left)
            if told is None:
                raise self.unanswered()
            if not isinstance(told[0], (OutcomeUnknown, SessionGone)):
                return told[0]
            if self.left < PAUSE:
                raise self.unanswered()
            time.sleep(PAUSE)

    def read(self, name: str) -> Node | None:
        """Return a node of the queue, or None if it is gone. Raises `ZooKeeperUnavailable`, or what refused it."""
        answer = self.request(lambda gateway, callback: gateway.read(f"{self.parent}/{name}", callback))
        if isinstance(answer, Node):
            return answer
        if isinstance(answer, NodeMissing):
            return None
        raise self.about(answer)

    def limits(self, names: Iterable[str]) -> dict[str, int]:
        """
        Return the limits that contenders for permits know of, by their names: all are read together.

        Of one that is gone, or tells none, it is 1. Raises `ZooKeeperUnavailable`.
        """
        wanted = tuple(names)
        if not wanted:
            return {}

        def read(gateway: Gateway, done: Callable[[Any], None]) -> None:
            found: dict[str, int] = {}
            failed: list[ZkError] = []

            def take(name: str, answer: Any) -> None:
                if isinstance(answer, (OutcomeUnknown, SessionGone)):
                    failed.append(answer)
                found[name] = own_limit(answer.data) if isinstance(answer, Node) else 1
                if len(found) == len(wanted):
                    done(failed[0] if failed else found)

            for name in wanted:
                gateway.read(f"{self.parent}/{name}", partial(take, name))

        limits: dict[str, int] = self.request(read)
        return limits

    def limits_in(self, queue: Queue) -> dict[str, int]:
        """Return the own limits of those who may have a permit of a semaphore, if they count. Raises likewise."""
        found: dict[str, int] = {}
        while wanted := standing.undecided(queue, found):
            found.update(self.limits(wanted[:AT_ONCE]))
        return found

    def about(self, error: ZkLockError) -> ZkLockError:
        """Return an error with the lock that it is about."""
        error.lock = error.lock or self.key
        return error

    def unanswered(self) -> ZooKeeperUnavailable:
        """Return the error for a time that is over."""
        return ZooKeeperUnavailable(self.session.explain(), lock=self.key)


def checked(key: str) -> str:
    """Return `key` if it can be the key of a lock, as it stands below the root; raise `InvalidLockName`."""
    names.check_type(key)
    what = f"the key {shown(key)}"
    check_characters(key, "key")
    if len(key) > names.MAX_KEY:
        raise InvalidLockName(f"{what} is longer than {names.MAX_KEY} characters.")
    for segment in key.split("/"):
        if segment in ("", ".", "..") or SEQUENCE_TAIL.search(segment):
            raise InvalidLockName(f"{what} is the key of no lock: {shown(segment)} can be no part of one.")
    if key.startswith("!"):
        raise InvalidLockName(f"{what} is the key of no lock: what begins with ! is kept for other things.")
    return key


def _asking(session: Any, request: Ask, waiter: ThreadWaiter[tuple[Any]]) -> None:
    def done(answer: Any) -> None:
        waiter.set((answer,))

    if session.closing:
        done(ZooKeeperUnavailable("The ZooKeeper session of this process was closed."))
    else:
        request(session.attached(Gateway), done)


def children(found: Family | None, session_id: int) -> Step:
    """Answer with the names of all children; a plan."""
    return Answer(() if found is None else found.children)


class DeleteNode:
    """
    Delete one node, with changes beside it; True, or False if it is gone, or holds no lock where it should.

    It names no version: the name is given to no other node, and whoever writes its data is the same contender still.
    """

    def __init__(
        self, parent: str, name: str, beside: tuple[Change, ...] = (), *, held: bool = False, limit: int = 1
    ) -> None:
        self.tried = False  # so if it is gone, that may be the work of a request whose answer was lost
        self._parent = parent
        self._name = name
        self._beside = beside
        self._held = held
        self._limit = limit  # that the one to be deleted knows of, if it has a permit

    def __call__(self, found: Family | None, session_id: int) -> Step:
        if found is None or self._name not in found.children:
            return Answer(False)
        if self._held and not standing.has_lock(order.ordered(found.children), self._name, self._limit):
            return Answer(False)
        self.tried = True
        return Write((Remove(path=f"{self._parent}/{self._name}"), *self._beside), True)
