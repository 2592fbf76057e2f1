"""The result of the wait for one task, in the process or thread that runs the task: its locks, or an error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from billiard.process import current_process

from django_zklock import exceptions, signals
from django_zklock.contrib.celery.dispatch.proxy import ContenderProxy, SessionProxy
from django_zklock.contrib.celery.dispatch.shared_grants import SharedGrants
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

PAYLOAD: Final = "zklock_wait"
"""Key of a request: what the main process tells the process that runs the task."""
_RESULT: Final = "_zklock_wait_result"  # attribute of a request


class GrantedTask(Protocol):
    """A message whose task has its locks."""

    def leave(self) -> None:
        """Give the locks back."""

    def hand_over(self) -> list[HeldLock]:
        """Give the locks to the caller, who takes them once more."""


class WaitResult:
    """The result of the wait for one task."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.checked_copies = bool(payload.get("checked_copies"))
        """Whether the main process has looked for copies of the task."""
        self.own: tuple[str, ...] = tuple(payload.get("own", ()))
        """The guids of the task's own znodes, which may not be gone yet."""
        self.resend = bool(payload.get("resend"))
        """Whether the task is to be sent again."""
        self.held: list[HeldLock] = []
        """The locks that the main process has acquired. They are listed weakly until their owner takes them."""
        self._payload = payload
        self._task: GrantedTask | None = None
        self._contenders: list[ContenderProxy] = []

    def begin(self, caller: Caller) -> None:
        """Begin to use the grants of the main process; none of them if one was lost meanwhile, or given back."""
        self._task = own_grants.pop(self._payload.get("number", 0), None)
        contenders: list[ContenderProxy] = []
        for grant in self._payload.get("grants", ()):
            if shared is None or not shared.begin(grant["index"], grant["number"]):
                break
            contenders.append(ContenderProxy(_session_of(shared), grant, caller))
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
    def is_lost(self) -> bool:
        """Whether the task was granted its locks, and has lost them before it began."""
        return not self.is_granted and any(name in self._payload for name in ("grants", "number", "lost"))

    @property
    def error(self) -> ZkLockError | None:
        """The error that the wait has ended with."""
        if "error" not in self._payload:
            return None
        kind: type[ZkLockError] = getattr(exceptions, self._payload["error"])
        return kind(self._payload["text"], lock=self._payload["lock"])

    def take(self, lock: Locks) -> None:
        """Take over the locks. Raises `LockInTransaction` if a transaction was begun before."""
        check_transactions(lock)
        if self._task is not None:
            self.held = self._task.hand_over()
            return
        specs = {single.key: single.spec for single in locks_of(lock)}
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
        for grant in self._payload.get("grants", ()):
            if shared is not None and grant["token"] not in held:
                shared.end(grant["index"], grant["number"])


def take_over(contender: GrantedContender, grant: Grant, spec: LockSpec, waited: float) -> HeldLock:
    """List a lock of the main process as held by the caller, who then takes it without a request."""
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


shared: SharedGrants | None = None  # made by the main process before it forks
own_grants: dict[int, GrantedTask] = {}
"""The tasks that have locks, and go to a thread or greenlet of the main process itself."""
_session: SessionProxy | None = None


def _session_of(grants: SharedGrants) -> SessionProxy:
    """Return the session of the main process, as this process sees it."""
    global _session
    if _session is None or _session.pid != os.getpid():
        _session = SessionProxy(grants)
    return _session


def wait_result(request: Any, caller: Caller) -> WaitResult | None:
    """Return the result of the wait for the task of this request; once."""
    payload = request.__dict__.pop(PAYLOAD, None)
    (request.headers or {}).pop(PAYLOAD, None)  # or it would be sent again with the task
    if payload is None or payload["worker"] not in (os.getpid(), os.getppid()):
        return None
    result = WaitResult(payload)
    setattr(request, _RESULT, result)  # first: `end` is called whatever happens, such as a time limit in this line
    result.begin(caller)
    return result


def end(request: Any) -> None:
    """The task of this request has ended."""
    result: WaitResult | None = request.__dict__.get(_RESULT)
    if result is not None:
        result.end()


def begin_process(**kwargs: object) -> None:
    """Say that this pool process is ready for tasks."""
    _set_ready(os.getpid())


def end_process(**kwargs: object) -> None:
    """Say that this pool process will run no more tasks."""
    _set_ready(0)


def _set_ready(pid: int) -> None:
    index = getattr(current_process(), "index", None)
    if shared is not None and index is not None:
        shared.set_ready(index, pid)
