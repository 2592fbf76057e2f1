"""Find reservations of unique tasks that are dead or unreadable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from django_zklock import clock
from django_zklock.exceptions import UnreadableQueue, ZooKeeperUnavailable
from django_zklock.queue import reservations
from django_zklock.queue.reservations import Reservation, Verdict
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import Callback, DirectoryReply, DirectoryState, Gateway, NamesReply
from django_zklock.zk.requests import call

MAX_READ: Final = 500  # reservations that are read


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


def report_reservations(reply_timeout: float) -> ReservationReport:
    """Read the reservations one by one, five hundred at most, for at most `reply_timeout` seconds."""
    session = process.current()
    directory = reservations.directory(session.options.base)
    deadline = clock.now() + reply_timeout
    names: list[str] = []
    dead: list[str] = []
    unreadable: list[str] = []
    problem = ""
    try:
        reply: NamesReply = call(session, partial(_list, directory), deadline)
        if isinstance(reply, ZkError):
            return ReservationReport(problem="" if isinstance(reply, NodeMissing) else str(reply))
        names = sorted(reply)
        if len(names) > MAX_READ:
            problem = f"{MAX_READ} of {len(names)} were read."
        for name in names[:MAX_READ]:
            found: DirectoryReply = call(session, partial(_read, f"{directory}/{name}"), deadline)
            if isinstance(found, DirectoryState):
                try:
                    verdict = reservations.judge(Reservation.decode(found.data), found.children, time.time())
                except UnreadableQueue:
                    unreadable.append(reservations.key_at(name))
                else:
                    if verdict is Verdict.DEAD:
                        dead.append(reservations.key_at(name))
    except ZooKeeperUnavailable as error:
        problem = str(error)
    return ReservationReport(total=len(names), dead=tuple(dead), unreadable=tuple(unreadable), problem=problem)


def _list(path: str, gateway: Gateway, done: Callback[NamesReply]) -> None:
    gateway.children(path, done)


def _read(path: str, gateway: Gateway, done: Callback[DirectoryReply]) -> None:
    gateway.read_directory(path, done)
