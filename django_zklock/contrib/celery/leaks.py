"""
Release the locks that a task has acquired and not released when it ends.

Locks that were held before stay held. So do those of threads and greenlets that the task has started and that still
run. Locks of an asyncio task, a greenlet or a thread of the task that has ended are released: nothing else could
release them. A plain thread does not know which task it is part of; one that came and went with the task counts as its
own.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Task
from celery.signals import task_postrun, task_prerun

from django_zklock.contrib.celery.dispatch.pool_process import WAIT_RESULT
from django_zklock.contrib.celery.dispatch.shared_grants import PAYLOAD
from django_zklock.contrib.celery.messages import work_of
from django_zklock.core.execution import abort, work
from django_zklock.core.execution.abort import CleanupOnError
from django_zklock.core.execution.owner import Owner, current_owner
from django_zklock.core.execution.waiters import ThreadWaiter, run
from django_zklock.core.execution.work import Work
from django_zklock.core.locks.block import Guard
from django_zklock.core.locks.held import HeldLock, held_locks, released
from django_zklock.core.log import Logger

logger = Logger("django_zklock.locks")

_GUARD: Final = "_zklock_guard"  # attributes of a request
_BEFORE: Final = "_zklock_before"
_END: Final = "zklock.end"  # the uid of the receiver


@abort.shielded
def begin(*, task: Task[..., Any], **kwargs: object) -> None:
    """Record what is held when the task begins, and make the task the current work."""
    signal: Any = task_postrun
    if not signal.receivers or signal.receivers[-1][0][0] != _END:
        with signal.lock:  # `end` has to run after the project's own receivers, which may release locks
            signal.receivers[:] = sorted(signal.receivers, key=lambda receiver: receiver[0][0] == _END)
    request = task.request
    current = work_of(task)
    setattr(request, _GUARD, LeakGuard(current))
    setattr(request, _BEFORE, work.begin(current))
    (request.headers or {}).pop(PAYLOAD, None)  # or it would be sent again with the task


@abort.shielded
def end(*, task: Task[..., Any], **kwargs: object) -> None:
    """Release what the task has left, however it ended."""
    request = task.request
    guard = getattr(request, _GUARD, None)
    if guard is None:
        return  # `begin` was interrupted
    try:
        with CleanupOnError(guard.release_leaked):
            guard.release_leaked()
    finally:
        wait_result = getattr(request, WAIT_RESULT, None)
        if wait_result is not None:
            wait_result.end()
        work.begin(getattr(request, _BEFORE, None))


task_prerun.connect(begin, dispatch_uid="zklock.begin")
task_postrun.connect(end, dispatch_uid=_END)


class LeakGuard:
    """Remember what the caller holds when its work begins, and release the rest at its end; one owner uses it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._owner = current_owner()
        self._known = frozenset(held_locks.all())  # of all owners
        self._uses = {held: frozenset(held.uses) for held in self._known if held.owner == self._owner}
        self._guards = held_locks.guards(self._owner)

    @abort.shielded
    def release_leaked(self) -> None:
        """
        Release what was acquired since, and log it. The call is idempotent.

        Waits until the releases are on their way.
        """
        leaked = list(filter(self._is_leaked, held_locks.all()))
        if not leaked:
            return
        for owner in {held.owner for held in leaked}:
            self._close_blocks(owner)
        for held in leaked:
            held.release_uses(except_for=self._uses.get(held, ()))
            self._report(held)
        run(released(leaked, ThreadWaiter))

    def _is_leaked(self, held: HeldLock) -> bool:
        if not held.uses:  # its transaction keeps it, and will release it
            return False
        if held in self._uses:  # acquired before, and perhaps once more
            return not self._uses[held].issuperset(held.uses)
        if held.owner == self._owner:
            return True
        mine = held.work is self._work or (held.work is None and held not in self._known)
        return mine and held.owner.is_over

    def _close_blocks(self, owner: Owner) -> None:
        """Disarm the guards of blocks that will never end: their abort would strike other work."""
        before: list[Guard] = self._guards if owner == self._owner else []
        for guard in reversed(held_locks.guards(owner)):
            if guard not in before:
                guard.disarm()
                held_locks.close_block(owner, guard)

    def _report(self, held: HeldLock) -> None:
        about = self._work.about
        logger.warning(
            "the work ended without releasing the lock %r, which is released now",
            held.key,
            about=about,
            extra=held.grant.log_fields(),
        )
