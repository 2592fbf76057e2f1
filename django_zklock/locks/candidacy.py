"""Knows how to stay in a lock's queue for as long as it takes, and to look now and then whether the turn has come."""

from __future__ import annotations

from django_zklock import signals
from django_zklock.locks.attempt import Attempt
from django_zklock.locks.contender import Outcome
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.taking import RELEASE_PATIENCE, let_go, send
from django_zklock.locks.waiting import ThreadWaiter
from django_zklock.owner import current_owner
from django_zklock.zk import process


class Candidacy:
    """
    One place in the queue of a lock, kept between two looks; for a thread that has to do something else in between.

    `Lock.acquire` with a timeout would give the place up each time, and come last again. The hold is nobody's to take
    again, and no work is stopped when it is lost: ask `hold.check()`. Used by one thread.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._attempt: Attempt[ThreadWaiter[Outcome]] | None = None
        self.hold: Hold | None = None

    @property
    def standing(self) -> str:
        """Where in the queue this candidate is, in words."""
        if self.hold is not None:
            return "first"
        if self._attempt is None or not self._attempt.contender.placed:
            return f"not in the queue yet: {process.current().last_problem}"
        if self._attempt.contender.operator is not None:
            return f"behind {self._attempt.contender.operator}"
        ahead = self._attempt.contender.ahead
        return "in the queue" if ahead is None else f"behind process {ahead.pid} on {ahead.host}"

    def wait(self, timeout: float) -> Hold | None:
        """
        Wait for the lock for at most `timeout` seconds; return the hold, or None: then it is still in the queue.

        It stays there through any loss of the connection. Raises `ZooKeeperUnavailable` when there was no connection
        within the connect timeout, and another `ZkLockError` when the queue cannot be entered; a wait after that begins
        anew.
        """
        if self.hold is not None:
            return self.hold
        if self._attempt is None:
            self._attempt = Attempt(process.current(), self._lock._terms(), ThreadWaiter[Outcome](), timeout=None)
            self._attempt.contender.start()
        attempt = self._attempt
        outcome = attempt.waiter.wait(timeout)
        if outcome is None:
            return None
        try:
            self.hold = attempt.conclude(outcome, current_owner())
        finally:
            self._attempt = None
        send(self.hold, signals.lock_acquired, waited=attempt.waited)
        return self.hold

    def withdraw(self) -> None:
        """Let go of the lock, or leave its queue; a wait after that begins anew, at the end."""
        attempt, self._attempt = self._attempt, None
        hold, self.hold = self.hold, None
        if attempt is not None:
            attempt.contender.abandon()
        if hold is not None:
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            let_go(hold, 0, waiter.set)
            waiter.wait(RELEASE_PATIENCE)
