"""Pass the events of this process's locks, and its operators' actions, to the writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from django_zklock import signals
from django_zklock.contrib.events.models import Attempt
from django_zklock.contrib.events.table import Acted, Attempted, Deadlocked, Ended
from django_zklock.contrib.events.writer import PAUSE, Writer
from django_zklock.core import clock, fork
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.zk import process
from django_zklock.locks.events import events

if TYPE_CHECKING:
    from django_zklock.exceptions import DeadlockLink
    from django_zklock.operations.audit import Action

EXIT_TIMEOUT: Final = 2.0
"""Seconds that the exit of a process may wait for the last write."""

REFUSED_AFTER: Final = 3 * PAUSE
"""
Seconds until a refused release is recorded: it corrects the row of its hold, which is written before that.

In a Celery worker, a process of the pool writes that row, and the main process the correction.
"""

_writer = Writer()  # of this process


def connect() -> None:
    """Record from now on. The call is idempotent."""
    events.recorder = Recorder()
    signals.lock_contended.connect(_on_contended)
    signals.lock_deadlocked.connect(_on_deadlocked)
    signals.write_refused.connect(_on_refused)
    if flush not in process.at_end:
        process.at_end.append(flush)


def disconnect() -> None:
    """Stop recording."""
    signals.lock_contended.disconnect(_on_contended)
    signals.lock_deadlocked.disconnect(_on_deadlocked)
    signals.write_refused.disconnect(_on_refused)
    events.recorder = None


def flush(timeout: float = EXIT_TIMEOUT) -> None:
    """Write the events so far, and wait for that at most `timeout` seconds. A failure is logged."""
    _writer.flush(timeout)


def _granted(grant: Grant, waited: float | None, at: float) -> Attempted:
    return Attempted(
        Attempt.HELD,
        at,
        grant.key,
        grant.template,
        grant.kind.word,
        grant.token,
        grant.what,
        waited,
        grant.session_id,
    )


class Recorder:
    """Hears of each event on the thread where it happens; it only puts a value into the writer's queue."""

    def acquired(self, grant: Grant, waited: float) -> None:
        """Record a grant, `waited` seconds after the call."""
        _writer.put(_granted(grant, waited, time.time()))

    def released(self, grant: Grant, held: float) -> None:
        """Record a release, after `held` seconds."""
        _writer.put(Ended(_granted(grant, None, time.time() - held), Attempt.RELEASED, held, ""))

    def lost(self, grant: Grant, reason: str) -> None:
        """Record a loss."""
        held = clock.now() - grant.since
        _writer.put(Ended(_granted(grant, None, time.time() - held), Attempt.LOST, held, reason))

    def refused(self, grant: Grant, reason: str) -> None:
        """Record that ZooKeeper refuses a release that was recorded; on the protocol's thread."""
        held = clock.now() - grant.since
        end = Ended(_granted(grant, None, time.time() - held), Attempt.REFUSED, held, reason)
        grant.session.loop.call_later(REFUSED_AFTER, lambda: _writer.put(end))

    def acted(self, action: Action) -> None:
        """Record what an operator did."""
        _writer.put(Acted(asdict(action)))


def _on_contended(
    *, lock: str, waited: float, template: str, kind: str, about: Mapping[str, str], **kwargs: object
) -> None:
    # A try that did not wait counts in a view, whose client gets an error. A task that tries is skipped or comes again,
    # and other code may do without the lock.
    if waited or "request" in about:
        _writer.put(Attempted(Attempt.TIMED_OUT, time.time(), lock, template, kind, waited=waited))


def _on_deadlocked(*, lock: str, circle: tuple[DeadlockLink, ...], waited: float, **kwargs: object) -> None:
    _writer.put(Deadlocked(time.time(), circle, lock, waited))


def _on_refused(*, lock: str, template: str, kind: str, work: str, **kwargs: object) -> None:
    _writer.put(Attempted(Attempt.STALE, time.time(), lock, template, kind, work=work))


def _begin_child() -> None:
    global _writer
    _writer = Writer()  # a forked child has neither the thread nor the locks of its parent


fork.in_child(_begin_child)
