"""The causes that are in the past of the locks, if an app records it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.incident import MANY, MAX_NAMED, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from typing_extensions import Self

    from django_zklock.report.facts import Facts

_TASK_ID: Final = re.compile(" [0-9a-f-]{36}$")


class OfHistory(Incident):
    """Something that has happened. The queues do not show it any more."""

    word = _("Check")
    ends = "Half an hour is over."
    act = "host"
    command = "history"
    of_host = True


class Broken(OfHistory):
    """An operator broke the lock in the last 30 minutes, and no end of its work is recorded."""

    cause = "broken"
    title = _("Broken by %(by)s %(time)s ago, and its work has not ended yet: %(keys)s")
    sentence = _("The work on %(process)s lost the lock and may still run without it. No end of its work is recorded.")
    remedy = _("Look at the process. If it still runs this work, end the process; then check the work.")
    ends = "The work ends, or half an hour is over."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        broken: defaultdict[tuple[str, int, str], list[Any]] = defaultdict(list)
        for row in facts.unfinished:
            if row.broken_by:
                broken[row.host, row.pid, row.broken_by].append(row)
        for (host, pid, by), rows in broken.items():
            last = max(row.broken_at for row in rows)
            values = {"by": formatting.clean(by)}
            yield cls(host=host, pid=pid, keys=_keys(rows), values=values, since=last, age=_age(last))


class Hot(Incident):
    """In the last minute, 20 callers or more of a lock were refused, and at least a third of them."""

    cause = "hot"
    title = _("%(refused)d of %(callers)d callers were refused in the last minute: %(keys)s")
    sentence = _("They want one lock at the same time, and their timeouts are shorter than the queue.")
    remedy = _("Hold it for a shorter time, wait longer (`timeout`), set `on_conflict`, or use permits.")
    ends = "A minute with fewer refusals."
    command = "show"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for key, refused, callers, began in facts.past("refusals"):
            blocked = facts.locks[key].waiting if key in facts.locks else 0
            yield cls(keys=(key,), values={"refused": refused, "callers": callers}, blocked=blocked, since=began)


class Stale(Incident):
    """In the last 30 minutes, three fenced writes of holders were refused, although they held the lock."""

    cause = "stale"
    severity = "error"
    title = _("%(count)d fenced writes were refused in the last 30 minutes: %(keys)s")
    sentence = _("Their holders have the lock, but the rows have seen higher tokens. Was ZooKeeper restored?")
    remedy = _('See "After ZooKeeper has lost its data" in the docs: raise its epoch, or reset the tokens.')
    ends = "Half an hour without a refusal."
    command = "history --what=stale"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for _template, keys, began in facts.past("stale"):
            if len(keys) >= MANY:
                yield cls(keys=tuple(dict.fromkeys(keys)), values={"count": len(keys)}, since=began)


class Order(OfHistory):
    """In the last 30 minutes, a deadlock ended by itself. The card has its story, and the work to change."""

    cause = "order"
    title = _("Deadlock %(time)s ago, which has ended by itself: %(keys)s")
    sentence = _("%(count)d in the last 30 minutes. In the last one, %(stories)s.")
    remedy = _("Always lock %(order)s, or all at once with `zk_locks`. To change: %(works)s.")
    act = ""
    command = "history --what=deadlock"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        """Deadlocks of the same templates are one incident, as one order of locks prevents them all."""
        circles: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
        for circle in facts.past("deadlocks"):
            circles[tuple(sorted({row.template for row in circle}))].append(circle)
        for templates, same in circles.items():
            last = same[0]
            ranks = {row.key: (row.template, row.key) for row in last}  # the order of `zk_locks`, about
            wrong = [row.work for row in last if ranks.get(row.reason, ("",)) > ranks[row.key]]
            order = gettext(" before ").join(map(formatting.key_text, templates))
            values = {
                "count": len(same),
                "stories": "; ".join(map(_story, last)),
                "works": ", ".join(dict.fromkeys(_TASK_ID.sub("", formatting.clean(work)) for work in wrong)),
                "order": order if templates[1:] else gettext("%(name)s in the order of the keys") % {"name": order},
            }
            yield cls(keys=_keys(last), values=values, since=templates, age=_age(last[0].at))


def _story(row: Any) -> str:
    text = gettext("%(process)s (%(work)s) held %(held)s and waited for %(key)s")
    if row.waited is not None:
        text = gettext("%(process)s (%(work)s) held %(held)s and waited for %(key)s until its wait was ended")
    names = {"held": formatting.key_text(row.reason), "key": formatting.key_text(row.key)}
    return text % {**names, "work": formatting.clean(row.work), "process": formatting.host_and_pid(row.host, row.pid)}


class Ended(OfHistory):
    """In the last 30 minutes, processes of a host were killed, paused or cut off, with three locks or more."""

    cause = "ended"
    title = _("Processes on %(process)s ended or were cut off, with %(count)d locks")
    sentence = _(
        "They were killed or paused, or the host is down. The locks are free. Work may be incomplete or still run."
    )
    remedy = _("Look at the host, and at its log for the reason. Check the work of these locks.")

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for host, rows in _ended(facts).items():
            if len(_keys(rows)) >= MANY:
                yield cls(host=host, keys=_keys(rows), since=max(row.missed_at for row in rows))


class Dying(OfHistory):
    """In the last 30 minutes, three holders of one lock never released it: it flaps."""

    cause = "dying"
    title = _("%(keys)s: its holder died %(deaths)d times in %(time)s")
    sentence = _("It flaps: each next holder was killed, paused or cut off, too. The last one was on %(process)s.")
    of_host = False
    remedy = _("Look at the log of the process, at its memory, and at what the work does. Check the work of this lock.")

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        deaths: defaultdict[str, list[Any]] = defaultdict(list)
        for rows in _ended(facts).values():
            for row in rows if len(_keys(rows)) < MANY else []:
                deaths[row.key].append(row)
        for key, rows in deaths.items():
            if len(rows) >= MANY:
                first, last = (choose(rows, key=lambda row: row.at) for choose in (min, max))
                values, age = {"deaths": len(rows)}, _age(first.at)
                began = facts.past("deaths_since", key)
                yield cls(keys=(key,), host=last.host, pid=last.pid, age=age, values=values, since=began)


class Flapping(OfHistory):
    """In the last 30 minutes, the network took the locks from three sessions of a host."""

    cause = "flapping"
    title = _("%(process)s has lost its locks %(count)d times in the last 30 minutes")
    sentence = _("Its connections to ZooKeeper break, or its processes pause.")
    remedy = _("Look at its network, its load and its memory.")
    ends = "Half an hour without a loss."
    command = "history --what=lost"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for host, count, began in facts.past("losses"):
            yield cls(host=host, values={"count": count}, since=began)


def recently_ended(facts: Facts) -> list[str]:
    """Return sentences about processes that were killed under a lock or two. They are no alarm."""
    hosts = {host: rows for host, rows in _ended(facts).items() if len(_keys(rows)) < MANY}
    counts = Counter(row.key for rows in hosts.values() for row in rows)
    rows = sorted((row for rows in hosts.values() for row in rows if counts[row.key] < MANY), key=lambda row: row.at)
    texts = []
    for row in rows[: -MAX_NAMED - 1 : -1]:
        text = gettext("%(process)s ended or was cut off while it held %(lock)s (%(work)s), granted %(time)s ago.")
        if counts[row.key] > 1:
            text = gettext("%(process)s, too, ended while it held %(lock)s (%(work)s), granted %(time)s ago.")
        values = {"lock": formatting.key_text(row.key, 200), "work": formatting.clean(row.work)}
        process = formatting.host_and_pid(row.host, row.pid)
        texts.append(text % {**values, "process": process, "time": formatting.duration(_age(row.at))})
    return texts


def _ended(facts: Facts) -> dict[str, list[Any]]:
    """Return by host the holds whose processes ended."""
    ended: defaultdict[str, list[Any]] = defaultdict(list)
    for row in facts.unfinished:
        if not row.broken_by:
            ended[row.host].append(row)
    return ended


def _age(when: datetime) -> float:
    """Return the seconds since then; 0 if the clock of its host is ahead."""
    return max(0.0, (timezone.now() - when).total_seconds())


def _keys(rows: list[Any]) -> tuple[str, ...]:
    """Return the locks of rows, each once."""
    return tuple(dict.fromkeys(row.key for row in rows))
