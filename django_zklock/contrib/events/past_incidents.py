"""Find in the tables what needs attention: ended processes, broken locks whose work goes on, losses, deadlocks."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.utils import timezone
from django.utils.translation import gettext as _

from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import Attempt
from django_zklock.contrib.events.table import Unfinished
from django_zklock.core.zk import troubles
from django_zklock.dashboard.formatting import clean, host_and_pid, key_text, keys_text
from django_zklock.dashboard.incidents import MANY, MAX_NAMED, Incident

if TYPE_CHECKING:
    from django_zklock.inspection import Snapshot

WITHIN: Final = 1800.0
"""Seconds in which losses, breaks, deadlocks, and holds without an end, are searched."""
LATE: Final = 8.0
"""Seconds after which the end of a hold is surely in the table."""
WRITTEN: Final = 1.5
"""Seconds after which it usually is. A page waits so long if many holds have no end, before it says so."""
RECENT_FOR: Final = 1.0
"""Seconds for which the losses and the holds without an end are used again."""
REFUSED_WITHIN: Final = 60.0
"""Seconds in which refused callers are counted."""
COUNTED_FOR: Final = 5.0
"""Seconds for which their numbers, and the deadlocks, are used again."""
LEAST_REFUSED: Final = 20
"""Fewer refused callers of a lock need no attention."""
REFUSED_SHARE: Final = 1 / 3
"""A smaller share of the callers of a lock needs no attention."""
_TASK_ID: Final = re.compile(" [0-9a-f-]{36}$")


def find(snapshot: Snapshot, sure: bool) -> tuple[list[Incident], list[str]]:
    """
    Return what needs attention, and what is not sure yet, in sentences. Raises what the database raises.

    Whether a process has ended takes two looks, `LATE` seconds apart, as the end of a hold may be in the table late.
    The first look is stored, so it may be that of any process. With `sure`, wait for the second one.
    """
    unfinished, unsure = _unfinished(snapshot), []
    settled, now = (LATE if sure else WRITTEN), timezone.now()
    youngest = min([(now - at).total_seconds() for row in _not_sure(unfinished) if (at := row.missed_at)], default=LATE)
    if youngest < settled:
        time.sleep(settled - max(0.0, youngest))
        unfinished = _unfinished(snapshot)
    if hosts := Counter(row.host for row in _not_sure(unfinished)):
        text = _("First look: processes on %(hosts)s may have ended with %(count)d locks. Look again in 8 s.")
        unsure = [text % {"hosts": keys_text(list(hosts), MAX_NAMED), "count": hosts.total()}]
    return [*_of_unfinished(unfinished), *_of_losses(), *_of_deadlocks(), *_of_refusals(snapshot)], unsure


def _unfinished(snapshot: Snapshot) -> list[Unfinished]:
    """Return the holds without an end that were broken, or whose processes have no contender; store the latter."""
    contenders = [contender for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)]
    alive = {(contender.host, contender.pid) for contender in contenders}
    is_known = not snapshot.problem and snapshot.total == len(snapshot.locks)
    rows = table.past_unfinished.get(WITHIN, 0.0, RECENT_FOR)
    if is_known:
        before = timezone.now() - timedelta(seconds=LATE)  # others are about to get their end
        missed = [row for row in rows if (row.host, row.pid) not in alive]
        new = [row.row for row in missed if row.missed_at is None and row.at <= before]
        if new:
            table.mark_missed(new)
            rows = table.past_unfinished.get(WITHIN, 0.0, 0.0)  # some have their end by now
    present = {contender.token for contender in contenders}
    rows = [row for row in rows if row.token not in present]
    return [row for row in rows if row.broken_by or (is_known and row.missed_at and (row.host, row.pid) not in alive)]


def _not_sure(rows: Sequence[Unfinished]) -> list[Unfinished]:
    """Return the rows of hosts with many missed holds, of which some may get their end yet."""
    missed = [row for row in rows if not row.broken_by]
    many, late = _many(row.host for row in missed), timezone.now() - timedelta(seconds=LATE)
    return [row for row in missed if row.host in many and row.missed_at is not None and row.missed_at > late]


def _of_unfinished(rows: Sequence[Unfinished]) -> Iterator[Incident]:
    now = timezone.now()
    broken: defaultdict[tuple[str, int, str], list[Unfinished]] = defaultdict(list)
    ended: defaultdict[str, list[Unfinished]] = defaultdict(list)
    for row in rows:
        if row.broken_by:
            broken[row.host, row.pid, row.broken_by].append(row)
        elif row.missed_at and (now - row.missed_at).total_seconds() >= LATE:
            ended[row.host].append(row)
    for (host, pid, by), held in broken.items():
        last = max(row.broken_at for row in held if row.broken_at)
        age, keys = max(0.0, (now - last).total_seconds()), tuple(row.key for row in held)
        yield Incident(cause="broken", host=host, pid=pid, keys=keys, values={"by": clean(by)}, since=last, age=age)
    for host in _many(row.host for held in ended.values() for row in held):
        last, keys = max(row.missed_at for row in ended[host] if row.missed_at), tuple(row.key for row in ended[host])
        yield Incident(cause="ended", host=host, keys=keys, since=last)


def _of_losses() -> Iterator[Incident]:
    for host, count in table.past_losses.get(WITHIN, 0.0, RECENT_FOR).items():
        if count >= MANY:
            began = table.began(WITHIN, host=host, outcome=Attempt.LOST, reason__in=troubles.ALL)
            yield Incident(cause="flapping", host=host, values={"count": count}, since=began)


def _of_deadlocks() -> Iterator[Incident]:
    """Yield one incident for all deadlocks of the same templates, as one order of locks prevents them all."""
    circles: defaultdict[tuple[str, ...], list[list[Attempt]]] = defaultdict(list)
    for circle in table.past_deadlocks.get(WITHIN, 0.0, COUNTED_FOR):
        circles[tuple(sorted({row.template for row in circle}))].append(circle)
    for templates, same in circles.items():
        last = same[0]
        ranks = {row.key: (row.template, row.key) for row in last}  # the order of `zk_locks`, about
        wrong = [row.work for row in last if ranks.get(row.reason, ("",)) > ranks[row.key]]
        order = _(" before ").join(map(key_text, templates))
        values = {
            "count": len(same),
            "stories": "; ".join(map(_story, last)),
            "works": ", ".join(dict.fromkeys(_TASK_ID.sub("", clean(work)) for work in wrong)),
            "order": order if templates[1:] else _("%(name)s in the order of the keys") % {"name": order},
        }
        keys, age = tuple(row.key for row in last), (timezone.now() - last[0].at).total_seconds()
        yield Incident(cause="order", keys=keys, values=values, since=templates, age=max(0.0, age))


def _story(row: Attempt) -> str:
    text = _("%(process)s (%(work)s) held %(held)s and waited for %(key)s")
    if row.waited is not None:
        text = _("%(process)s (%(work)s) held %(held)s and waited for %(key)s until its wait was ended")
    names = {"held": key_text(row.reason), "key": key_text(row.key), "work": clean(row.work)}
    return text % {**names, "process": host_and_pid(row.host, row.pid)}


def _of_refusals(snapshot: Snapshot) -> Iterator[Incident]:
    waiting = {lock.key: lock.waiting for lock in snapshot.locks}
    for key, (refused, callers) in table.past_refused.get(REFUSED_WITHIN, 0.0, COUNTED_FOR).items():
        if refused >= max(LEAST_REFUSED, REFUSED_SHARE * callers):
            values = {"refused": refused, "callers": callers}
            began = table.began(WITHIN, key=key, outcome=Attempt.TIMED_OUT)
            yield Incident(cause="hot", keys=(key,), values=values, blocked=waiting.get(key, 0), since=began)


def _many(hosts: Iterable[str]) -> list[str]:
    """Return those that are there often enough to need attention."""
    return [host for host, count in Counter(hosts).items() if count >= MANY]
