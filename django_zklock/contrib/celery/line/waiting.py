"""
The tasks of a worker that wait for a lock, or work under one, in its main process.

A message comes here when Celery would give it to the pool: after its ETA and its rate limit. It waits unacknowledged,
and does not count as prefetched. When its locks are granted, it goes to the pool, with the facts of the grants. A task
that gets no lock goes to the pool, too, and ends there as one that has waited there would.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from celery.worker import state

from django_zklock import signals
from django_zklock.contrib.celery.context import TaskContext
from django_zklock.contrib.celery.introspection import arguments, locked_of, work_of_message
from django_zklock.contrib.celery.line import borrowed
from django_zklock.contrib.celery.line.borrowed import GRANTS
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.decorators.locked import LockedFunction
from django_zklock.exceptions import ZkLockError
from django_zklock.execution.owner import Owner
from django_zklock.execution.waiters import Routine
from django_zklock.locks import notify
from django_zklock.locks.base import Entry
from django_zklock.locks.held import HeldLock
from django_zklock.locks.multi import Locks
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.protocol.grant import GrantObserver
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk import process

logger = logging.getLogger("django_zklock.celery")

MOST_WAITING: Final = 1000
LOOK_EVERY: Final = (
    0.25  # seconds between two looks for tasks that were revoked, have expired, or whose process is gone
)
LONGEST_REASON: Final = 200  # characters


class MessageContext:
    """The context of a call of a decorated function that a worker has a message for."""

    timeout = TaskContext.timeout
    on_conflict = TaskContext.on_conflict

    def __init__(self, request: Any) -> None:
        retries = request.request_dict.get("retries") or 0
        work = work_of_message(request.task.name or "", request.id, request.delivery_info, retries)
        self.what, self.about = work.what, work.about


class MessageWaiter:
    """Waits for one outcome on behalf of a message; the worker's event loop continues the routine."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self.value: Outcome | None = None

    def set(self, value: Outcome) -> bool:
        """Set the outcome; on the protocol's thread."""
        self.value = value
        self._wake()
        return True

    def outcome(self, timeout: float | None) -> Routine[Outcome | None]:
        """Return the outcome, or None if there is none within `timeout` seconds; yields the seconds that are left."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.value is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            yield left
        return self.value


class Record(GrantObserver):
    """Writes on the page what happens to one grant."""

    def __init__(self, page: GrantPage, record: int) -> None:
        self._page = page
        self._record = record
        self._news: dict[str, Any] = {}

    def _write(self, **news: Any) -> None:
        self._news.update(news)
        self._page.write(self._record, self._news)

    def on_suspect(self, reason: str) -> None:
        self._write(suspect=reason[:LONGEST_REASON])

    def on_confirmed(self) -> None:
        self._news.pop("suspect", None)
        self._write()

    def on_lost(self, reason: str) -> None:
        self._write(lost=reason[:LONGEST_REASON])

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self._write(request=asdict(request))


class WaitingTask:
    """One message that waits for its locks, or whose task works under them."""

    def __init__(self, line: Line, request: Any, locks: Locks) -> None:
        self.request = request
        self.since = time.time()
        self.locks = locks
        self.entry = Entry(Owner("message", self))
        self.records: list[int] = []
        self._line = line
        self._timer: Any = None
        self._routine = self.locks.take(self.entry, lambda: MessageWaiter(self.wake))
        self.waits = False  # does not count as prefetched

    def wake(self) -> None:
        """Continue soon; from any thread."""
        self._line.call_soon(self.step)

    def step(self) -> None:
        """Continue the routine; on the worker's event loop."""
        if self not in self._line.waiting:
            return
        self._cancel_timer()
        try:
            left = next(self._routine)
        except StopIteration:
            self._line.granted(self)
        except ZkLockError as error:
            self._line.failed(self, error)
        except Exception:
            logger.exception("task %s could not wait for its lock", self.request.id)
            self._line.failed(self, None)
        else:
            if left is not None:
                self._timer = self._line.call_later(left, self.step)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def hand_over(self, owner: Owner) -> list[HeldLock]:
        """Give the locks to a thread or greenlet of this process, which takes them once more; called there."""
        parts = []
        for held in self.entry.held:
            part = HeldLock(held.contender, held.grant, owner, held.policy)
            parts.append(borrowed.listed(part))
            held.grant.begun = True
            notify.send(part, signals.lock_acquired, waited=time.time() - self.since)
        self._line.at_work.pop(self, None)
        self.entry.undo()
        return parts

    def leave(self) -> None:
        """Give up the place, and all that was granted. From any thread; doing it again changes nothing."""
        self._cancel_timer()
        if self in self._line.waiting:
            self._routine.close()
        self.entry.undo()


