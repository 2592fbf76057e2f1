"""
The grants that the pool processes of a worker work under, in its main process.

A thread waits for the word of a pool process that its work is done, and releases the locks. It also looks for processes
that have ended without a word. A lock is never released while a process may still work under it.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from dataclasses import asdict
from typing import Any, Final

from celery.worker import state

from django_zklock import clock
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.contrib.celery.line.waiting_task import SLOT_WITHIN, WaitingTask
from django_zklock.execution import trace
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk import process
from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.celery")

LOOK_EVERY: Final = 0.25  # seconds between two looks for processes that have ended
CLOSE_TIMEOUT: Final = 2.0  # seconds that a worker waits at its end for processes that still work
LONGEST_REASON: Final = 200  # characters


class GrantRecord(GrantObserver):
    """One grant, and its record on the page."""

    def __init__(self, page: GrantPage, task: WaitingTask, acquisition: Acquisition, place: int, number: int) -> None:
        assert acquisition.held is not None
        assert acquisition.contender is not None
        self._page = page
        self._request = task.request
        self._granted_at = task.granted_at
        self._held = acquisition.held
        self._grant = self._held.grant
        self._contender = acquisition.contender
        self._place = place
        self._number = number
        self._news: dict[str, Any] = {}  # protocol's thread only
        self._shared = ""
        self._shown = False

    def facts(self, waited: float) -> dict[str, Any]:
        """Return what the pool process has to know of the grant."""
        grant = self._grant
        ahead = None if trace.items is None else self._contender.ahead
        return {
            "place": self._place,
            "number": self._number,
            "key": grant.key,
            "path": grant.path,
            "token": grant.token,
            "kind": grant.kind.value,
            "since": grant.since,
            "session": grant.session_id,
            "template": grant.template,
            "waited": waited,
            "ahead": "" if ahead is None else ahead.encode().decode(),
        }

    def begin(self) -> None:
        """The task goes to the pool, which reports from now on what happens to the lock."""
        grant = self._grant
        grant.begun = True
        grant.claim_end()
        grant.on_release_request = None
        grant.session.post(grant.attach, self)

    def share_if_asked(self) -> None:
        """Let other readers in if the pool process goes on as one."""
        shared = self._page.shared(self._place, self._number)
        if shared != self._shared:
            self._shared = shared
            self._contender.share(asked=shared == "asked")

    @property
    def has_ended(self) -> bool:
        """Whether the pool process has given the lock back."""
        return self._page.has_ended(self._place, self._number)

    def is_abandoned(self) -> bool:
        """Return whether no process works under the grant, or will; show the one that does to others."""
        pid = self._page.begun_by(self._place, self._number)
        if not pid and (has_ended(self._request) or clock.now() - self._granted_at > SLOT_WITHIN):
            pid = self._page.cancel(self._place, self._number)
            if not pid:
                return True
        if pid and not self._shown:
            self._shown = True  # only now: short work costs no write
            self._contender.set_process(pid)
        return bool(pid) and _is_gone(pid)

    @property
    def task_id(self) -> str:
        """The id of the task that the lock was granted for."""
        return str(self._request.id)

    def release(self) -> None:
        """Release the lock. The record is free when ZooKeeper has confirmed that: the pool process waits for it."""
        self._held.release_to(0, lambda gone: self.remove())

    def remove(self) -> None:
        """Free the record, once the protocol's thread writes no more to it."""
        self._grant.session.post(self._remove)

    def _remove(self) -> None:
        self._grant.detach(self)
        self._page.remove(self._place)

    def _write(self, **news: Any) -> None:
        self._news.update(news)
        self._page.write(self._place, self._number, self._news)

    def on_suspect(self, reason: str) -> None:
        self._write(suspect=reason[:LONGEST_REASON])

    def on_confirmed(self) -> None:
        self._news.pop("suspect", None)
        self._write()

    def on_lost(self, reason: str) -> None:
        self._write(lost=reason[:LONGEST_REASON])

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._write(request=asdict(request))


class PoolGrants:
    """The grants that pool processes work under, or are about to."""

    def __init__(self, page: GrantPage) -> None:
        self._page = page
        self._records: dict[GrantRecord, None] = {}  # changed by single operations, from two threads
        self._session: Session | None = None  # whose lease is on the page
        self._watcher: threading.Thread | None = None

    def share_lease(self) -> None:
        """
        Write the lease on the page from now on; called before a task waits for a lock.

        So the lease is there before a grant comes, and the process that gets the grant finds it.
        """
        session = process.current()
        if session is not self._session:
            self._session = session
            session.post(self._share_lease, session)

    def add(self, task: WaitingTask) -> list[dict[str, Any]] | None:
        """Return the facts about the grants of a task that goes to the pool; None if there is no room for them."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="zklock-pool-grants", daemon=True)
            self._watcher.start()
        records: list[GrantRecord] = []
        for acquisition in task.entry.acquisitions:
            added = self._page.add()
            if added is None:
                for record in records:
                    record.remove()
                return None
            records.append(GrantRecord(self._page, task, acquisition, *added))
        for record in records:
            record.begin()
            self._records[record] = None
        if len(self._records) == len(records):  # there were none
            self._page.wakeup.wake()
        waited = time.time() - task.since
        return [record.facts(waited) for record in records]

    def _share_lease(self, session: Session) -> None:
        def write() -> None:
            self._page.set_lease(session.lease.until, session.session_id or 0)

        session.lease.on_changed = write
        write()

    def _watch(self) -> None:
        next_look = 0.0
        while True:
            woken, _, _ = select.select([self._page.wakeup], [], [], LOOK_EVERY if self._records else None)
            if woken:
                self._page.wakeup.drain()
            looks = clock.now() >= next_look
            if looks:
                next_look = clock.now() + LOOK_EVERY
            for record in list(self._records):
                try:
                    record.share_if_asked()
                    if record.has_ended or (looks and record.is_abandoned()):
                        del self._records[record]
                        record.release()
                except Exception:
                    logger.exception("a lock of task %s cannot be released", record.task_id)

    def close(self) -> None:
        """Wait until no process works under a grant. Call it when the pool has stopped, before the session ends."""
        if self._records and self._session is not None:
            self._session.post(self._end_lease, self._session)
        until = clock.now() + CLOSE_TIMEOUT
        while self._records and clock.now() < until:
            time.sleep(0.05)
        if self._records:
            logger.warning("a process of the pool still works under its lock, which ZooKeeper frees in a while")
            process.leave()

    def _end_lease(self, session: Session) -> None:
        """Abort the work of each owner that is left."""
        session.lease.on_changed = None
        self._page.set_lease(float("-inf"), 0)


def has_ended(request: Any) -> bool:
    """Return whether Celery has dropped a request, or is done with it."""
    return request is None or (request not in state.reserved_requests and request not in state.active_requests)


def _is_gone(pid: int) -> bool:
    """Return whether a child of this process has ended, even if nobody has asked for its status yet."""
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return True
    return False
