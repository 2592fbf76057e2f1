"""Knows one attempt to acquire: its deadline, and what its outcome means to the caller, however the caller waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from django_zklock.exceptions import LockBusy, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks import lifetime
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.contender import Busy, Contender, Free, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.terms import Terms
from django_zklock.queue.nodes import Kind
from django_zklock.zk.session import Session

_Waiter = TypeVar("_Waiter", ThreadWaiter[Outcome], TaskWaiter[Outcome])


class Attempt(Generic[_Waiter]):
    """One contender and the deadline of its caller."""

    def __init__(
        self, session: Session, terms: Terms, waiter: _Waiter, *, timeout: float | None, only_look: bool = False
    ) -> None:
        self.terms = terms
        self.waiter: _Waiter = waiter
        self.timeout = timeout
        self.grant: Grant | None = None  # written by the protocol's thread, before the waiter is woken
        self._answered = False  # protocol's thread only
        self._companions: tuple[_Companion, ...] = ()  # protocol's thread only
        self._session = session
        self._began = time.monotonic()
        patient = not only_look and (timeout is None or timeout > 0)
        deadline = None if timeout is None else self._began + timeout
        request = terms.request(patient=patient, deadline=deadline, only_look=only_look)
        self.contender = Contender(session, request, self._answer)

    def start(self, beside: Iterable[Grant] = ()) -> None:
        """Begin. It is called off if one of those `beside` it is lost, as it is of no use without them."""
        self.contender.start()
        companions = [_Companion(self, grant) for grant in beside]
        if companions:
            self._session.post(self._accompany, companions)

    def give_up(self) -> None:
        """Leave, whatever the outcome; doing it again changes nothing."""
        self.contender.abandon()
        self._session.post(self._part)

    def call_off(self, error: ZkLockError) -> None:
        """Leave, and have the caller raise `error`, unless there is an outcome already; on the protocol's thread."""
        if not self._answered:
            self.contender.abandon()
            self._answer(error)

    def _answer(self, outcome: Outcome) -> None:
        if self._answered:
            return  # called off, and on its way out
        self._answered = True
        self._part()
        if isinstance(outcome, Grant):
            self.grant = outcome
        if not self.waiter.set(outcome):
            self.contender.abandon()

    def _accompany(self, companions: list[_Companion]) -> None:
        for companion in companions:
            if not self._answered:
                self._companions = (*self._companions, companion)
                companion.grant.attach(companion)

    def _part(self) -> None:
        companions, self._companions = self._companions, ()
        for companion in companions:
            companion.grant.detach(companion)

    @property
    def waited(self) -> float:
        """Seconds since the attempt began."""
        return time.monotonic() - self._began

    @property
    def extra_patience(self) -> float:
        """Seconds to go on waiting after the timeout: for ZooKeeper's first answer, never for the lock."""
        return 0.0 if self.contender.placed else self.terms.patience

    def conclude(self, outcome: Outcome | None, owner: Owner) -> Hold:
        """Return the hold, or raise what the outcome means."""
        if isinstance(outcome, Grant):
            lifetime.bound(outcome, self.contender, self.terms)
            return Hold(self.contender, outcome, owner, self.terms.policy)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, Busy) and outcome.waiters is not None:
            raise LockBusy(
                f"{outcome.waiters} callers wait for the lock {self.terms.key!r} already; "
                f"max_waiters is {self.terms.max_waiters}.",
                lock=self.terms.key,
            )
        if isinstance(outcome, (Busy, Free)):
            raise LockBusy(self._why_busy(), lock=self.terms.key)
        behind = self._behind()  # it is in no line any more when it has given up
        self.give_up()
        if not self.contender.placed:
            raise ZooKeeperUnavailable(self._session.explain(self.waited), lock=self.terms.key)
        raise LockTimeout(
            f"The lock {self.terms.key!r} was not free within {self.waited:.1f} s{behind}.", lock=self.terms.key
        )

    def _why_busy(self) -> str:
        if self.terms.kind is Kind.LEASE and self.contender.operator is None:
            return f"No permit of {self.terms.key!r} is free{self._behind()}."
        return f"The lock {self.terms.key!r} is held by {self._holder}."

    @property
    def _holder(self) -> str:
        return str(self.contender.operator or self.one_ahead or "somebody else")

    def _behind(self) -> str:
        if self.contender.in_line:
            return "; many callers of this process wait for it, too"
        if self.contender.operator is not None:
            return f"; ahead is the hold of {self._holder}"
        return f"; the one ahead is {self.one_ahead}" if self.one_ahead else ""

    @property
    def one_ahead(self) -> str:
        """Who is just ahead, in words; empty if that is not known."""
        ahead = self.contender.ahead
        return "" if ahead is None else f"{ahead.what!r} on {ahead.host}, process {ahead.pid}"

    @property
    def about(self) -> Mapping[str, str]:
        """The work that the lock is for."""
        return self.contender.request.about


class _Companion(GrantObserver):
    """Calls an attempt off when a lock is lost that the caller holds already, and needs together with this one."""

    def __init__(self, attempt: Attempt[Any], grant: Grant) -> None:
        self.grant = grant
        self._attempt = attempt

    def on_lost(self, reason: str) -> None:
        self._attempt.call_off(self.grant.loss(reason))