class Line:
    """The tasks of one worker that wait for locks, in its main process."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._to_pool: Callable[[Any], object] = consumer.on_task_request
        self.waiting: dict[WaitingTask, None] = {}  # the event loop's thread only
        self.at_work: dict[WaitingTask, None] = {}  # granted, and in the pool; any thread, by single operations
        self._ready: list[Callable[[], object]] = []
        # Pool processes that are forked read the lease from the page. Threads and greenlets share the session itself.
        self.page = borrowed.page = GrantPage() if _forks(consumer.pool) else None
        self._wakes, self._rings = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._rings, False)
        self._watcher: threading.Thread | None = None
        self._mirrored = False
        consumer.on_task_request = self.accept

    # --- on the worker's event loop ---------------------------------------------------------------------------------

    def accept(self, request: Any) -> object:
        """Give a message to the pool, or have it wait for its lock first."""
        locked = locked_of(request.task)
        request.request_dict.pop(GRANTS, None)
        if locked is None or state.should_stop is not None:
            return self._to_pool(request)
        locks = self._locks(locked, request)
        if locks is None:
            return self._to_pool(request)
        if len(self.waiting) >= self._consumer.app.conf.get("zklock_max_waiting", MOST_WAITING):
            return self._to_pool(request)
        waiting = WaitingTask(self, request, locks)
        self.waiting[waiting] = None
        waiting.step()
        if waiting in self.waiting:
            waiting.waits = True
            state.reserved_requests.discard(request)
            self._consumer.qos.increment_eventually()
        return None

    def _locks(self, locked: LockedFunction, request: Any) -> Locks | None:
        """Return the locks to wait for; None if the task does not wait, or the pool process has to find out."""
        if not locked.binder.is_static:
            return None
        try:
            call = locked.call(*arguments(request.task, request.args, request.kwargs), MessageContext(request))
        except Exception:  # noqa: BLE001 - the pool process raises the same, where it becomes the end of the task
            return None
        return call.lock if call.options.timeout != 0 and not request.delivery_info.get("redelivered") else None

    def granted(self, task: WaitingTask) -> None:
        """Give a task to the pool that has its locks."""
        request = task.request
        if self.page is None:
            request.request_dict[GRANTS] = task
        elif not self._write_facts(self.page, task):
            self.failed(task, None)
            return
        self._leave_line(task)
        self.at_work[task] = None
        self._watch()
        self._to_pool(request)

    def _write_facts(self, page: GrantPage, task: WaitingTask) -> bool:
        self._mirror_lease(page)
        facts = []
        for held in task.entry.held:
            added = page.add()
            if added is None:
                return False
            record, number = added
            task.records.append(record)
            grant = held.grant
            grant.begun = True
            grant.take_end()  # the pool process reports it
            grant.session.post(grant.attach, Record(page, record))
            facts.append(
                {
                    "record": record,
                    "number": number,
                    "key": grant.key,
                    "path": grant.path,
                    "token": grant.token,
                    "kind": grant.kind.value,
                    "since": grant.since,
                    "session": grant.session_id,
                    "template": grant.template,
                    "waited": time.time() - task.since,
                }
            )
        task.request.request_dict[GRANTS] = facts
        return True

    def failed(self, task: WaitingTask, error: ZkLockError | None) -> None:
        """Give a task to the pool that gets no lock; it ends there."""
        task.entry.undo()
        if error is not None:
            task.request.request_dict[GRANTS] = {
                "error": type(error).__name__,
                "text": str(error),
                "lock": error.lock,
            }
        self._leave_line(task)
        self._to_pool(task.request)

    def _leave_line(self, task: WaitingTask) -> None:
        self.waiting.pop(task, None)
        if task.waits:
            task.waits = False
            state.task_reserved(task.request)
            self._consumer.qos.decrement_eventually()

    def drop_revoked(self) -> None:
        """End the waiting tasks that were revoked or have expired."""
        for task in list(self.waiting):
            if task.request.revoked():
                task.leave()
                self._leave_line(task)
                state.task_ready(task.request)

    def drop_all(self) -> None:
        """Leave all queues. The messages go back to the broker with the connection."""
        for task in list(self.waiting):
            task.leave()
            self.waiting.pop(task, None)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` on the worker's event loop; from any thread."""
        if self._consumer.hub is None:
            self._consumer.timer.call_after(0, call)
            return
        self._ready.append(call)
        try:
            os.write(self._rings, b"!")
        except BlockingIOError:
            pass  # it is full, so it will be read

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        """Run `call()` on the worker's event loop after so many seconds; return an entry to cancel."""
        return self._consumer.timer.call_after(seconds, call)

    def register(self, hub: Any) -> None:
        """Have the event loop run what `call_soon` gets."""
        hub.add_reader(self._wakes, self._run_ready)
        hub.call_repeatedly(LOOK_EVERY, self.drop_revoked)

    def _run_ready(self) -> None:
        try:
            while len(os.read(self._wakes, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        ready, self._ready = self._ready, []
        for call in ready:
            call()

    # --- the lease, and the end of the work ---------------------------------------------------------------------------

    def _mirror_lease(self, page: GrantPage) -> None:
        if self._mirrored:
            return
        self._mirrored = True
        session = process.current()

        def write() -> None:
            page.set_lease(session.lease.until, session.session_id or 0)

        session.lease.on_changed = write
        write()

    def _watch(self) -> None:
        if self.page is None:
            return
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch_work, name="zklock-line", daemon=True)
            self._watcher.start()
        elif len(self.at_work) == 1:
            self.page.ring()

    def _watch_work(self) -> None:
        """Release the locks of work that has ended, or whose process is gone."""
        page = self.page
        assert page is not None
        while True:
            rung, _, _ = select.select([page.waker], [], [], LOOK_EVERY if self.at_work else None)
            if rung:
                page.drain()
            for task in list(self.at_work):
                try:
                    if self._is_over(page, task, thorough=not rung):
                        self.at_work.pop(task, None)
                        task.entry.undo()
                        for record in task.records:
                            page.remove(record)
                except Exception:
                    logger.exception("the locks of task %s could not be released", task.request.id)

    def _is_over(self, page: GrantPage, task: WaitingTask, *, thorough: bool) -> bool:
        for record, held in zip(task.records, task.entry.held, strict=False):
            if page.is_shared(record):
                held.contender.share(asked=True)
        if all(page.has_ended(record) for record in task.records):
            return True
        if not thorough:
            return False
        begun = {pid for record in task.records if (pid := page.begun_by(record))}
        if begun:
            return all(_is_gone(pid) for pid in begun)
        request = task.request
        if request in state.reserved_requests or request in state.active_requests:
            return False
        begun = [page.cancel(record) for record in task.records]  # all of them
        return not any(begun)


def _forks(pool: Any) -> bool:
    return type(pool).__module__ == "celery.concurrency.prefork"


def _is_gone(pid: int) -> bool:
    """Return whether a child of this process has ended, even if nobody has asked for its status yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
