"""Knows how to ask who holds and who waits for any lock at all, without taking part."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.locks.looking import Contending
from django_zklock.locks.registry import Registry
from django_zklock.locks.waiting import ThreadWaiter
from django_zklock.queue import nodes, order
from django_zklock.queue.nodes import Child, Payload
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import Gateway, Node
from django_zklock.zk.session import Session

AT_ONCE: Final = 64  # requests under way
CONNECT_AGAIN: Final = 0.02  # seconds between two looks for a connection


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in all queues."""

    queues: Mapping[str, tuple[Contending, ...]]
    """By key, the contenders in their order: the holder first."""
    problem: str
    """Why there may be more; empty if this is all."""


def survey(patience: float) -> Survey:
    """
    Look at every queue, for at most `patience` seconds; return what was found by then.

    One list for each key and one read for each contender. The queues are looked at one after the other, so this is no
    picture of one moment. Never raises because ZooKeeper is away; the survey says so.
    """
    session = process.current()
    waiter: ThreadWaiter[Survey] = ThreadWaiter()
    walk = _Walk(session, waiter.set)
    session.post(walk.begin)
    found = waiter.wait(patience)
    if found is not None:
        return found
    session.post(walk.stop)
    return waiter.wait(patience) or Survey({}, f"ZooKeeper does not answer: {session.last_problem}.")


class _Walk:
    """One walk through the tree; it runs on the protocol's thread."""

    def __init__(self, session: Session, done: Callable[[Survey], object]) -> None:
        self._session = session
        self._done: Callable[[Survey], object] | None = done
        self._to_ask: deque[Callable[[], object]] = deque()
        self._under_way = 0
        self._queues: dict[str, tuple[Child, ...]] = {}
        self._payloads: dict[tuple[str, str], Payload | None] = {}
        self._problem = ""
        self._gateway: Gateway

    def begin(self) -> None:
        """Begin as soon as there is a connection."""
        if self._done is None:
            return
        if not self._session.connected:
            self._session.loop.call_later(CONNECT_AGAIN, self.begin)
            return
        self._gateway = self._session.attached(Registry).gateway
        self._to_ask.append(partial(self._list, ""))
        self._proceed()

    def stop(self) -> None:
        """End with what there is."""
        if not self._problem:
            self._problem = (
                "There was no time for the rest."
                if self._session.connected
                else f"ZooKeeper does not answer: {self._session.last_problem}."
            )
        self._conclude()

    def _proceed(self) -> None:
        while self._to_ask and self._under_way < AT_ONCE and self._done is not None:
            self._under_way += 1
            self._to_ask.popleft()()
        if not self._to_ask and not self._under_way:
            self._conclude()

    def _list(self, key: str) -> None:
        self._gateway.children(self._path(key), partial(self._on_listed, key))

    def _on_listed(self, key: str, answer: Any) -> None:
        self._under_way -= 1
        if isinstance(answer, ZkError):
            self._note(answer)
        else:
            self._sort(key, answer)
        self._proceed()

    def _sort(self, key: str, names: list[str]) -> None:
        below = {name for name in names if _is_directory(name)}
        try:
            queue = order.ordered([name for name in names if name not in below])
        except UnreadableQueue as error:
            self._problem = f"{key}: {error}"
            queue = ()
        for name in below:
            if not name.startswith("!"):  # no part of a key: reservations
                self._to_ask.append(partial(self._list, f"{key}/{name}" if key else name))
        if queue:
            self._queues[key] = queue
            self._to_ask.extend(partial(self._read, key, child.name) for child in queue)

    def _read(self, key: str, name: str) -> None:
        self._gateway.read(f"{self._path(key)}/{name}", partial(self._on_read, key, name))

    def _on_read(self, key: str, name: str, answer: Any) -> None:
        self._under_way -= 1
        if isinstance(answer, Node):
            self._payloads[key, name] = Payload.decode(answer.data)
        else:
            self._note(answer)
        self._proceed()

    def _path(self, key: str) -> str:
        base = self._session.options.base
        return f"{base}/{key}" if key else base

    def _note(self, error: ZkError) -> None:
        if not isinstance(error, NodeMissing):  # that is none any more
            self._problem = f"ZooKeeper did not answer: {error}"

    def _conclude(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            queues = {
                key: tuple(Contending(child.name, self._payloads.get((key, child.name))) for child in queue)
                for key, queue in self._queues.items()
            }
            done(Survey(queues, self._problem))


def _is_directory(name: str) -> bool:
    try:
        return nodes.parse(name) is None
    except UnreadableQueue:
        return False
