"""
The pool process, or the thread or greenlet, that runs a task whose wait took place in the worker's main process.

It works under the grant of the main process, which it sees in the memory that both share; see `dispatch`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from billiard.process import current_process
from celery import current_app
from celery.signals import worker_process_init

from django_zklock.contrib.celery.dispatch.shared_grants import (
    PAYLOAD,
    GrantPayload,
    GrantRecord,
    SharedGrants,
    WaitPayload,
    memories,
)
from django_zklock.core import clock, hooks
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.locks import bounds
from django_zklock.core.locks.held import HeldLock, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol import releases
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import troubles
from django_zklock.core.zk.lease import GrantSession
from django_zklock.core.zk.loop import Loop
from django_zklock.locks.multi import Locks

WAIT_RESULT: Final = "_zklock_wait_result"  # attribute of a request
READ_EVERY: Final = 0.05  # seconds between two looks at the records of the grants in use
CONFIRM_EVERY: Final = 0.005  # seconds between two looks whether the main process has released a lock


def wait_result(request: Any, caller: Caller) -> WaitResult | None:
    """Return the result of the wait for a task, from the `PAYLOAD` of its request. A second call returns None."""
    payload = request.__dict__.pop(PAYLOAD, None)
    shared = memories.get(payload.memory) if isinstance(payload, WaitPayload) else None  # else a sender has written it
    if shared is None:
        return None
    result = WaitResult(payload, shared)
    setattr(request, WAIT_RESULT, result)  # first: `end` is called whatever happens, such as a time limit in this line
    result.begin(caller)
    return result


class WaitResult:
    """The result of the wait for one task: its locks, or an error."""

    def __init__(self, payload: WaitPayload, shared: SharedGrants) -> None:
        self.error = payload.error
        """The error that the wait has ended with."""
        self.resend = payload.resend
        self.held: list[HeldLock] = []
        """The locks from the main process. `held_locks` refers to them weakly until their owner acquires them."""
        self._shared = shared
        self._grants = [(GrantRecord(shared, grant.index, grant.number), grant) for grant in payload.grants]
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

    def hand_over(self, lock: Locks) -> None:
        """
        Hand the locks over to the caller, who then acquires them again without a request.

        Raises `LockInTransaction` if a transaction was begun before.
        """
        specs = {spec.key: spec for spec in lock.specs}
        for spec in specs.values():
            hooks.scope.check(spec)
        if not specs.keys() >= {contender.spec.key for contender in self._contenders}:  # a signal changed the arguments
            self.end()
            return
        for contender in self._contenders:
            self.held.append(contender.hand_over(specs[contender.spec.key]))

    def end(self) -> None:
        """Give back the grants that nothing uses; called at the end of the task, however it ended."""
        held = {hold.grant.token for hold in self.held if hold.uses or hold.observer is not None}
        for record, grant in self._grants:
            if grant.token not in held:
                record.end()


class ContenderProxy:
    """Stands for a contender of the main process, with the one grant that it has, here a second `Grant`."""

    waits = True  # a task whose timeout is 0 acquires its lock in its own process
    sends_release = False  # the main process does
    lingers = False

    def __init__(self, session: SessionProxy, record: GrantRecord, payload: GrantPayload, caller: Caller) -> None:
        self.session = session
        self.spec = QueueSpec(key=payload.key, parent=payload.path.rpartition("/")[0], kind=payload.kind)
        self.caller = caller
        self.grant = Grant(session, payload.key, payload.path, payload.token, payload.kind)
        self.grant.session_id = payload.session
        self.grant.since = payload.since
        self.grant.template = payload.template
        self.grant.what, self.grant.about = caller.what, caller.about
        self._waited = payload.waited
        self._record = record
        self._read_to = 0  # bytes of the record's text
        self._ending = False  # written by its owner

    def hand_over(self, spec: LockSpec) -> HeldLock:
        """List the lock as held by the caller, and read from now on what happens to it."""
        grant = self.grant
        held = HeldLock(self, grant, current_owner(), spec)
        held_locks.add(held, keep=False)
        if hooks.events.about is not None:
            grant.about = {**grant.about, **hooks.events.about()}  # of the run, which has begun since
        grant.begun = True
        if spec.max_hold is not None or spec.warn_after is not None:
            bounds.apply_bounds(grant, self, spec)
        hooks.events.acquired(held, self._waited)
        self.session.post(self.session.watch, self)
        return held

    def read(self) -> None:
        """Learn what has happened to the lock; on the loop's thread."""
        record, grant = self._record, self.grant
        if self._ending or grant.lost_reason is not None:
            return
        events, self._read_to = record.events(self._read_to)
        suspect = record.is_suspect
        if not record.is_current:
            grant.lose("the worker's main process has released it")
        elif clock.now() >= self.session.leased_until:
            grant.lose(self.session.why_over)
        else:
            if suspect:
                grant.suspect(troubles.MAIN_PROCESS_SUSPECT)
            else:
                grant.confirmed()
            for event in events:
                self._on_event(event)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "lost" in event:
            self.grant.lose(event["lost"])
        elif (request := ReleaseRequest(**event["request"])) != self.grant.release_request:
            self.grant.request_release(request)

    def abandon(self) -> None:
        """Give the lock back. The main process learns it even if this process is killed in the next moment."""
        self._ending = True
        releases.begin(self)
        self._record.end()
        self.session.post(self._end)

    def _end(self) -> None:
        self.session.forget(self)
        self.grant.release()
        self.when_released(lambda released: releases.end(self), confirmed=True)

    def when_released(self, done: Callable[[bool], object], *, confirmed: bool) -> None:
        """
        Call `done(True)` now; if `confirmed`, when the main process has released the lock, or the lease is over.

        Call `done(False)` instead if ZooKeeper has refused the release: the main process tells that.
        """
        if confirmed and self._record.is_current and clock.now() < self.session.leased_until:
            again = functools.partial(self.when_released, done, confirmed=True)
            self.session.post(self.session.loop.call_later, CONFIRM_EVERY, again)
        else:
            done(not self._record.is_undeleted)


