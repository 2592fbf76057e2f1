"""Knows how far the tokens of an ensemble have come: nobody can have been given a higher one."""

from __future__ import annotations

from typing import Any

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.hold import Hold
from django_zklock.zk import process
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.session import Session

PATIENCE = 2.0  # seconds to wait for the answer where a transaction is open meanwhile
_PAUSE = 0.1  # seconds between two tries


def ask(hold: Hold, patience: float = PATIENCE) -> int | None:
    """
    Return how far tokens have come, at a moment after the call; None if nobody says so in time.

    It is what a quorum says: a server that is cut off from the others would know an old state only.
    """
    return _ask(hold._grant.session, patience)


def current() -> int:
    """Return the same without a hold. Raises `ZooKeeperUnavailable`."""
    session = process.current()
    reached = _ask(session, session.options.connect_timeout)
    if reached is None:
        raise ZooKeeperUnavailable(session.explain())
    return reached


def _ask(session: Session, patience: float) -> int | None:
    waiter: ThreadWaiter[int] = ThreadWaiter()
    session.post(_Question(session, waiter, patience).put)
    return waiter.wait(patience)


class _Question:
    """One question, put again while there is no connection; on the loop's thread."""

    def __init__(self, session: Session, waiter: ThreadWaiter[int], patience: float) -> None:
        self._session = session
        self._waiter = waiter
        self._tries = int(patience / _PAUSE)

    def put(self) -> None:
        """Ask."""
        Gateway(self._session).reach(self._answered)

    def _answered(self, answer: Any) -> None:
        if not isinstance(answer, ZkError):
            self._waiter.set(answer)
        elif self._tries and not self._session.closing:
            self._tries -= 1
            self._session.loop.call_later(_PAUSE, self.put)
