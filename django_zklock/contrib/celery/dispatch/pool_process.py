"""
The pool process, or the thread or greenlet, that runs a task whose wait took place in the worker's main process.

It works under the grant of the main process; see `dispatch` and `pool_link`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from billiard.process import current_process
from celery import current_app
from celery.signals import worker_process_init

from django_zklock import exceptions
from django_zklock.contrib.celery.dispatch.pool_link import PAYLOAD, GrantPayload, PoolLink, WaitPayload, links
from django_zklock.core import clock, hooks
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.locks import guard
from django_zklock.core.locks.held import HeldLock, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol import releases
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import troubles
from django_zklock.core.zk.lease import GrantSession
from django_zklock.core.zk.loop import NEVER, Loop, protocol_thread
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.multi import Locks

WAIT_RESULT: Final = "_zklock_wait_result"  # attribute of a request
LOOK_EVERY: Final = 0.25  # seconds between two looks at the lease of the grants in use, if it lasts so long


def wait_result(request: Any, caller: Caller) -> WaitResult | None:
    """Return the result of the wait for a task, from the `PAYLOAD` of its request. A second call returns None."""
    payload = request.__dict__.pop(PAYLOAD, None)
    (request.headers or {}).pop(PAYLOAD, None)  # or it would be sent again with the task
    link = links.get(str(payload.get("link"))) if isinstance(payload, dict) else None
    if link is None:
        return None
    result = WaitResult(payload, link, caller)
    setattr(request, WAIT_RESULT, result)  # first: `end` is called whatever happens, such as a time limit in this line
    result.begin()
    return result


class WaitResult:
    """The result of the wait for one task: its locks, or an error."""

    def __init__(self, payload: WaitPayload, link: PoolLink, caller: Caller) -> None:
        self.own: tuple[str, ...] = tuple(payload.get("own", ()))
        """The guids of the task's own znodes, which may not be gone yet."""
        self.resend = payload.get("resend", {})
        """The options of `messages.send_again` if the task is to be sent again; else empty."""
        self.held: list[HeldLock] = []
        """The locks from the main process. `held_locks` refers to them weakly until their owner acquires them."""
        self._payload = payload
        self._contenders = [ContenderProxy(session_of(link), grant, caller) for grant in payload.get("grants", ())]
        self.is_granted = False
        """Whether there are locks to take over."""

    def begin(self) -> None:
        """Begin to use the grants of the main process; use none if one was lost or given back meanwhile."""
        if self._contenders:
            self.is_granted = self._contenders[0].session.begin(self._contenders)
            if not self.is_granted:
                self.end()

    @property
    def is_lost(self) -> bool:
        """Whether the task was granted its locks, and has lost them before it began."""
        return bool(self._contenders) and not self.is_granted

    @property
    def error(self) -> ZkLockError | None:
        """The error that the wait has ended with."""
        if "error" not in self._payload:
            return None
        kind: type[ZkLockError] = getattr(exceptions, self._payload["error"])
        return kind(self._payload["text"], lock=self._payload["lock"])

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
        in_use = {hold.grant for hold in self.held if hold.uses or hold.observer is not None}
        for contender in self._contenders:
            if contender.grant not in in_use and not contender.grant.inherited:
                contender.abandon()


