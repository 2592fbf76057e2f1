"""
The grants that the tasks in the pool work under, in the worker's main process.

A thread reads what the processes of the pool send. It releases the locks of a task whose work is done, or whose process
has ended without a report. A lock is never released while a process may still work under it.
"""

from __future__ import annotations

import functools
import itertools
import os
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from django_zklock.contrib.celery.dispatch.loops import run_logged
from django_zklock.contrib.celery.dispatch.pool_link import Connection, GrantPayload, PoolLink
from django_zklock.contrib.celery.dispatch.pool_process import session_of
from django_zklock.contrib.celery.dispatch.pool_slots import has_ended
from django_zklock.contrib.celery.dispatch.waiting_tasks import WaitingTask
from django_zklock.core import clock
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import GrantObserver
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import process
from django_zklock.core.zk.session import Session
from django_zklock.locks.events import events

logger = Logger("django_zklock.celery")

MOST_IN_QUEUE: Final = 128
"""How many tasks of a worker have a znode in the queue of one key. Only for them the order of all workers is exact."""
CHECK_EVERY: Final = 0.25  # seconds between two looks for processes that have ended
BEGIN_WITHIN: Final = 10.0  # seconds for a process that had a free slot, and should have begun at once
CLOSE_TIMEOUT: Final = 2.0  # seconds that a worker waits at its end for processes that still work


