"""Show who held which lock, how that ended, and what operators did; newest first."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.forms.models import model_to_dict
from django.utils.timezone import now

from django_zklock.management.arguments import add_answer, integer, seconds
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, write_json, write_table
from django_zklock.report import past
from django_zklock.report.formatting import duration, host_and_pid, key_text, time_text

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Event

HEAD: Final = ("when", "lock", "what", "by", "work", "how long", "reason")
FILTERS: Final = {"key": "key", "what": "outcome", "host": "host"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", help="a key as `list` shows it (default: all locks)")
    parser.add_argument("--what", help="this outcome, such as lost or action")
    parser.add_argument("--host", help="only this host")
    parser.add_argument(
        "--since", type=seconds, default=86400.0, metavar="TIME", help="only the last TIME (default: 1d)"
    )
    parser.add_argument(
        "--limit", type=integer(), default=50, metavar="N", help="at most N rows (default: %(default)s)"
    )
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    if past.source is None:
        raise failure("Nothing is recorded. Add django_zklock.contrib.events to INSTALLED_APPS, and run migrate.")
    wanted = {field: value for name, field in FILTERS.items() if (value := getattr(options, name))}
    model = apps.get_model("zklock_events", "Event")
    rows = model.objects.filter(at__gte=now() - timedelta(seconds=options.since), **wanted).order_by("-at", "-pk")
    events = list(rows[: options.limit])
    if options.json:
        write_json(out, {"events": [as_json(event) for event in events]})
    else:
        write_table(out, HEAD, [_cells(event) for event in events])


def as_json(event: Event) -> dict[str, Any]:
    """Return the fields of a row; the time in ISO 8601."""
    return {**model_to_dict(event), "at": event.at.isoformat()}


def _cells(event: Event) -> tuple[str, ...]:
    who = event.by or host_and_pid(event.host, event.pid)
    spent = duration(event.waited if event.held is None else event.held)
    return (time_text(event.at), key_text(event.key), event.outcome, who, event.work, spent, event.reason)