class SessionProxy(GrantSession):
    """Stands for the session of the main process. Its own loop reads the records of the grants in use."""

    def __init__(self, shared: SharedGrants) -> None:
        super().__init__(Loop("zklock-proxy"))
        self._shared = shared
        self._in_use: dict[ContenderProxy, None] = {}  # loop's thread only
        self._is_reading = False  # whether `_read` is scheduled; loop's thread only
        self.loop.start()

    @property
    def session_id(self) -> int:  # type: ignore[override] # only the main process writes it
        """The id of the session that has the lease."""
        return self._shared.session_id

    @property
    def leased_until(self) -> float:
        return self._shared.until

    @property
    def refused(self) -> int:  # type: ignore[override] # only the main process writes it
        return self._shared.refused

    def stop(self) -> None:
        """End both threads after the events that are on their queues now."""
        self.post(self._stop)

    def _stop(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self.loop.stop()

    def watch(self, contender: ContenderProxy) -> None:
        """Read the record of this contender from now on; on the loop's thread."""
        self._in_use[contender] = None
        if not self._is_reading:
            self._read()

    def forget(self, contender: ContenderProxy) -> None:
        """Stop reading its record; on the loop's thread."""
        self._in_use.pop(contender, None)

    def _read(self) -> None:
        self._is_reading = bool(self._in_use)
        if self._is_reading:
            remaining = self.leased_until - clock.now()
            self.loop.call_later(remaining if 0 < remaining < READ_EVERY else READ_EVERY, self._read)
        for contender in list(self._in_use):
            contender.read()


def _session_of(shared: SharedGrants) -> SessionProxy:
    """Return the session of the main process, as this process sees it in the memory of the worker."""
    if shared.proxy is None or shared.proxy.pid != os.getpid():
        shared.proxy = SessionProxy(shared)
    session: SessionProxy = shared.proxy
    return session


def set_ready(*, signal: object, **kwargs: object) -> None:
    """Say that this pool process is ready for tasks, or that it ends."""
    index = getattr(current_process(), "index", None)
    shared = [memory for memory in memories.values() if memory.app == current_app]
    if shared and index is not None:
        shared[-1].set_ready(index, os.getpid() if signal is worker_process_init else 0)