class ContenderProxy:
    """Stands for a contender of the main process, with the one grant that it has, here a second `Grant`."""

    waits = True  # a task whose timeout is 0 acquires its lock in its own process
    sends_release = False  # the main process does
    lingers = False

    def __init__(self, session: SessionProxy, payload: GrantPayload, caller: Caller) -> None:
        self.session = session
        self.number = payload["number"]
        parent = payload["path"].rpartition("/")[0]
        self.spec = QueueSpec(key=payload["key"], parent=parent, kind=Kind(payload["kind"]))
        self.caller = caller
        session.use(payload["lease"], payload["session"])
        self.grant = Grant(session, payload["key"], payload["path"], payload["token"], self.spec.kind)
        self.grant.session_id = payload["session"]
        self.grant.since = payload["since"]
        self.grant.template = payload["template"]
        self.grant.what, self.grant.about = caller.what, caller.about
        self.ahead_about = payload["ahead"]
        self._waited: float = payload["waited"]
        self.begun: ThreadWaiter[bool] = ThreadWaiter()
        """Waits for the answer of the main process: whether the work may begin."""
        self._has_ended = self._is_end_sent = False  # written by its owner
        self._when_released: list[Callable[[bool], object]] | None = []  # loop's thread only; None: it is released

    def hand_over(self, spec: LockSpec) -> HeldLock:
        """List the lock as held by the caller."""
        grant = self.grant
        held = HeldLock(self, grant, current_owner(), spec.policy)
        held_locks.add(held, keep=False)
        if hooks.events.about is not None:
            grant.about = {**grant.about, **hooks.events.about()}  # of the run, which has begun since
        grant.begun = True
        if spec.max_hold is not None or spec.warn_after is not None:
            guard.apply_bounds(grant, self, spec)
        hooks.events.acquired(held, self._waited)
        return held

    def abandon(self) -> None:
        """Give the lock back. The main process learns it even if this process is killed in the next moment."""
        self._has_ended = True
        if not self._is_end_sent:
            releases.begin(self)
            self.session.send(grant=self.number, ended=True)
            self._is_end_sent = True  # not sooner: if a time limit strikes before, the end of the task sends it
            self.session.post(self._end)

    def _end(self) -> None:
        self.grant.release()
        self._call_when_released(lambda released: releases.end(self))

    def when_released(self, done: Callable[[bool], object], *, confirmed: bool) -> None:
        """Call `done(True)` now; if `confirmed`, when the main process has released the lock, or the lease is over."""
        if confirmed:
            self.session.post(self._call_when_released, done)
        else:
            done(True)

    def downgrade(self, *, asked: bool = False) -> None:
        """Keep the lock as a reader; see `Contender.downgrade`."""
        self.session.send(grant=self.number, reads=asked)
        self.grant.kind = Kind.READ

    # --- on the loop's thread ---------------------------------------------------------------------------------------

    def _call_when_released(self, done: Callable[[bool], object]) -> None:
        if self._when_released is None:
            done(True)
        else:
            self._when_released.append(done)

    def on_over(self, reason: str) -> None:
        """Lose the lock unless it was given back, and wait for nothing more from the main process."""
        self.session.forget(self)
        callbacks, self._when_released = self._when_released, None
        for done in callbacks or ():
            done(True)
        if not self._has_ended:
            self.grant.lose(reason)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Learn what has happened to the lock."""
        grant = self.grant
        if "begun" in event:
            self.begun.set(event["begun"])
        elif "released" in event:
            self.on_over("the worker's main process has released it")
        elif self._has_ended:
            pass
        elif "lost" in event:
            grant.lose(event["lost"])
        elif event.get("suspect"):
            grant.suspect(troubles.MAIN_PROCESS_SUSPECT)
        elif "suspect" in event:
            grant.confirmed()
        elif "stack" in event:
            grant.show_stack(lambda stack: self.session.send(grant=self.number, stack=stack.decode()))
        elif (request := ReleaseRequest(**event["request"])) != grant.release_request:
            grant.request_release(request)


class SessionProxy(GrantSession):
    """Stands for the session of the main process. A thread reads what the main process sends."""

    def __init__(self, link: PoolLink) -> None:
        super().__init__(Loop("zklock-proxy"))
        self._leases = link.leases
        self._lease = 0
        self.send = link.send
        self._socket = link.connect()
        self._contenders: dict[int, ContenderProxy] = {}  # by the number of the grant; changed by single operations
        self._timer = NEVER  # of `_watch`; loop's thread only
        self.loop.start()
        protocol_thread("zklock-proxy-reader", self._read).start()

    def use(self, lease: int, session_id: int | None) -> None:
        """Use a lease of the main process, unless a newer one was used before."""
        if lease > self._lease:
            self.session_id = session_id  # first, or the lease would be that of the session before
            self._lease = lease

    @property
    def leased_until(self) -> float:
        return self._leases.until(self._lease)

    @property
    def refused(self) -> int:  # type: ignore[override] # only the main process writes it
        return self._leases.refused(self._lease)

    def begin(self, contenders: list[ContenderProxy]) -> bool:
        """Begin to work under these grants; return False if one was lost or given back meanwhile."""
        numbers = [contender.number for contender in contenders]
        self._contenders |= zip(numbers, contenders, strict=True)
        self.post(self._watch)
        self.send(begin=numbers, pid=self.pid)
        may_begin = contenders[0].begun.wait(self.leased_until - clock.now())
        return bool(may_begin) and all(contender.grant.why_invalid() is None for contender in contenders)

    def stop(self) -> None:
        """End the threads after the events that are on their queues now."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.post(self._stop)

    def _stop(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self.loop.stop()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket, self._socket.makefile("rb") as lines:
            for line in lines:
                self.loop.deliver(self._on_message, json.loads(line))

    # --- on the loop's thread ---------------------------------------------------------------------------------------

    def forget(self, contender: ContenderProxy) -> None:
        """Forget a grant that is no longer in use."""
        self._contenders.pop(contender.number, None)

    def _watch(self) -> None:
        """Look at the lease while there are grants."""
        remaining = self.leased_until - clock.now()
        if remaining <= 0:
            for contender in list(self._contenders.values()):
                contender.on_over(self.why_over)
        self._timer.cancel()
        if self._contenders:
            self._timer = self.loop.call_later(min(remaining, LOOK_EVERY), self._watch)

    def _on_message(self, message: dict[str, Any]) -> None:
        contender = self._contenders.get(message["grant"])
        if contender is not None:
            contender.on_event(message)


def session_of(link: PoolLink) -> SessionProxy:
    """Return the session of the main process, as this process sees it."""
    if link.proxy is None or link.proxy.pid != os.getpid():
        link.proxy = SessionProxy(link)
    session: SessionProxy = link.proxy
    return session


def set_ready(*, signal: object, **kwargs: object) -> None:
    """Say that this pool process is ready for tasks, or that it ends."""
    of_app = [link for link in links.values() if link.app == current_app]
    if of_app and getattr(current_process(), "index", None) is not None:
        of_app[-1].send(ready=os.getpid() if signal is worker_process_init else 0)
