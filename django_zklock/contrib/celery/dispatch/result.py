"""The result of the wait for one task, in the process or thread that runs the task: its locks, or an error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from billiard.process import current_process
from celery import current_app
from celery.signals import worker_process_init

from django_zklock import exceptions
from django_zklock.contrib.celery.dispatch.proxy import ContenderProxy, SessionProxy
from django_zklock.contrib.celery.dispatch.shared_grants import GrantRecord, SharedGrants, memories
from django_zklock.core import host
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.locks import guard
from django_zklock.core.locks.held import HeldLock, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol.spec import Caller
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.multi import Locks, locks_of

PAYLOAD: Final = "zklock_wait"
"""Key of a request: what the main process tells the process that runs the task."""
WAIT_RESULT: Final = "_zklock_wait_result"  # attribute of a request


class WaitResult:
    """The result of the wait for one task."""

    def __init__(self, payload: Mapping[str, Any], shared: SharedGrants) -> None:
        self.checked_copies = bool(payload.get("checked_copies"))
        """Whether the main process has looked for copies of the task."""
        self.own: tuple[str, ...] = tuple(payload.get("own", ()))
        """The guids of the task's own znodes, which may not be gone yet."""
        self.resend = bool(payload.get("resend"))
        """Whether the task is to be sent again."""
        self.held: list[HeldLock] = []
        """The locks from the main process. `held_locks` refers to them weakly until their owner acquires them."""
        self._payload = payload
        self._shared = shared
        grants = payload.get("grants", ())
        self._grants = [(GrantRecord(shared, grant["index"], grant["number"]), grant) for grant in grants]
        self._contenders: list[ContenderProxy] = []

    def begin(self, caller: Caller) -> None:
        """Begin to use the grants of the main process; use none if one was lost or given back meanwhile."""
        contenders: list[ContenderProxy] = []
        for record, grant in self._grants:
            if not record.begin():
                break
            contenders.append(ContenderProxy(_session_of(self._shared), record, grant, caller))
            if contenders[-1].grant.why_invalid() is not None:
                break
        else:
            self._contenders = contenders
            return
        self.end()

    @property
    def is_granted(self) -> bool:
        """Whether there are locks to take over."""
        return bool(self._contenders)

    @property
    def is_lost(self) -> bool:
        """Whether the task was granted its locks, and has lost them before it began."""
        return bool(self._grants) and not self._contenders

    @property
    def error(self) -> ZkLockError | None:
        """The error that the wait has ended with."""
        if "error" not in self._payload:
            return None
        kind: type[ZkLockError] = getattr(exceptions, self._payload["error"])
        return kind(self._payload["text"], lock=self._payload["lock"])

    def hand_over(self, lock: Locks) -> None:
        """Hand the locks over to the caller. Raises `LockInTransaction` if a transaction was begun before."""
        for spec in lock.specs:
            host.scope.check(spec)
        specs = {single.key: single.spec for single in locks_of(lock)}
        if not specs.keys() >= {contender.spec.key for contender in self._contenders}:  # a signal changed the arguments
            self.end()
            return
        for contender in self._contenders:
            self.held.append(_adopt(contender, specs[contender.spec.key]))

    def end(self) -> None:
        """Give back the grants that nothing uses; called at the end of the task, however it ended."""
        held = {hold.grant.token for hold in self.held if hold.uses or hold.observer is not None}
        for record, grant in self._grants:
            if grant["token"] not in held:
                record.end()


def _adopt(contender: ContenderProxy, spec: LockSpec) -> HeldLock:
    """List a lock of the main process as held by the caller, who then acquires it without a request."""
    grant = contender.grant
    held = HeldLock(contender, grant, current_owner(), spec.policy)
    held_locks.add(held, keep=False)
    if host.events.about is not None:
        grant.about = {**grant.about, **host.events.about()}  # of the run, which has begun since
    grant.begun = True
    if spec.max_hold is not None or spec.warn_after is not None:
        guard.apply_bounds(grant, contender, spec)
    host.events.acquired(held, contender.waited)
    contender.session.post(contender.session.watch, contender)
    return held


def _session_of(shared: SharedGrants) -> SessionProxy:
    """Return the session of the main process, as this process sees it in the memory of the worker."""
    if shared.proxy is None or shared.proxy.pid != os.getpid():
        shared.proxy = SessionProxy(shared)
    session: SessionProxy = shared.proxy
    return session


def wait_result(request: Any, caller: Caller) -> WaitResult | None:
    """Return the result of the wait for a task, from the `PAYLOAD` of its request. A second call returns None."""
    payload = request.__dict__.pop(PAYLOAD, None)
    (request.headers or {}).pop(PAYLOAD, None)  # or it would be sent again with the task
    shared = memories.get(str(payload.get("memory"))) if isinstance(payload, dict) else None
    if shared is None:
        return None
    result = WaitResult(payload, shared)
    setattr(request, WAIT_RESULT, result)  # first: `end` is called whatever happens, such as a time limit in this line
    result.begin(caller)
    return result


def set_ready(*, signal: object, **kwargs: object) -> None:
    """Say that this pool process is ready for tasks, or that it ends."""
    index = getattr(current_process(), "index", None)
    shared = [memory for memory in memories.values() if memory.app == current_app]
    if shared and index is not None:
        shared[-1].set_ready(index, os.getpid() if signal is worker_process_init else 0)
