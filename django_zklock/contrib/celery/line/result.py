"""
What the line of a worker has come to for one task, in the process or thread that runs the task: its locks, or an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from django_zklock import exceptions, signals
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.contrib.celery.line.proxy import ContenderProxy, SessionProxy
from django_zklock.exceptions import ZkLockError
from django_zklock.execution import trace
from django_zklock.execution.owner import current_owner
from django_zklock.locks import maximum_hold, notify, table
from django_zklock.locks.base import check_transactions
from django_zklock.locks.held import HeldLock
from django_zklock.locks.multi import Locks, locks_of
from django_zklock.locks.protocol.grant import Grant, GrantedContender
from django_zklock.locks.protocol.spec import Caller
from django_zklock.locks.spec import LockSpec

FACTS: Final = "zklock_line"
"""Key of a request: the facts that a `LineResult` is made of."""
_RESULT: Final = "_zklock_line_result"  # attribute of a request


class GrantedTask(Protocol):
    """A message whose task has its locks."""

    def leave(self) -> None:
        """Give the locks back."""

    def hand_over(self) -> list[HeldLock]:
        """Give the locks to the caller, who takes them once more."""


class LineResult:
    """What the line has come to for one task."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.looked = bool(facts.get("looked"))
        """Whether the line has looked for copies of the task."""
        self.again = bool(facts.get("again"))
        """Whether the task is to be sent again."""
        self.held: list[HeldLock] = []
        """The locks that the line has acquired. They are listed weakly until their owner takes them."""
        self._facts = facts
        self._task: GrantedTask | None = None
        self._contenders: list[ContenderProxy] = []

    def begin(self, caller: Caller) -> None:
        """Begin to use the grants of the main process; none of them if one was lost meanwhile, or given back."""
        self._task = own_grants.pop(self._facts.get("number", 0), None)
        contenders: list[ContenderProxy] = []
        for each in self._facts.get("grants", ()):
            if page is None or not page.begin(each["place"], each["number"]):
                break
            contenders.append(ContenderProxy(_session_of(page), each, caller))
            if contenders[-1].grant.why_invalid() is not None:
                break
        else:
            self._contenders = contenders
            return
        self.end()

    @property
    def is_granted(self) -> bool:
        """Whether there are locks to take over."""
        return bool(self._contenders) or self._task is not None

    @property
    def is_late(self) -> bool:
        """Whether the task has waited for its locks, and had no process in time to use them."""
        return not self.is_granted and any(each in self._facts for each in ("grants", "number", "late"))

    @property
    def error(self) -> ZkLockError | None:
        """The error that the line got instead of the locks."""
        if "error" not in self._facts:
            return None
        kind: type[ZkLockError] = getattr(exceptions, self._facts["error"])
        return kind(self._facts["text"], lock=self._facts["lock"])

    def take(self, lock: Locks) -> None:
        """Take over the locks. Raises `LockInTransaction` if a transaction was begun before."""
        check_transactions(lock)
        if self._task is not None:
            self.held = self._task.hand_over()
            return
        specs = {each.key: each.spec for each in locks_of(lock)}
        if not specs.keys() >= {contender.spec.key for contender in self._contenders}:  # a signal changed the arguments
            self.end()
            return
        for contender in self._contenders:
            spec = specs[contender.spec.key]
            self.held.append(take_over(contender, contender.grant, spec, contender.waited))
            contender.session.post(contender.session.watch, contender)

    def end(self) -> None:
        """Give back what no part holds; called at the end of the task, however it ended."""
        if self._task is not None and not self.held:
            self._task.leave()
        held = {part.grant.token for part in self.held if part.count > 0 or part.observer is not None}
        for each in self._facts.get("grants", ()):
            if page is not None and each["token"] not in held:
                page.end(each["place"], each["number"])


def take_over(contender: GrantedContender, grant: Grant, spec: LockSpec, waited: float) -> HeldLock:
    """List a lock that the line has acquired as held by the caller, who then takes it without a request."""
    held = HeldLock(contender, grant, current_owner(), spec.policy)
    held.count = 0  # until the caller takes it
    table.held_locks.add(held, keep=False)
    if trace.items is not None:
        grant.about = {**grant.about, **trace.items()}  # of the run, which has begun since
    grant.begun = True
    if spec.is_bounded:
        maximum_hold.apply_bounds(grant, contender, spec)
    notify.send(held, signals.lock_acquired, waited=waited)
    return held


page: GrantPage | None = None  # made by the main process before it forks
own_grants: dict[int, GrantedTask] = {}
"""The tasks that have locks, and go to a thread or greenlet of the main process itself."""
_session: SessionProxy | None = None


def _session_of(page: GrantPage) -> SessionProxy:
    """Return the session of the main process, as this process sees it."""
    global _session
    if _session is None or _session.pid != os.getpid():
        _session = SessionProxy(page)
    return _session


def line_result(request: Any, caller: Caller) -> LineResult | None:
    """Return what the line of this worker has come to for the task of this request; once."""
    facts = request.__dict__.pop(FACTS, None)
    (request.headers or {}).pop(FACTS, None)  # or it would be sent again with the task
    if facts is None or facts["worker"] not in (os.getpid(), os.getppid()):
        return None
    found = LineResult(facts)
    setattr(request, _RESULT, found)  # first: `end` is called whatever happens, such as a time limit in this line
    found.begin(caller)
    return found


def end(request: Any) -> None:
    """The task of this request has ended."""
    found: LineResult | None = request.__dict__.get(_RESULT)
    if found is not None:
        found.end()
