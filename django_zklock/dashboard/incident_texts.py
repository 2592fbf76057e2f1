"""The texts of an incident: title, explanation, remedy and commands; in the language of the page, or in English."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock.dashboard.formatting import clean, duration, host_and_pid, process_of, span, time_text, work_of

if TYPE_CHECKING:
    from django_zklock.inspection import Incident, ScannedContender

MAX_NAMED: Final = 3
"""Keys that a text names, and holders that a list of commands names."""


def title(incident: Incident) -> str:
    """Return the cause in one line."""
    values: dict[str, Any] = {"keys": _keys(incident), "count": len(incident.keys), "lost": incident.count}
    values |= {"process": host_and_pid(incident.host, incident.pid), "host": clean(incident.host)}
    if incident.holders:
        holder = incident.holders[0][1]
        values |= {"holder": process_of(holder), "time": span(holder)}
    text = {
        "quorum": _("ZooKeeper has no quorum, so no lock can be granted"),
        "deadlock": _("Deadlock: %(keys)s"),
        "counter": _("Counter used up: %(keys)s"),
        "unreadable": _("Unknown entry in the queue: %(keys)s"),
        "host": _("%(process)s hangs, with %(count)d locks"),
        "foreign": _("Another client blocks %(keys)s"),
        "hung": _("%(holder)s has held %(keys)s for %(time)s"),
        "operator": _("Forgotten hold? %(keys)s, %(holder)s"),
        "ended": _("%(process)s ended with %(count)d locks"),
        "flapping": _("%(host)s has lost %(lost)d locks in the last 30 minutes"),
    }[incident.cause]
    return text % values


def blocked(incident: Incident) -> str:
    """Return how many wait because of the incident; empty if nobody does."""
    text = ngettext("%(count)d waits.", "%(count)d wait.", incident.blocked)
    return text % {"count": incident.blocked} if incident.blocked else ""


def explanation(incident: Incident) -> str:
    """Return why this is trouble. Our own text is never cut."""
    holder = incident.holders[0][1] if incident.holders else None
    work = work_of(holder) if holder is not None else ""
    if incident.cause in {"quorum", "unreadable", "counter"}:
        return clean(incident.detail, 2000)
    if incident.cause == "deadlock":
        named = "; ".join(
            f"{clean(key, 200)}: {process_of(holder)} {work_of(holder)}" for key, holder in incident.holders[:4]
        )
        return f"{_('Each waits for a lock that another one holds. Nothing ends it by itself.')} {named}"
    if incident.cause == "operator" and holder is not None and holder.operator is not None:
        text = _("%(name)s holds it until %(until)s: %(reason)s")
        return text % {"name": holder.operator.by, "until": time_text(holder.operator.until), "reason": work}
    texts = {
        "host": _(
            "It has held them for up to %(time)s while others wait. Its process or host is silent, or its work hangs."
        ),
        "foreign": _("This client cannot be asked to release the lock."),
        "hung": _("It runs %(work)s, far longer than usual, while others wait.") if work else _("Others wait for it."),
        "ended": _("It was killed, or its host is down. Its locks are free again, and its work may be incomplete."),
        "flapping": _("Its connections to ZooKeeper break, or its processes pause."),
    }
    return texts[incident.cause] % {"time": duration(incident.age or 0.0), "work": work}


def remedy(incident: Incident) -> str:
    """Return what an operator can do."""
    return {
        "quorum": _("Start the servers that are down, or repair the network. Locks then go on by themselves."),
        "deadlock": _("Break one of them: its work is stopped, and the others continue."),
        "counter": _(
            "Let the contenders finish. Then delete the empty directory, so that ZooKeeper counts from 0 again."
        ),
        "unreadable": _("Find the program that made the entry, give it another path, and delete the entry."),
        "host": _(
            "Look at the host. If it is dead, its locks are free when its session ends. If it hangs, break them."
        ),
        "foreign": _("End its program, or break the lock."),
        "hung": _("Too long? 1. Request release (work finishes). 2. Break (work is stopped)."),
        "operator": _("If the reason is gone, end this hold."),
        "ended": _("Look at the host, and at its log for the reason. Check the work of these locks."),
        "flapping": _("Look at its network, its load and its memory."),
    }[incident.cause]


def commands(incident: Incident) -> list[str]:
    """Return commands to paste into a shell."""
    if incident.cause == "quorum":
        return ["manage.py zklock doctor"]
    if incident.cause in {"counter", "unreadable"}:
        return [f"manage.py zklock show {shlex.quote(incident.keys[0])}"]
    named = [_command(incident, key, holder) for key, holder in incident.holders[:MAX_NAMED]]
    if incident.cause == "hung":
        asked = [(key, holder) for key, holder in incident.holders[:1] if holder.can_be_asked]
        named = [f"manage.py zklock request-release {shlex.quote(key)} --reason '...'" for key, holder in asked] + named
    more = len(incident.holders) - MAX_NAMED
    return [*named, f"# and {more} more: manage.py zklock list --json"] if more > 0 else named


def _command(incident: Incident, key: str, holder: ScannedContender) -> str:
    if incident.cause == "operator":
        return f"manage.py zklock end-hold {shlex.quote(key)}"
    return f"manage.py zklock break {shlex.quote(key)} --token {holder.token} --reason '...'"


def _keys(incident: Incident) -> str:
    more = len(incident.keys) - MAX_NAMED
    named = ", ".join(clean(key, 200) for key in incident.keys[:MAX_NAMED])
    return _("%(keys)s and %(count)d more") % {"keys": named, "count": more} if more > 0 else named
