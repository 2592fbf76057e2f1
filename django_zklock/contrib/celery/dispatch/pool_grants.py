"""
The grants that the tasks in the pool work under, in the worker's main process.

A thread waits until a task reports that its work is done, and releases its locks. It also looks for processes that have
ended without a report. A lock is never released while a process may still work under it.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from django_zklock.contrib.celery.dispatch.loops import run_logged
from django_zklock.contrib.celery.dispatch.pool_slots import has_ended
from django_zklock.contrib.celery.dispatch.shared_grants import GrantPayload, GrantRecord, SharedGrants
from django_zklock.contrib.celery.dispatch.waiting_tasks import WaitingTask
from django_zklock.core import clock
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import GrantObserver
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import process
from django_zklock.core.zk.connection import wait_ready
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.celery")

MOST_IN_QUEUE: Final = 128
"""How many tasks of a worker have a znode in the queue of one key. Only for them the order of all workers is exact."""
CHECK_EVERY: Final = 0.25  # seconds between two looks for processes that have ended
BEGIN_WITHIN: Final = 10.0  # seconds for a process that had a free slot, and should have begun at once
CLOSE_TIMEOUT: Final = 2.0  # seconds that a worker waits at its end for processes that still work
LONGEST_REASON: Final = 200  # characters


class PoolGrant(GrantObserver):
    """One grant that a task in the pool works under. It writes what happens to the lock into its record."""

    def __init__(self, record: GrantRecord, request: Any, held: HeldLock) -> None:
        self.request = request
        self.record = record
        self.contender: Any = held.contender
        self._held = held
        self._grant = held.grant
        self._begin_until = clock.now() + BEGIN_WITHIN
        self._shown = False

    def payload(self, waited: float) -> GrantPayload:
        """Return what the pool process has to know of the grant."""
        grant = self._grant
        return GrantPayload(
            index=self.record.index,
            number=self.record.number,
            key=grant.key,
            path=grant.path,
            token=grant.token,
            kind=grant.kind,
            since=grant.since,
            session=grant.session_id,
            template=grant.template,
            waited=waited,
        )

    def begin(self) -> None:
        """Give the grant to the pool process, which sends the signals about the lock from now on."""
        grant = self._grant
        grant.begun = True
        grant.first_to_report_end()
        grant.session.post(grant.attach, self)

    def is_abandoned(self) -> bool:
        """Return whether no process works or will work under the grant. If one works, write its pid to the znode."""
        pid = self.record.pid
        if not pid and (has_ended(self.request) or clock.now() > self._begin_until):
            pid = self.record.cancel()
            if not pid:
                return True
        if pid and not self._shown:
            self._shown = True  # only now: short work costs no write
            self.contender.set_process(pid)
        return bool(pid) and _is_gone(pid)

    def release(self, removed: Callable[[GrantRecord], object]) -> None:
        """Release the lock. When ZooKeeper has answered, the record is free: `release()` waits for that."""
        post = self._grant.session.post  # on the protocol's thread, which then writes no more to the record
        self._held.release_uses()
        self.contender.when_released(lambda released: post(self._remove, removed, released), confirmed=True)

    def _remove(self, removed: Callable[[GrantRecord], object], released: bool) -> None:
        self._grant.detach(self)
        if not released:
            self.record.set_undeleted()
        removed(self.record)

    def on_suspect(self, reason: str) -> None:
        self.record.set_suspect(suspect=True)

    def on_confirmed(self) -> None:
        self.record.set_suspect(suspect=False)

    def on_lost(self, reason: str) -> None:
        self.record.append({"lost": reason[:LONGEST_REASON]})

    def on_release_requested(self, request: ReleaseRequest) -> None:
        if not self.record.append({"request": asdict(request)}):
            logger.warning(
                "task %s does not learn of a release request by %r: it has too many already",
                self.request.id,
                request.by,
            )


class PoolGrants:
    """The grants that tasks in the pool work under, or are about to."""

    def __init__(self, shared: SharedGrants, on_wakeup: Callable[[], object]) -> None:
        self._shared = shared
        self._on_wakeup = on_wakeup  # a pool process has written to the shared memory
        self._grants: dict[PoolGrant, None] = {}  # changed by single operations, from two threads
        self._session: Session | None = None  # whose lease is shared
        self._watcher: threading.Thread | None = None  # ends when the worker has ended and no grants are left
        self._is_closed = False
        self._next_check = 0.0  # on clock.now(); the watcher's

    def use_session(self) -> None:
        """
        Share the lease of the present session from now on; called before a task asks for its lock.

        So the lease is there before a grant comes, and the process that gets the grant finds it.
        """
        session = process.current()
        if session is not self._session:
            self._session = session
            session.attached(Registry).most_waiting = MOST_IN_QUEUE  # this process waits for all tasks of the worker
            session.post(self._share_lease, session)
        if self._watcher is None:
            watcher = threading.Thread(target=self._watch, name="zklock-pool-grants", daemon=True)
            watcher.start()
            self._watcher = watcher

    def _share_lease(self, session: Session) -> None:
        def write() -> None:
            if session is self._session:
                self._shared.set_lease(session.leased_until, session.session_id or 0, session.refused)

        session.lease.on_changed[self] = functools.partial(run_logged, write)
        write()

    def add(self, task: WaitingTask) -> list[GrantPayload]:
        """Add the grants of a task; return what its process has to know. Raises `IndexError` if there is no room."""
        waited = time.time() - task.since
        grants = [PoolGrant(self._shared.add(), task.request, held) for held in task.acquisition.holds]
        for grant in grants:
            grant.begin()
            self._grants[grant] = None
        if len(self._grants) == len(grants):  # there were none
            self._shared.wakeup.wake()
        return [grant.payload(waited) for grant in grants]

    def _watch(self) -> None:
        logged = ""
        while self._grants or not self._is_closed:
            try:
                self._watch_once()  # without this thread, no lock would be released
                logged = ""
            except Exception as error:
                if logged != repr(error):
                    logger.exception("the grants of the pool cannot be watched, trying again")
                logged = repr(error)
                time.sleep(CHECK_EVERY)
        self._shared.close()

    def _watch_once(self) -> None:
        woken, *_ = wait_ready([self._shared.wakeup], [], [], CHECK_EVERY if self._grants else None)
        if woken:
            self._shared.wakeup.drain()
        is_check_due = clock.now() >= self._next_check
        if is_check_due:
            self._next_check = clock.now() + CHECK_EVERY
        for grant in list(self._grants):
            try:
                if grant.record.has_ended or (is_check_due and grant.is_abandoned()):
                    grant.release(self._shared.remove)
                    del self._grants[grant]
            except Exception:
                logger.exception("a lock of task %s cannot be released", grant.request.id)
        if woken and not self._is_closed:
            self._on_wakeup()

    def close(self, *, ends_process: bool) -> None:
        """Wait until no process works under a grant. Call it when the pool has stopped, before the session ends."""
        session = self._session
        if self._grants and session is not None:
            session.post(self._end_lease)
        until = clock.now() + CLOSE_TIMEOUT
        while self._grants and clock.now() < until:
            time.sleep(0.05)
        if self._grants and ends_process:
            logger.warning("a pool process still works under its lock, which is released when the session expires")
            process.keep_open()
        if session is not None:
            session.post(session.lease.on_changed.pop, self, None)
        self._is_closed = True
        self._shared.wakeup.wake()
        if self._watcher is None:
            self._shared.close()

    def _end_lease(self) -> None:
        """End the lease in all pool processes, which abort the work that is left."""
        self._session = None
        self._shared.set_lease(float("-inf"), 0)


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
