"""
The releases of this process that are on their way: nobody has confirmed them yet.

The end of a block does not wait for its release. But code that tells others something after it does, as far as we see
that: they may want the same lock, and find it free then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django_zklock.core import fork, log
from django_zklock.core.execution import abort
from django_zklock.core.execution.owner import present_loop
from django_zklock.core.execution.waiters import Routine, ThreadWaiter, run

logger = log.Logger("django_zklock.locks")

TIMEOUT = 0.7  # seconds that a caller waits at most before it tells others
LOOP_TIMEOUT = 0.25  # the same for a caller that blocks an event loop

# Each is changed by single steps, from any thread.
_under_way: Final[dict[object, None]] = {}
_waiting: Final[dict[Callable[[bool], object], set[object]]] = {}  # the releases that each caller waits for
_refused: Final[dict[object, None]] = {}  # ZooKeeper has refused them; they are tried again
_overdue: Final[dict[None, None]] = {}  # not empty: a caller has waited for too long, and no release has ended since


def begin(release: object) -> None:
    """Record that this release is on its way; from any thread."""
    _under_way[release] = None


def refuse(release: object) -> None:
    """Record that ZooKeeper has refused a release, perhaps for good: nobody waits for it; from any thread."""
    _refused[release] = None
    _end(release)


def end(release: object) -> None:
    """Record that a release is confirmed; from any thread. The call is idempotent."""
    _refused.pop(release, None)
    _end(release)


def _end(release: object) -> None:
    _under_way.pop(release, None)  # first, as `ended` looks again after it has said what it waits for
    _overdue.clear()
    for done, releases in list(_waiting.items()):
        releases.discard(release)
        if not releases:
            done(True)


@abort.shielded
def ended(new_waiter: Callable[[], Any]) -> Routine[bool]:
    """
    Wait until the releases that are on their way now have ended, at most `TIMEOUT` seconds.

    A thread that blocks its event loop by that waits `LOOP_TIMEOUT` seconds.

    In an outage, only the first caller waits. Code on the protocol's thread never does. Return whether all are
    confirmed: False while ZooKeeper refuses one.
    """
    if not _under_way or _overdue or log.on_protocol_thread():
        return not _under_way and not _refused
    waiter = new_waiter()
    done = waiter.set
    releases = set(_under_way)
    try:
        _waiting[done] = releases
        releases.intersection_update(list(_under_way))
        blocks_loop = new_waiter is ThreadWaiter and present_loop() is not None
        if releases and not (yield from waiter.outcome(LOOP_TIMEOUT if blocks_loop else TIMEOUT)):
            _overdue[None] = None
    finally:
        _waiting.pop(done, None)
    return not releases and not _refused


@abort.shielded
def wait(**kwargs: object) -> bool:
    """Wait as `ended` does, in a thread or greenlet. This is a receiver of signals, so it takes any arguments."""
    if _under_way:
        fork.notice()
    return run(ended(ThreadWaiter)) if _under_way else not _refused


def _forget() -> None:
    for records in (_under_way, _refused, _waiting, _overdue):
        records.clear()


fork.in_child(_forget)
