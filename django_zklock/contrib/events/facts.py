"""Read the past for the report: holds without an end, losses, refusals, and what is usual."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.utils import timezone
from django.utils.translation import gettext as _

from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import Attempt
from django_zklock.core.zk import troubles
from django_zklock.report.formatting import keys_text
from django_zklock.report.incident import MANY, MAX_NAMED

if TYPE_CHECKING:
    from django_zklock.inspection import ScannedContender, Snapshot

WITHIN: Final = 1800.0
"""Seconds in which losses, breaks, deadlocks, and holds without an end, are searched."""
LATE: Final = 8.0
"""Seconds after which the end of a hold is surely in the table."""
WRITTEN: Final = 1.5
"""Seconds after which it usually is. A page waits so long if many holds have no end, before it says so."""
SETTLED: Final = 3.0
"""Seconds that a page of the history waits for that, before it says that a process ended."""
PAUSE: Final = 0.25
"""Seconds between two looks meanwhile."""
RECENT_FOR: Final = 1.0
"""Seconds for which the losses and the holds without an end are used again."""
USUAL_FOR: Final = 60.0
"""Seconds for which what is usual of a template is used again."""
REFUSED_WITHIN: Final = 60.0
"""Seconds in which refused callers are counted."""
COUNTED_FOR: Final = 5.0
"""Seconds for which their numbers, the deadlocks, and the epochs of leaders, are used again."""
LEAST_REFUSED: Final = 20
"""Fewer refused callers of a lock need no attention."""
REFUSED_SHARE: Final = 1 / 3
"""A smaller share of the callers of a lock needs no attention."""


def unfinished(snapshot: Snapshot, sure: bool) -> tuple[list[Attempt], list[str]]:
    """
    Return the holds that were broken or whose processes ended, and sentences about what is not sure yet.

    Whether a process has ended takes two looks, `LATE` seconds apart, as the end of a hold may be in the table late.
    The first look is stored, so it may be that of any process. With `sure`, wait for the second one.
    """
    rows, unsure = _unfinished(snapshot), []
    settled, now = (LATE if sure else WRITTEN), timezone.now()
    youngest = min([(now - at).total_seconds() for row in _not_sure(rows) if (at := row.missed_at)], default=LATE)
    if youngest < settled:
        time.sleep(settled - max(0.0, youngest))
        rows = _unfinished(snapshot)
    if hosts := Counter(row.host for row in _not_sure(rows)):
        text = _("First look: processes on %(hosts)s may have ended with %(count)d locks. Look again in 8 s.")
        unsure = [text % {"hosts": keys_text(list(hosts), MAX_NAMED), "count": hosts.total()}]
    late = table.ago(LATE)
    return [row for row in rows if row.broken_by or (row.missed_at and row.missed_at <= late)], unsure


def _unfinished(snapshot: Snapshot) -> list[Attempt]:
    """Return the holds without an end that were broken, or whose processes have no contender; store the latter."""
    contenders = [contender for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)]
    present = {contender.token for contender in contenders}
    is_missed = _missed(snapshot, contenders)
    rows = table.past_unfinished.get(WITHIN, 0.0, RECENT_FOR)
    now = timezone.now()
    young = now - timedelta(seconds=LATE)  # these are about to get their end; a host's clock may be ahead
    new = [row.pk for row in rows if row.missed_at is None and is_missed(row) and not young < row.at <= now]
    if new:
        table.mark_missed(new)
        rows = table.past_unfinished.get(WITHIN, 0.0, 0.0)  # some have their end by now
    return [row for row in rows if row.token not in present and (row.broken_by or (row.missed_at and is_missed(row)))]


def _missed(snapshot: Snapshot, contenders: Sequence[ScannedContender]) -> Callable[[Attempt], bool]:
    """Return whether the process of a row has no contender. While some queues are not read, nobody is missed."""
    # A restarted container has the same host name and pid, so a life of a process is its session.
    alive = {(contender.host, contender.pid) for contender in contenders}
    sessions = {contender.session_id for contender in contenders}
    unread = snapshot.total - sum(not lock.is_unread for lock in snapshot.locks)

    def is_missed(row: Attempt) -> bool:
        return row.session not in sessions if row.session else (row.host, row.pid) not in alive

    return (lambda row: False) if snapshot.problem or unread else is_missed


def _not_sure(rows: Sequence[Attempt]) -> list[Attempt]:
    """Return the rows of hosts or locks with many missed holds, of which some may get their end yet."""
    missed, late = [row for row in rows if not row.broken_by], table.ago(LATE)
    counts = Counter(name for row in missed for name in {("host", row.host), ("key", row.key)})
    many = [row for row in missed if max(counts["host", row.host], counts["key", row.key]) >= MANY]
    return [row for row in many if row.missed_at is not None and row.missed_at > late]


def settle(rows: Sequence[Attempt]) -> None:
    """
    Wait until these holds, which are over, have their end in the table, if their processes write it.

    Older rows than `LATE` are stored as missed, so that only the first look waits, and that for `SETTLED` seconds.
    """
    now, written = timezone.now(), timedelta(seconds=SETTLED)
    old = [row for row in rows if row.at <= now - timedelta(seconds=LATE)]
    new = [row for row in old if row.missed_at is None or now - row.missed_at < written]
    if new:
        table.mark_missed([row.pk for row in new])
    for _look in range(int(SETTLED / PAUSE)):
        if not new:
            break
        time.sleep(PAUSE)
        table.refresh(new)
        new = [row for row in new if row.outcome == row.HELD]


def losses_by_host() -> dict[str, int]:
    """Return how many sessions of each host have lost locks."""
    return dict(table.past_losses.get(WITHIN, 0.0, RECENT_FOR))


def losses() -> list[tuple[str, int, str]]:
    """Return the hosts whose sessions have lost many locks, how many, and since when that goes on."""
    counts = losses_by_host().items()
    of = {"outcome": Attempt.LOST, "reason__in": troubles.ALL}
    return [(host, count, table.began(WITHIN, host=host, **of)) for host, count in counts if count >= MANY]


def deaths_since(key: str) -> str:
    """Return since when holders of this lock have died, again and again."""
    return table.began(WITHIN, key=key, outcome=Attempt.HELD, missed_at__isnull=False)


def refusals() -> list[tuple[str, int, int, str]]:
    """Return the locks that were refused to many callers: to how many, of how many, and since when that goes on."""
    counts = table.past_refused.get(REFUSED_WITHIN, 0.0, COUNTED_FOR).items()
    return [
        (key, refused, callers, table.began(WITHIN, key=key, outcome=Attempt.TIMED_OUT))
        for key, (refused, callers) in counts
        if refused >= max(LEAST_REFUSED, REFUSED_SHARE * callers)
    ]


def stale() -> list[tuple[str, list[str], str]]:
    """Return the templates with refused fenced writes: the key of each write, and since when that goes on."""
    return [
        (template, keys, table.began(WITHIN, template=template, outcome=Attempt.STALE))
        for template, keys in table.past_stale.get(WITHIN, 0.0, COUNTED_FOR).items()
    ]


def refused_releases() -> dict[int, str]:
    """Return the tokens of the releases that ZooKeeper refused in the last day, and why."""
    return dict(table.past_refused_releases.get(0.0, 0.0, COUNTED_FOR))


def deadlocks() -> list[list[Attempt]]:
    """Return the waits of each deadlock, the newest deadlock first."""
    return table.past_deadlocks.get(WITHIN, 0.0, COUNTED_FOR)


def epochs(seconds: float) -> list[int]:
    """Return the first and the last epoch of ZooKeeper's leaders in the grants of the last so many seconds."""
    return table.past_epochs.get(seconds, 0.0, COUNTED_FOR)


def usual_hold(template: str) -> float | None:
    """Return for how many seconds locks of this template are usually held; None if that is not known."""
    return _usual(template)[0]


def usual_queue(template: str) -> float | None:
    """Return how many callers usually wait for a lock of this template; None if that is not known."""
    return _usual(template)[1]


def usual_wait(template: str) -> float | None:
    """Return for how many seconds callers usually wait for locks of this template; None if that is not known."""
    wait: float | None = table.usual_wait.get(template, 0.0, USUAL_FOR) if template else None
    return wait


def _usual(template: str) -> tuple[float, float] | tuple[None, None]:
    usual = table.usual.get(template, 0.0, USUAL_FOR) if template else None
    return usual or (None, None)
