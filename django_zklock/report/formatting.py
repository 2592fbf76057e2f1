"""Texts about locks and contenders: in the language of the page, and in English for `manage.py zklock`."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.utils.html import format_html
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.core.queue.command_line import command
from django_zklock.core.queue.escaping import printable, shown_key
from django_zklock.core.queue.untrusted import LATEST, iso_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.core.queue.release_request import ReleaseRequest
    from django_zklock.inspection import ContenderInfo, LockInfo, OperatorHold, ScannedContender, SetLimit, Wait

MAX_TEXT: Final = 300
"""Characters of a text that comes from ZooKeeper."""
MAX_ERROR: Final = 2000
"""Characters of our own errors. They quote other people's texts in a few characters, so the advice at the end stays."""
STATE_LABELS: Final = {
    "deadlocked": gettext_lazy("Deadlocked"),
    "unread": gettext_lazy("Unknown"),
    "unreadable": gettext_lazy("Unreadable"),
    "blocked": gettext_lazy("Blocked"),
    "slow": gettext_lazy("Slow"),
    "contended": gettext_lazy("Contended"),
    "long": gettext_lazy("Long held"),
    "lasting": gettext_lazy("Meant to last"),
    "held": gettext_lazy("Held"),
    "kept": gettext_lazy("Kept for the next user"),
    "operator": gettext_lazy("Held by an operator"),
    "reserved": gettext_lazy("Reserved"),
    "passing": gettext_lazy("Handing over"),
    "free": gettext_lazy("Free"),
}
"""Labels of `LockInfo.state`, and of the states that incidents give to their locks."""
LASTING_TEXTS: Final = {
    "leader": gettext_lazy("A leader holds it until it ends. The others stand by."),
    "run": gettext_lazy("A command holds it for as long as it runs."),
    "lease": gettext_lazy("Its client renews the lease. If it does not, the lease ends."),
}
KIND_LABELS: Final = {
    "lock": gettext_lazy("Lock"),
    "read-write": gettext_lazy("Read-write lock"),
    "semaphore": gettext_lazy("Semaphore"),
}
"""Labels of `LockInfo.kind`."""
CONNECTION_LABELS: Final = {
    "connected": gettext_lazy("Connected"),
    "connecting": gettext_lazy("Connecting"),
    "suspended": gettext_lazy("Suspended"),
    "lost": gettext_lazy("Session lost"),
}
"""Labels of `ConnectionInfo.state`."""
_ID: Final = re.compile(r"[ \[(]?\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b[\])]?")


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """Return a text with at most `limit` characters, all of which print."""
    return printable(str(text), limit)


def key_text(key: str, limit: int = MAX_TEXT) -> str:
    """Return a key as people write it. Links, form values and commands need the key itself."""
    return clean(shown_key(key), limit)


def duration(seconds: float | None) -> str:
    """Return a span with its two greatest units; empty if it is unknown. A table or another client has any number."""
    if seconds is None:
        return ""
    seconds = min(max(0.0, seconds), LATEST)  # in this order: 0 also for NaN
    if seconds < 10:
        return _("%(seconds).1f s") % {"seconds": seconds}
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


def span(contender: ScannedContender) -> str:
    """Return for how long a holder has held the lock, or a waiter has waited."""
    text = duration(contender.duration)
    return _("at most %(time)s") % {"time": text} if contender.held_at_most else text


def age(seconds: float, since: datetime | None = None) -> str:
    """Return an age that the script of the page keeps up to date."""
    return format_html(
        '<time class="zklock-age" datetime="{}" title="{}" data-age="{}">{}</time>',
        since.isoformat() if since else "",
        time_text(since) if since else "",
        f"{max(seconds, 0):.1f}",
        duration(seconds),
    )


def age_of(contender: ScannedContender) -> str:
    """Return for how long a holder has held the lock, or a waiter has waited."""
    shown = age(contender.duration, contender.since)
    if not contender.held_at_most:
        return shown
    return format_html('<span class="zklock-age">{}</span>', format_html(_("at most {}"), shown))


def process_of(contender: ContenderInfo) -> str:
    """Return host and process of a contender, or the operator, or the other client."""
    if contender.operator is not None:
        if contender.operator.task_id:
            return contender.operator.by
        return _("operator %(name)s") % {"name": contender.operator.by}
    if contender.client != "zklock" and not contender.pid:
        client = f"{contender.client}, {clean(contender.host)}" if contender.host else contender.client
        return _("another client (%(client)s)") % {"client": client}
    return host_and_pid(contender.host, contender.pid)


def host_and_pid(host: str, pid: int) -> str:
    """Return the host, and the number of a process unless it is 0."""
    return _("%(host)s · pid %(pid)d") % {"host": clean(host), "pid": pid} if pid else clean(host)


def work_of(contender: ContenderInfo) -> str:
    """Return what a contender runs, or the reason of an operator hold."""
    return clean(contender.what if contender.operator is None else contender.operator.reason)


def work_kind(contender: ContenderInfo) -> str:
    """Return what equal work has in common: the task, the request, or the command without the ids of this one."""
    return clean(contender.about.get("task") or contender.about.get("request") or _ID.sub("", work_of(contender)))


def use_of(contender: ScannedContender) -> str:
    """Return what a contender runs, or for how long its process has kept the lock without a user."""
    if contender.idle_for is None:
        return work_of(contender)
    return _("kept for the next user, idle for %(age)s") % {"age": duration(contender.idle_for)}


def holder_text(holder: ContenderInfo) -> str:
    """Return host, process and work of a holder in one line."""
    return f"{process_of(holder)} · {work_of(holder)}".rstrip(" ·")


