"""Pass the events of this process's locks, and its operators' actions, to the writer."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.dispatch import Signal

from django_zklock import signals
from django_zklock.contrib.events.models import EXIT_TIMEOUT, MAX_TEXT, Event
from django_zklock.contrib.events.table import Fields
from django_zklock.contrib.events.writer import PAUSE, Writer
from django_zklock.core import clock, fork
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue.escaping import printable, shortened
from django_zklock.core.zk import process, troubles
from django_zklock.exceptions import LockNotAcquired, ZooKeeperUnavailable
from django_zklock.locks.events import events

if TYPE_CHECKING:
    from django_zklock.exceptions import DeadlockLink
    from django_zklock.operations.audit import Action

REFUSED_AFTER: Final = 3 * PAUSE
"""
Seconds until a refused release is recorded: it corrects the row of its hold, which is written before that.

In a Celery worker, a process of the pool writes that row, and the main process the correction.
"""
TRIED_EVERY: Final = 30.0
"""Seconds between two rows of one process for tries of one lock. Code may poll many locks, and do without them."""
MOST_TRIED: Final = 10_000
_tried: Final[dict[str, float]] = {}  # when the last row of a try was made, by key; any thread writes
_HOST: Final = printable(socket.gethostname(), MAX_TEXT)
_writer = Writer()  # of this process


def connect() -> None:
    """Record from now on. The call is idempotent."""
    events.recorder = Recorder()
    for signal, receiver in _RECEIVERS.items():
        signal.connect(receiver)
    if flush not in process.at_end:
        process.at_end.append(flush)


def disconnect() -> None:
    """Stop recording."""
    for signal, receiver in _RECEIVERS.items():
        signal.disconnect(receiver)
    events.recorder = None


def flush(timeout: float = EXIT_TIMEOUT) -> None:
    """Write the events so far, and wait for that at most `timeout` seconds. A failure is logged."""
    _writer.flush(timeout)


def _event(outcome: str, key: str, at: float, *, work: str = "", reason: str = "", by: str = "", **more: Any) -> Fields:
    texts = {name: printable(text, MAX_TEXT) for name, text in {"work": work, "reason": reason, "by": by}.items()}
    own = {"host": _HOST, "pid": os.getpid(), **more}
    return {"outcome": outcome, "key": shortened(key, MAX_TEXT), "at": at, **texts, **own}


def _hold(outcome: str, grant: Grant, held: float | None, waited: float | None = None, reason: str = "") -> Fields:
    more: dict[str, Any] = {
        "kind": grant.kind.word,
        "token": grant.token,
        "session": grant.session_id,
        "held": held,
        "waited": waited,
    }
    return _event(outcome, grant.key, time.time() - (held or 0.0), work=grant.what, reason=reason, **more)


class Recorder:
    """Hears of each event on the thread where it happens; it only puts a value into the writer's queue."""

    def acquired(self, grant: Grant, waited: float) -> None:
        """Record a grant, `waited` seconds after the call."""
        _writer.put(_hold(Event.HELD, grant, None, waited))

    def released(self, grant: Grant, held: float) -> None:
        """Record a release, after `held` seconds."""
        _writer.put(_hold(Event.RELEASED, grant, held))

    def lost(self, grant: Grant, reason: str) -> None:
        """Record a loss. A process that ends in order releases what it still holds: it closes its session."""
        outcome = Event.CUT_OFF if reason in troubles.ALL else Event.LOST
        if grant.session.closing:
            outcome = Event.RELEASED
        _writer.put(_hold(outcome, grant, clock.now() - grant.since, reason=reason))

    def refused(self, grant: Grant, reason: str) -> None:
        """Record that ZooKeeper refuses a release that was recorded; on the protocol's thread."""
        end = _hold(Event.REFUSED, grant, clock.now() - grant.since, reason=reason)
        grant.session.loop.call_later(REFUSED_AFTER, lambda: _writer.put(end))

    def acted(self, action: Action) -> None:
        """Record what an operator did."""
        by = f"{action.by} ({action.via})"
        _writer.put(_event(Event.ACTION, action.key, action.at, work=str(action), by=by, reason=action.reason))


def _on_failed(
    *,
    lock: str,
    error: type[BaseException],
    reason: str,
    circle: tuple[DeadlockLink, ...],
    waited: float,
    kind: str,
    about: Mapping[str, str],
    **kwargs: object,
) -> None:
    if issubclass(error, ZooKeeperUnavailable):
        _writer.put(_event(Event.FAILED, lock, time.time(), kind=kind, waited=waited, reason=reason))
    elif circle:
        story = "; ".join(f"{link.holder.what} held {link.holds} and waited for {link.waits_for}" for link in circle)
        _writer.put(_event(Event.DEADLOCK, lock, time.time(), work=story, waited=waited))
    elif issubclass(error, LockNotAcquired):
        _on_contended(lock, waited, kind, about)


def _on_contended(lock: str, waited: float, kind: str, about: Mapping[str, str]) -> None:
    # A try that did not wait counts as refused in a view, whose client gets an error.
    if waited or "request" in about:
        _writer.put(_event(Event.TIMED_OUT, lock, time.time(), kind=kind, waited=waited))
    elif clock.now() - _tried.get(lock, -math.inf) >= TRIED_EVERY:
        if len(_tried) >= MOST_TRIED:
            _tried.clear()
        _tried[lock] = clock.now()
        _writer.put(_event(Event.TRIED, lock, time.time(), kind=kind, waited=waited))


def _on_refused(*, lock: str, kind: str, work: str, **kwargs: object) -> None:
    _writer.put(_event(Event.STALE, lock, time.time(), kind=kind, work=work))


def _begin_child() -> None:
    global _writer
    _writer = Writer()  # a forked child has neither the thread nor the locks of its parent


_RECEIVERS: Final[dict[Signal, Callable[..., None]]] = {
    signals.lock_failed: _on_failed,
    signals.write_refused: _on_refused,
}
fork.in_child(_begin_child)
