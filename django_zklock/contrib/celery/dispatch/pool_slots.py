"""The slots of a worker's pool: how many processes, threads or greenlets could begin a task now."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from celery.worker import state

from django_zklock.contrib.celery.dispatch.loops import is_pool, run_logged
from django_zklock.contrib.celery.dispatch.shared_grants import SharedGrants
from django_zklock.core import clock

READY_WITHIN: Final = 10.0  # seconds. If no process was ready for so long, all count as ready


class PoolSlots:
    """
    The slots of a pool, and the requests that use them.

    A request uses a slot while its task asks for its lock, and from the moment that the pool gets it to the end of the
    task. A pool process that has just been forked, or has run its last task (`max_tasks_per_child`), is no free slot.
    """

    def __init__(self, consumer: Any, shared: SharedGrants | None, on_end: Callable[[Any], object]) -> None:
        self._pool = consumer.pool
        self._is_prefork = is_pool(consumer.pool, "prefork")
        self._shared = shared  # None: threads and greenlets are always ready
        self._on_end = on_end
        # Weak: no callback tells that Celery has dropped a request: a revoked one, or one of a lost connection.
        self._used: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id()
        self._tasks_per_child: int | None = getattr(consumer.controller, "max_tasks_per_child", None)
        self._runs: Counter[int] = Counter()  # by pool process
        self._retired: dict[int, int] = {}  # by index in the pool: processes that have run their last task
        self._ready_at = clock.now()
        self._most = 0  # processes so far at a time: a pool that shrinks leaves gaps in their indices
        self._apply_async = self._pool.apply_async
        self._pool.apply_async = self._apply

    @property
    def available(self) -> int:
        """The number of free slots; 0 or less if the pool ends, or has more requests than it can run."""
        if not self._pool.active:
            return 0
        limit: int = self._pool.limit  # before Celery 5.7, `num_processes` is the number of greenlets that run
        if self._shared is not None:
            limit = self._pool.num_processes
            self._most = max(self._most, limit)
            ready = self._shared.ready_processes(self._most).items()
            if ready:
                self._ready_at = clock.now()
            if clock.now() - self._ready_at < READY_WITHIN:
                limit = min(limit, sum(self._retired.get(index) != pid for index, pid in ready))
        return limit - len(self._used)

    def use(self, request: Any) -> None:
        """Use a slot for this request. The call is idempotent."""
        self._used[id(request)] = request

    def __contains__(self, request: Any) -> bool:
        return id(request) in self._used

    def release(self, request: Any) -> None:
        """Free the slot of this request. The call is idempotent."""
        self._used.pop(id(request), None)

    def release_if_ended(self, request: Any) -> None:
        """Free the slot of this request if Celery has dropped it."""
        if has_ended(request):
            self.release(request)

    def release_ended(self) -> None:
        """Free the slots of all requests that Celery has dropped."""
        for reference in self._used.valuerefs():
            if (request := reference()) is not None:
                self.release_if_ended(request)

    def _apply(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Call the pool's own `apply_async`, and notice when the task has ended."""
        request = getattr(options.get("callback"), "__self__", None)
        if request is None:
            return self._apply_async(target, args, kwargs, **options)
        if self._is_prefork:
            for name in ("callback", "error_callback"):
                if options.get(name) is not None:
                    options[name] = functools.partial(self._call_and_end, request, options[name])
        else:  # threads and greenlets call nothing back if an error is raised outside the task, or by a time limit
            target = functools.partial(self._call_and_end, request, target)
        return self._apply_async(target, args, kwargs, **options)

    def _call_and_end(self, request: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, and report the end of the task when it has returned or raised."""
        try:
            return function(*args, **kwargs)
        finally:
            run_logged(self._on_end, request)

    def note_end(self, request: Any) -> None:
        """Free the slot of a request that has ended."""
        self.release(request)
        pid = getattr(request, "worker_pid", None)
        if self._shared is not None and self._tasks_per_child and pid:
            self._runs[pid] += 1
            if self._runs[pid] >= self._tasks_per_child:
                del self._runs[pid]
                self._keep_tasks_from(pid)

    def _keep_tasks_from(self, pid: int) -> None:
        """
        Give no more tasks to a process that has run its last one.

        Celery would write a task into its pipe, and give it to another process when this one has ended. With one task
        per process, a queue of tasks for one lock would take four times as long.
        """
        ready = self._shared.ready_processes(self._most) if self._shared is not None else {}
        self._retired |= {index: ready_pid for index, ready_pid in ready.items() if ready_pid == pid}
        pool: Any = getattr(self._pool, "_pool", None)  # Celery has no public name for it
        for process in getattr(pool, "_pool", ()):
            if process.pid == pid and hasattr(pool, "_busy_workers"):
                pool._busy_workers.add(process.inqW_fd)


def has_ended(request: Any) -> bool:
    """Return whether Celery has dropped a request, or is done with it."""
    return request is None or (request not in state.reserved_requests and request not in state.active_requests)
