"""Find reservations of unique tasks that are dead or unreadable."""

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
from django_zklock.zk.gateway import DirectoryState, Gateway
from django_zklock.zk.session import Session

MAX_READ: Final = 500  # reservations that are read
MAX_REQUESTS: Final = 64  # requests that are sent at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationReport:
    """All reservations."""

    total: int = 0
    dead: tuple[str, ...] = ()
    """The keys of those that no longer count. The next publisher takes them over."""
    unreadable: tuple[str, ...] = ()
    """The keys of those that no publisher can read, so that none of their tasks is sent."""
    problem: str = ""
    """Why there may be more; empty if this is all."""


def report_reservations(patience: float) -> ReservationReport:
    """Read the reservations, five hundred at most, for at most `patience` seconds."""
    session = process.current()
    waiter: ThreadWaiter[ReservationReport] = ThreadWaiter()
    scan = _ReservationScan(session, waiter.set)
    session.post(scan.begin)
    found = waiter.wait(patience)
    if found is not None:
        return found
    session.post(scan.end, "The time was too short to read them all.")
    return waiter.wait(patience) or ReservationReport(problem=session.explain())


class _ReservationScan:
    """One scan; it runs on the protocol's thread."""

    def __init__(self, session: Session, done: Callable[[ReservationReport], object]) -> None:
        self._session = session
        self._directory = reservations.directory(session.options.base)
        self._done: Callable[[ReservationReport], object] | None = done
        self._names: list[str] = []
        self._total = 0
        self._pending = 0
        self._dead: list[str] = []
        self._unreadable: list[str] = []

    @property
    def _gateway(self) -> Gateway:
        return self._session.attached(Gateway)

    def begin(self) -> None:
        """List the reservations. Without a connection, none are found."""
        self._gateway.children(self._directory, self._on_listed)

    def _on_listed(self, answer: list[str] | ZkError) -> None:
        if isinstance(answer, ZkError):
            self.end("" if isinstance(answer, NodeMissing) else f"ZooKeeper did not answer: {answer}")
            return
        self._total = len(answer)
        self._names = sorted(answer)[:MAX_READ]
        self._proceed()

    def _proceed(self) -> None:
        while self._names and self._pending < MAX_REQUESTS:
            self._pending += 1
            name = self._names.pop()
            self._gateway.read_directory(f"{self._directory}/{name}", partial(self._on_read, reservations.key_at(name)))
        if not self._pending:
            self.end(f"{MAX_READ} of {self._total} were read." if self._total > MAX_READ else "")

    def _on_read(self, key: str, answer: DirectoryState | ZkError) -> None:
        self._pending -= 1
        if isinstance(answer, DirectoryState):
            try:
                verdict = reservations.judge(Reservation.decode(answer.data), answer.children, time.time())
            except UnreadableQueue:
                self._unreadable.append(key)
            else:
                if verdict is Verdict.DEAD:
                    self._dead.append(key)
        self._proceed()

    def end(self, problem: str) -> None:
        """Report what was found."""
        done, self._done = self._done, None
        if done is not None:
            dead, unreadable = tuple(sorted(self._dead)), tuple(sorted(self._unreadable))
            done(ReservationReport(total=self._total, dead=dead, unreadable=unreadable, problem=problem))
