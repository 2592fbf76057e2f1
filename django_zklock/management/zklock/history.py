"""Show who held which lock, how that ended, and what operators did; newest first."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.db import Error
from django.utils.timezone import now

from django_zklock.management.arguments import add_answer, add_wide, integer, seconds
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, count, width_of, write_json, write_line, write_table
from django_zklock.report import past
from django_zklock.report.formatting import duration, key_text, time_text

if TYPE_CHECKING:
    from django_zklock.contrib.events.history import PastEvent

KINDS: Final = ("actions", "held", "released", "lost", "timed-out", "deadlock", "stale")
HEAD: Final = ("when", "lock", "what", "by", "work", "how long", "reason")
CUT: Final = ("lock", "what", "by", "work", "reason")
BROAD: Final = 120  # columns; in fewer, a time has no year and no zone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", default="", help="a key as `list` shows it (default: all locks)")
    parser.add_argument("--what", choices=KINDS, default="", help="this kind")
    parser.add_argument("--who", default="", metavar="TEXT", help="part of a work, host or operator's name; or a pid")
    parser.add_argument("--host", default="", help="only this host")
    parser.add_argument("--since", type=seconds, metavar="TIME", help="only the last TIME, such as 2h")
    limit = "at most N rows (default: %(default)s)"
    parser.add_argument("--limit", type=integer(), default=50, metavar="N", help=limit)
    add_answer(parser)
    add_wide(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    wanted = {"key": options.key, "what": options.what.replace("-", " "), "who": options.who, "host": options.host}
    since = None if options.since is None else now() - timedelta(seconds=options.since)
    if past.source is None:
        raise failure("Nothing is recorded. Add django_zklock.contrib.events to INSTALLED_APPS, and run migrate.")
    ask = past.source.history.history
    try:
        events, older = ask(options.limit, reply_timeout=options.reply_timeout, since=since, **wanted)
    except Error as error:
        raise failure(f"The tables of the history cannot be read: {error}. Run manage.py migrate.") from error
    if options.json:
        write_json(out, {"events": [event.as_json() for event in events], "more": older is not None})
        return
    if events:
        width = width_of(out, wide=options.wide)
        rows = [_cells(event, width or BROAD) for event in events]
        write_table(out, HEAD, rows, numbers=("how long",), width=width, drop=("work",), cut=CUT)
    more = "; there are more: see --limit and --since" if older is not None else ""
    write_line(out, f"{count(len(events), 'row')}{more}")


def _cells(event: PastEvent, width: int) -> tuple[str, ...]:
    by = f"{event.who} ({event.via})" if event.via else event.who
    at = time_text(event.at)
    at = at if width >= BROAD else at[5:19]  # month to second
    return (at, key_text(event.key), event.what, by, event.work, duration(event.lasted), event.reason)