def kind_text(lock: LockInfo) -> str:
    """Return the kind of a lock; for a semaphore, how many permits are in use."""
    if lock.limit is not None and all(holder.kind == "semaphore" for holder in lock.holders):
        values = {"used": len(lock.holders), "limit": lock.limit}
        if lock.holders_at_most:
            return _("at most %(used)d of %(limit)d permits") % values
        return _("%(used)d of %(limit)d permits") % values
    return str(KIND_LABELS[lock.kind])


def role_text(contender: ScannedContender) -> str:
    """Return what a contender wants of a lock that can be shared, or has of it; empty for an exclusive lock."""
    permit = _("holds 1 permit") if contender.holds else _("wants a permit")
    return {"read": _("reader"), "write": _("writer"), "semaphore": permit}.get(contender.kind, "")


def limit_text(limit: SetLimit) -> str:
    """Return a limit that was set, by whom, when and why."""
    when = time_text(limit.when) if limit.when else "?"
    values = {"limit": limit.limit, "by": limit.by or "?", "when": when, "reason": limit.reason}
    return _("Limit %(limit)d, set by %(by)s at %(when)s: %(reason)s") % values


def reasons(lock: LockInfo) -> list[str]:
    """Return in sentences why the waiters of a lock wait."""
    if lock.is_unread:
        return [_("It is not known who holds it. %(problem)s") % {"problem": clean(lock.problem, MAX_ERROR)}]
    if lock.problem:
        text = _("The queue cannot be read, so the lock is not granted: %(problem)s")
        return [text % {"problem": clean(lock.problem, MAX_ERROR)}]
    text = _("%(name)s held it until %(until)s. The next django-zklock client that waits ends this hold.")
    holds = [hold.operator for hold in lock.expired_holds if hold.operator is not None]
    expired = [text % {"name": hold.by, "until": time_text(hold.until)} for hold in holds]
    if not lock.holders:
        return [*([_("The lock is being handed over to the first waiter.")] if lock.waiting else []), *expired]
    texts = [_held_by(lock), *expired]
    if lock.waiting:
        texts.append(waits_text(lock.waiting))
    if lock.lasts:
        texts.append(str(LASTING_TEXTS[lock.lasts]))
    if lock.own_limits:
        texts.append(different_limits(lock))
    return texts


def keys_text(keys: Sequence[str], most: int) -> str:
    """Return the first keys, `most` of them, and how many more there are."""
    text, more = ", ".join(key_text(key, 200) for key in keys[:most]), len(keys) - most
    return _("%(keys)s and %(count)d more") % {"keys": text, "count": more} if more > 0 else text


def waits_text(count: int) -> str:
    """Return how many wait."""
    return ngettext("%(count)d caller waits.", "%(count)d callers wait.", count) % {"count": count}


def different_limits(lock: LockInfo) -> str:
    """Return that the processes use different limits for a semaphore."""
    text = _("Its holders and waiters have different limits in their code (%(limits)s). Set one for all.")
    return text % {"limits": ", ".join(map(str, lock.own_limits))}


def request_text(request: ReleaseRequest) -> str:
    """Return who has asked for a release, why and when."""
    try:
        at = f" ({time_text(iso_time(f'{request.at[:19]}+00:00'))})"
    except ValueError:  # empty, or of another client
        at = ""
    return clean(f"{request}{at}")


def cycle_text(cycle: Sequence[Wait]) -> str:
    """Return a deadlock in one line."""
    text = _("%(who)s holds %(holds)s and waits for %(waits)s")
    waits = (
        {"who": clean(wait.who), "holds": key_text(wait.holds), "waits": key_text(wait.waits_for)} for wait in cycle
    )
    return "; ".join(text % values for values in waits)


def hold_commands(key: str, holder: ScannedContender) -> list[str]:
    """Return the commands by which an operator can end a hold, the mildest first. The reason is to be filled in."""
    names = ["end-hold"] if holder.operator else ["request-release", "break"] if holder.can_be_asked else ["break"]
    return [command(name, key, token=holder.token, reason="") for name in names]


def operator_text(hold: OperatorHold) -> str:
    """Return who holds a lock as an operator, until when and why."""
    text = _("%(name)s holds it until %(until)s: %(reason)s")
    return text % {"name": hold.by, "until": time_text(hold.until), "reason": hold.reason}


def _held_by(lock: LockInfo) -> str:
    first, count = lock.holders[0], len(lock.holders)
    if first.operator is not None:
        return operator_text(first.operator)
    values: dict[str, Any] = {"place": process_of(first), "work": use_of(first), "age": span(first)}
    values |= {"count": count, "limit": lock.limit}
    if lock.holders_at_most:
        return _("Permits in use: at most %(count)d of %(limit)d, as the limit was changed.") % values
    if lock.limit is not None and first.kind == "semaphore":
        return _("Permits in use: %(count)d of %(limit)d. %(place)s has held one the longest: %(age)s.") % values
    if count > 1:
        return _("%(count)d readers. %(place)s has read the longest: %(age)s.") % values
    if lock.idle_for is not None:
        return _("%(place)s: %(work)s. Another process that waits gets it at once.") % values
    if not values["work"]:
        return _("%(place)s has held it for %(age)s.") % values
    return _("%(place)s has held it for %(age)s, for %(work)s.") % values


def time_text(time: datetime) -> str:
    """Return a time in the project's present time zone, with its name; without USE_TZ, in that of the system."""
    with suppress(OverflowError):  # at the end of the year 9999, as znodes of others may say
        time = time.astimezone(get_current_timezone())
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"
