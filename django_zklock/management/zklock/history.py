"""Show who held which lock, how that ended, and what operators did; newest first."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Final

from django.apps import apps
from django.db import Error
from django.utils.timezone import now

from django_zklock.dashboard import past
from django_zklock.management.arguments import add_answer, seconds
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, write_json, write_line, write_table

HEAD: Final = ("when (UTC)", "lock", "what", "by", "work", "how long", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "key", nargs="?", default="", metavar="KEY", help="a key as `list` shows it (default: all locks)"
    )
    parser.add_argument(
        "--what", choices=[what.replace(" ", "-") for what in past.WHAT], default="", help="only rows of this kind"
    )
    parser.add_argument("--who", default="", metavar="TEXT", help="only operators or works whose name has this text")
    parser.add_argument("--host", default="", help="only this host")
    parser.add_argument("--since", type=seconds, metavar="TIME", help="only the last TIME, such as 2h")
    parser.add_argument("--limit", type=_count, default=50, metavar="N", help="at most N rows (default: %(default)s)")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Show the rows."""
    if past.source is None and not apps.is_installed("django.contrib.admin"):
        raise failure("Nothing is recorded. Add django_zklock.contrib.events to INSTALLED_APPS, and run migrate.")
    since = None
    if options.since is not None:
        since = now() - timedelta(seconds=options.since)
    what = options.what.replace("-", " ")
    wanted = past.Filter(key=options.key, what=what, who=options.who, host=options.host, since=since)
    try:
        events, more = past.page(wanted, options.limit, reply_timeout=options.reply_timeout)
    except Error as error:
        raise failure(f"The tables of the history cannot be read: {error}. Run manage.py migrate.") from error
    if past.source is None:
        print(past.scope(), file=sys.stderr)
    if options.json:
        rows = [{**asdict(event), "at": _utc(event.at).isoformat()} for event in events]
        write_json(out, {"events": rows, "more": more is not None})
        return
    if events:
        write_table(out, HEAD, [_row(event) for event in events], numbers=("how long",))
    write_line(out, f"{len(events)} rows{'; there are more: see --limit and --since' if more is not None else ''}")


def _row(event: past.PastEvent) -> tuple[str, ...]:
    by = f"{event.by} ({event.via})" if event.via else event.by
    return (f"{_utc(event.at):%Y-%m-%d %H:%M:%S}", event.key, event.what, by, event.work, event.lasted, event.reason)


def _utc(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp(), timezone.utc)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return int(text)
