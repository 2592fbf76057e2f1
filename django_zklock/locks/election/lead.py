"""Knows the lock that is behind a lead, and who is told that a lead has begun or is over."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from django_zklock import conf
from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.execution.waiters import Routine
from django_zklock.locks.base import Entry, Plan
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.locks.terms import Terms
from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.leader")

_UNLISTED = LockOptions()


class Campaigner(Protocol):
    """Gets the lock by a campaign."""

    def _take(self, entry: Entry, terms: Terms, waiter: type[Any]) -> Routine[None]:
        """Take the lock, and wait for it."""


class LeadLock(Lock):
    """The lock of a leader, taken by a campaign instead of by a single attempt."""

    def __init__(self, campaigner: Campaigner, name: str, **options: Any) -> None:
        # What is said for all locks is not meant for the lead.
        super().__init__(name, kind="lock", limit=None, atomic=False, **options)
        self._campaigner = weakref.ref(campaigner)

    def _plan(self) -> Plan:
        entry = conf.current().locks.get(self.name, _UNLISTED)
        if entry.kind in ("read", "write") or isinstance(entry.limit, int) or entry.atomic not in (UNSET, ()):
            raise ValueError(f'ZKLOCK["LOCKS"]["{self.name}"]: leader locks cannot set kind, limit or atomic.')
        return super()._plan()

    def _take(
        self, entry: Entry, plan: Plan, timeout: float | None, waiter: type[Any], *, keep: bool = False
    ) -> Routine[None]:
        yield from self._alive._take(entry, plan.terms[0], waiter)

    @property
    def _alive(self) -> Campaigner:
        campaigner = self._campaigner()
        assert campaigner is not None
        return campaigner


class Heralds:
    """The callbacks of one candidate."""

    def __init__(self) -> None:
        self.elected: list[Callable[[Hold], object]] = []
        self.deposed: list[Callable[[str], object]] = []

    def tell(self, hold: Hold) -> None:
        """Have it told that the lead has begun, and later that it is over."""
        session = hold._grant.session
        for callback in self.elected:
            session.dispatch(_call, callback, hold)
        session.post(hold._grant.attach, _End(session, self.deposed))


class _End(GrantObserver):
    """Tells once that a lead is over."""

    def __init__(self, session: Session, callbacks: list[Callable[[str], object]]) -> None:
        self._session = session
        self._callbacks = callbacks
        self._told = False

    def on_lost(self, reason: str) -> None:
        self._tell(reason)

    def on_released(self) -> None:
        self._tell("")

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            for callback in self._callbacks:
                self._session.dispatch(_call, callback, reason)


def _call(callback: Callable[..., object], *args: object) -> None:
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback about a lead failed: %r", callback)
