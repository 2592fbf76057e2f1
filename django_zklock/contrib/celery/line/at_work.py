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

from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.contrib.celery.line.waiting import SLOT_WITHIN, WaitingTask
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk import process

logger = logging.getLogger("django_zklock.celery")

LOOK_EVERY: Final = 0.25  # seconds between two looks for processes that have ended
CLOSE_TIMEOUT: Final = 2.0  # seconds that a worker waits at its end for processes that still work
LONGEST_REASON: Final = 200  # characters


class GrantRecord(GrantObserver):
    """One grant, and its record on the page."""

    def __init__(self, page: GrantPage, acquisition: Acquisition, place: int, number: int) -> None:
        assert acquisition.held is not None
        assert acquisition.contender is not None
        self._page = page
        self._grant = acquisition.held.grant
        self._contender = acquisition.contender
        self._place = place
        self._number = number
        self._news: dict[str, Any] = {}  # protocol's thread only
        self._shared = ""
        self._shown = False

    def facts(self, waited: float) -> dict[str, Any]:
        """Return what the pool process has to know of the grant."""
        grant = self._grant
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

    def begun_by(self) -> int:
        """Return the process that works under the grant, and show it to others; 0 if none does."""
        pid = self._page.begun_by(self._place, self._number)
        if pid and not self._shown:
            self._shown = True  # only now: short work costs no write
            self._contender.set_process(pid)
        return pid

    def cancel(self) -> int:
        """Let no process begin any more; return the one that has begun, else 0."""
        return self._page.cancel(self._place, self._number)

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
        self._records: dict[WaitingTask, list[GrantRecord]] = {}  # changed by single operations, from two threads
        self._watcher: threading.Thread | None = None

    def add(self, task: WaitingTask) -> list[dict[str, Any]] | None:
        """Return the facts about the grants of a task that goes to the pool; None if there is no room for them."""
        if self._watcher is None:
            process.current().post(self._share_lease)
            self._watcher = threading.Thread(target=self._watch, name="zklock-pool-grants", daemon=True)
            self._watcher.start()
        records: list[GrantRecord] = []
        for acquisition in task.entry.acquisitions:
            added = self._page.add()
            if added is None:
                for record in records:
                    record.remove()
                return None
            records.append(GrantRecord(self._page, acquisition, *added))
        for record in records:
            record.begin()
        self._records[task] = records
        if len(self._records) == 1:
            self._page.ring()
        waited = time.time() - task.since
        return [record.facts(waited) for record in records]

    def _share_lease(self) -> None:
        session = process.current()

        def write() -> None:
            self._page.set_lease(session.lease.until, session.session_id or 0)

        session.lease.on_changed = write
        write()

    def _watch(self) -> None:
        next_look = 0.0
        while True:
            rung, _, _ = select.select([self._page.waker], [], [], LOOK_EVERY if self._records else None)
            if rung:
                self._page.drain()
            looks = time.monotonic() >= next_look
            if looks:
                next_look = time.monotonic() + LOOK_EVERY
            for task, records in list(self._records.items()):
                try:
                    if _is_over(task, records, looks=looks):
                        del self._records[task]
                        task.entry.undo()
                        for record in records:
                            record.remove()
                except Exception:
                    logger.exception("the locks of task %s cannot be released", task.request.id)

    def close(self) -> None:
        """Wait until no process works under a grant. Call it when the pool has stopped, before the session ends."""
        if self._records:
            process.current().post(self._end_lease)
        until = time.monotonic() + CLOSE_TIMEOUT
        while self._records and time.monotonic() < until:
            time.sleep(0.05)
        if self._records:
            logger.warning("a process of the pool still works under its lock, which ZooKeeper frees in a while")
            process.leave()

    def _end_lease(self) -> None:
        """Have whoever is left abort its work."""
        process.current().lease.on_changed = None
        self._page.set_lease(float("-inf"), 0)


def _is_over(task: WaitingTask, records: list[GrantRecord], *, looks: bool) -> bool:
    """Return whether no process works under these grants, or will. Only one that `looks` sees that one has died."""
    for record in records:
        record.share_if_asked()
    if all(record.has_ended for record in records):
        return True
    if not looks:
        return False
    begun = {pid for record in records if (pid := record.begun_by())}
    if not begun and (has_ended(task.request) or time.monotonic() - task.granted_at > SLOT_WITHIN):
        begun = {pid for record in records if (pid := record.cancel())}
        return not begun
    return bool(begun) and all(_is_gone(pid) for pid in begun)


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
