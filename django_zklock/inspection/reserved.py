"""Knows how to find reservations of unique tasks that nothing will ever come of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.queue import reservations
from django_zklock.queue.reservations import Reservation, Verdict
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import DirectoryReply, DirectoryState, Gateway, NamesReply
from django_zklock.zk.session import Session

MOST: Final = 500  # reservations that are read; AT_ONCE of them at a time
AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The reservations there are."""

    total: int = 0
    lifeless: tuple[str, ...] = ()
    """The keys of those that count no more: the next publisher takes them over."""
    unreadable: tuple[str, ...] = ()
    """The keys of those that no publisher can read, so that none of their tasks is sent."""
    problem: str = ""
    """Why there may be more; empty if this is all."""


def reserved(patience: float) -> Reserved:
    """Look at the reservations, five hundred at most, for at most `patience` seconds; changes nothing."""
    session = process.current()
    waiter: ThreadWaiter[Reserved] = ThreadWaiter()
    look = _Look(session, waiter.set)
    session.post(look.begin)
    found = waiter.wait(patience)
    if found is not None:
        return found
    session.post(look.conclude, "There was no time for the rest.")
    return waiter.wait(patience) or Reserved(problem=session.explain())


class _Look:
    """One look; it runs on the protocol's thread."""

    def __init__(self, session: Session, done: Callable[[Reserved], object]) -> None:
        self._session = session
        self._done: Callable[[Reserved], object] | None = done
        self._names: list[str] = []
        self._total = 0
        self._under_way = 0
        self._lifeless: list[str] = []
        self._unreadable: list[str] = []

    def begin(self) -> None:
        """List them; without a connection, nothing is found."""
        directory = reservations.directory(self._session.options.base)
        self._session.attached(Gateway).children(directory, self._on_listed)

    def _on_listed(self, answer: NamesReply) -> None:
        if isinstance(answer, ZkError):
            self.conclude("" if isinstance(answer, NodeMissing) else f"ZooKeeper did not answer: {answer}")
            return
        self._total = len(answer)
        self._names = sorted(answer)[:MOST]
        self._proceed()

    def _proceed(self) -> None:
        while self._names and self._under_way < AT_ONCE:
            self._under_way += 1
            name = self._names.pop()
            path = f"{reservations.directory(self._session.options.base)}/{name}"
            self._session.attached(Gateway).read_directory(path, partial(self._on_read, reservations.key_at(name)))
        if not self._under_way:
            self.conclude(f"{MOST} of {self._total} were read." if self._total > MOST else "")

    def _on_read(self, key: str, answer: DirectoryReply) -> None:
        self._under_way -= 1
        if isinstance(answer, DirectoryState):
            try:
                verdict = reservations.judge(Reservation.decode(answer.data), answer.children, time.time())
            except UnreadableQueue:
                self._unreadable.append(key)
            else:
                if verdict is Verdict.DEAD:
                    self._lifeless.append(key)
        self._proceed()

    def conclude(self, problem: str) -> None:
        """End with what there is."""
        done, self._done = self._done, None
        if done is not None:
            lifeless, unreadable = tuple(sorted(self._lifeless)), tuple(sorted(self._unreadable))
            done(Reserved(total=self._total, lifeless=lifeless, unreadable=unreadable, problem=problem))