class PoolGrant(GrantObserver):
    """One grant that a task in the pool works under. It tells the process what happens to the lock."""

    def __init__(self, number: int, request: Any, held: HeldLock) -> None:
        self.number = number
        self.request = request
        self.contender: Any = held.contender
        self.connection: Connection | None = None  # to the process that works under it
        self._pid = 0  # of that process
        self._held = held
        self.grant = held.grant
        self._begin_until = clock.now() + BEGIN_WITHIN
        self._answer: Callable[[bytes], object] | None = None  # to the last request for its stack
        self._shown = False
        self.has_ended = False  # its work is done
        self.grant.begun = True
        self.grant.first_to_report_end()  # the process sends the signals about the lock from now on

    def payload(self, lease: tuple[int | None, int], waited: float) -> GrantPayload:
        """Return what the pool process has to know of the grant."""
        grant = self.grant
        session_id, number = lease
        return {
            "number": self.number,
            "key": grant.key,
            "path": grant.path,
            "token": grant.token,
            "kind": grant.kind.value,
            "since": grant.since,
            "session": grant.session_id,
            "lease": number if session_id == grant.session_id else 0,
            "template": grant.template,
            "waited": waited,
            "ahead": {} if events.about is None else dict(self.contender.ahead_about),
        }

    def begin(self, connection: Connection, pid: int) -> None:
        """Note that a process works under the grant, and tell it what has happened so far."""
        self.connection, self._pid = connection, pid
        self.grant.session.post(self.grant.attach, self)

    def show_stack(self, text: str) -> None:
        """Pass on the stack that the process has shown."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer(text.encode())

    def is_abandoned(self) -> bool:
        """Return whether no process works or will work under the grant. If one works, write its pid to the znode."""
        if not self._pid:
            return has_ended(self.request) or clock.now() > self._begin_until
        if not self._shown:
            self._shown = True  # only now: short work costs no write
            self.contender.set_process(self._pid)
        return self.has_ended or _is_gone(self._pid)  # else its release has failed

    def release(self) -> None:
        """Release the lock, and tell the process when ZooKeeper has confirmed that: `release()` waits for it."""
        post = self.grant.session.post
        self._held.release_uses()
        self.contender.when_released(lambda released: post(self._on_removed), confirmed=True)

    def _on_removed(self) -> None:
        self.grant.detach(self)
        self._tell(released=True)

    def _tell(self, **event: Any) -> None:
        if self.connection is not None:  # a process has begun
            self.connection.send(grant=self.number, **event)

    # --- on the protocol's thread -----------------------------------------------------------------------------------

    def on_suspect(self, reason: str) -> None:
        self._tell(suspect=True)

    def on_confirmed(self) -> None:
        self._tell(suspect=False)

    def on_lost(self, reason: str) -> None:
        self._tell(lost=reason)

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._tell(request=asdict(request))

    def on_stack_requested(self, answer: Callable[[bytes], object]) -> bool:
        if self.connection is None:
            return False
        self._answer = answer
        self._tell(stack=True)
        return True


class PoolGrants:
    """The grants that tasks in the pool work under, or are about to."""

    def __init__(self, link: PoolLink, on_ready: Callable[[], object], *, in_threads: bool) -> None:
        self.link = link
        self._in_threads = in_threads  # the pool's tasks run in this process
        self.ready: dict[Connection, int] = {}
        """The pid of each process that is ready; 0: of one that is not. The watcher changes it by single operations."""
        self._on_ready = on_ready  # another process is ready
        self._grants: dict[int, PoolGrant] = {}  # by number; changed by single operations, from two threads
        self._numbers = itertools.count(1)
        self._session: Session | None = None  # whose lease is shared
        self._lease: tuple[int | None, int] = (
            None,
            0,
        )  # its id, and its number in the page; protocol's thread writes it
        self._watcher: threading.Thread | None = None  # ends when the worker has ended and no grants are left
        self._is_closed = False
        self._selector = selectors.DefaultSelector()  # the watcher's, as what follows
        self._next_check = 0.0  # on clock.now()

    def start(self) -> None:
        """Start the watcher, when the pool was forked. The call is idempotent."""
        if self._watcher is None:
            watcher = threading.Thread(target=self._watch, name="zklock-pool-grants", daemon=True)
            watcher.start()
            self._watcher = watcher

    def use_session(self) -> None:
        """
        Share the lease of the present session from now on; called before a task asks for its lock.

        So the lease is there before a grant comes, and the process that gets the grant finds it.
        """
        self.start()
        if self._in_threads:
            session_of(self.link)  # one for all, before there are several threads
        session = process.current()
        if session is not self._session:
            self._session = session
            session.attached(Registry).most_waiting = MOST_IN_QUEUE  # this process waits for all tasks of the worker
            session.post(self._share_lease, session)

    def _share_lease(self, session: Session) -> None:
        def write() -> None:
            if session is not self._session:
                return
            if session.session_id != self._lease[0]:
                self._end_lease()
                self._lease = (session.session_id, self.link.leases.add())
            self.link.leases.write(self._lease[1], session.leased_until, session.refused)

        session.lease.on_changed[self] = write
        write()

    def _end_lease(self) -> None:
        self.link.leases.write(self._lease[1], float("-inf"), 0)

    def add(self, task: WaitingTask) -> list[GrantPayload]:
        """Add the grants of a task; return what its process has to know."""
        waited = time.time() - task.since
        grants = [PoolGrant(next(self._numbers), task.request, held) for held in task.acquisition.holds]
        for grant in grants:
            self._grants[grant.number] = grant
        if len(self._grants) == len(grants):  # there were none
            self.link.wake()
        lease = self._lease
        return [grant.payload(lease, waited) for grant in grants]

    # --- the watcher ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        logged = ""
        self._selector.register(self.link.descriptors, selectors.EVENT_READ, self._accept)
        while self._grants or not self._is_closed:
            try:
                self._watch_once()  # without this thread, no lock would be released
                logged = ""
            except Exception as error:
                if logged != repr(error):
                    logger.exception("the grants of the pool cannot be watched, trying again")
                logged = repr(error)
                time.sleep(CHECK_EVERY)
        self._selector.close()
        self.link.close()
        for connection in self.ready:
            connection.close()

    def _watch_once(self) -> None:
        for key, _ in self._selector.select(CHECK_EVERY if self._grants else None):
            key.data()
        if clock.now() >= self._next_check:
            self._next_check = clock.now() + CHECK_EVERY
            self._check()

    def _accept(self) -> None:
        connection = self.link.accept()
        if connection is not None:
            self.ready[connection] = 0
            self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._read, connection))

    def _read(self, connection: Connection) -> None:
        messages = connection.read()
        if messages is None:
            self._selector.unregister(connection)
            del self.ready[connection]
            connection.close()
        for message in messages or ():
            run_logged(self._on_message, connection, message)

    def _on_message(self, connection: Connection, message: dict[str, Any]) -> None:
        if "begin" in message:
            self._begin(connection, message["begin"], message["pid"])
        elif "ready" in message:
            self.ready[connection] = message["ready"]
            self._on_ready()
        elif (grant := self._grants.get(message["grant"])) is not None:
            self._on_event(grant, message)
        elif "ended" in message:
            connection.send(grant=message["grant"], released=True)

    def _on_event(self, grant: PoolGrant, event: dict[str, Any]) -> None:
        if "ended" in event:
            grant.has_ended = True
            self._release(grant)
        elif "reads" in event:
            grant.contender.downgrade(asked=event["reads"])
        else:
            grant.show_stack(event["stack"])

    def _begin(self, connection: Connection, numbers: list[int], pid: int) -> None:
        """Let a process begin its work, unless a grant is lost, or was given back because the process comes so late."""
        grants = [self._grants[number] for number in numbers if number in self._grants]
        may_begin = len(grants) == len(numbers) and not any(grant.grant.why_invalid() for grant in grants)
        if may_begin:
            for grant in grants:
                grant.begin(connection, pid)
        connection.send(grant=numbers[0], begun=may_begin)

    def _release(self, grant: PoolGrant) -> None:
        grant.release()
        del self._grants[grant.number]

    def _check(self) -> None:
        for connection in self.ready:
            connection.flush()
        for grant in list(self._grants.values()):
            try:
                if grant.is_abandoned():
                    self._release(grant)
            except Exception:
                logger.exception("a lock of task %s cannot be released", grant.request.id)

    # --- the end of the worker --------------------------------------------------------------------------------------

    def close(self, *, ends_process: bool) -> None:
        """Wait until no process works under a grant. Call it when the pool has stopped, before the session ends."""
        session = self._session
        if session is not None:
            session.post(self._stop_sharing, session)
        until = clock.now() + CLOSE_TIMEOUT
        while self._grants and clock.now() < until:
            time.sleep(0.05)
        if self._grants and ends_process:
            logger.warning("a pool process still works under its lock, which is released when the session expires")
            process.keep_open()
        self._is_closed = True
        self.link.wake()
        if self._watcher is None:
            self.link.close()

    def _stop_sharing(self, session: Session) -> None:
        """End the lease in all pool processes, which abort the work that is left."""
        session.lease.on_changed.pop(self, None)
        self._end_lease()


def _is_gone(pid: int) -> bool:
    """Return whether a child of this process has ended, even if nobody has asked for its status yet."""
    try:
        if pid == os.getpid():
            return False
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return True
    return False
