"""Knows how to say what was seen of a lock: who, what, how long, and why somebody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock.queue.printable import printable

if TYPE_CHECKING:
    from django_zklock.inspection import ContenderInfo, LockInfo, OperatorHold, SetLimit

LONGEST: Final = 300
"""Characters of any one text that comes from ZooKeeper; a page has no use for more."""


def clean(text: object, limit: int = LONGEST) -> str:
    """Return a text cut at `limit`, without what steers a terminal or turns the direction of writing."""
    return printable(str(text), limit)


def duration(seconds: float) -> str:
    """Return a time as a short text with its two greatest units."""
    if seconds < 10:
        return _("%(seconds).1f s") % {"seconds": max(seconds, 0)}
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return _("%(seconds)d s") % {"seconds": rest}
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest}
    days, hours = divmod(hours, 24)
    if not days:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours}


def place(contender: ContenderInfo) -> str:
    """Say where a contender runs: host and process; of a client that does not tell, which one it is."""
    if contender.operator is not None:
        return _("operator %(name)s") % {"name": clean(contender.operator.by)}
    if not contender.host:
        return _("another client (%(client)s)") % {"client": clean(contender.client)}
    return _("%(host)s · pid %(pid)d") % {"host": clean(contender.host), "pid": contender.pid}


def work(contender: ContenderInfo) -> str:
    """Say what a contender does."""
    if contender.operator is not None:
        return clean(contender.operator.reason)
    return clean(contender.what)


def kind(lock: LockInfo) -> str:
    """Say what a lock is; of a semaphore, how many permits are in use."""
    if lock.limit is not None and all(each.kind == "semaphore" for each in lock.holders):
        return _("%(used)d of %(limit)d permits") % {"used": len(lock.holders), "limit": lock.limit}
    if lock.kind == "semaphore":
        return _("Semaphore")
    return _("Read-write lock") if lock.kind == "read-write" else _("Lock")


def role(contender: ContenderInfo) -> str:
    """Say what a contender wants of a lock that can be shared, or has; empty for a plain lock."""
    if contender.may_hold:
        return _("may have a permit still")
    return {"read": _("reader"), "write": _("writer"), "semaphore": _("permit")}.get(contender.kind, "")


def limit_set(limit: SetLimit) -> str:
    """Say who has set a limit, and why."""
    when = f"{limit.when:%Y-%m-%d %H:%M:%S} UTC" if limit.when else "?"
    values = {"limit": limit.limit, "by": clean(limit.by) or "?", "when": when, "reason": clean(limit.reason)}
    return _("Limit %(limit)d, set by %(by)s at %(when)s: %(reason)s") % values


def request(contender: ContenderInfo) -> str:
    """Return the last release request to a contender as text; empty if there is none."""
    return clean(str(contender.release_request)) if contender.release_request is not None else ""


def source(contender: ContenderInfo) -> str:
    """Return which kind of program a contender is: "celery", "view", "operator", "other" client or "code"."""
    if contender.operator is not None:
        return "operator"
    if contender.client != "zklock":
        return "other"
    if "task" in contender.about:
        return "celery"
    if "request" in contender.about:
        return "view"
    return "code"


def reasons(lock: LockInfo) -> list[str]:
    """Say in whole sentences why whoever waits for a lock has to, or would have to."""
    if lock.problem:
        return [_("Its queue cannot be read, so nobody is granted: %(problem)s") % {"problem": clean(lock.problem)}]
    over = [_over(each.operator) for each in lock.over if each.operator is not None]
    if not lock.holders:
        return [_("It is being handed over to the first who waits."), *over] if lock.waiting else []
    told = [_held_by(lock), *over]
    if lock.waiting:
        told.append(_ahead(lock.waiting))
    if lock.own_limits:
        text = _("Its holders and waiters have different limits in their code (%(limits)s); set one for all.")
        told.append(text % {"limits": ", ".join(map(str, lock.own_limits))})
    return told


def _over(hold: OperatorHold) -> str:
    text = _("%(name)s held it until %(until)s; the next client of django-zklock that waits ends that hold.")
    return text % {"name": clean(hold.by), "until": hold.until.strftime("%Y-%m-%d %H:%M:%S UTC")}


def _held_by(lock: LockInfo) -> str:
    holders = lock.holders
    first = holders[0]
    if first.operator is not None:
        until = first.operator.until
        return _("%(name)s holds it until %(until)s: %(reason)s") % {
            "name": clean(first.operator.by),
            "until": until.strftime("%Y-%m-%d %H:%M:%S UTC"),
            "reason": clean(first.operator.reason),
        }
    names = {"place": place(first), "work": work(first), "age": duration(lock.held_for or 0.0), "count": len(holders)}
    if lock.limit is not None and first.kind == "semaphore":
        text = _("Permits in use: %(count)d of %(limit)d; %(place)s has had its own the longest: %(age)s.")
        return text % {**names, "limit": lock.limit}
    if len(holders) > 1:
        return _("%(count)d read it together, %(place)s the longest: %(age)s.") % names
    if not names["work"]:
        return _("%(place)s has held it for %(age)s.") % names
    return _("%(place)s has held it for %(age)s, for %(work)s.") % names


def _ahead(waiting: int) -> str:
    return ngettext(
        "%(count)d waits for its turn, first come, first served.",
        "%(count)d wait for their turns, first come, first served.",
        waiting,
    ) % {"count": waiting}
