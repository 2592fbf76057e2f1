"""Show the leader of an election, once or at each change."""

from __future__ import annotations

import argparse
import contextlib
from datetime import datetime, timezone

from django_zklock import conf
from django_zklock.inspection.serialize import contender_json
from django_zklock.locks import queue_reader
from django_zklock.locks.election.observer import LeaderWatch
from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.management.arguments import add_answer, add_name, key_of
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import Output, write_json, write_line
from django_zklock.queue import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    parser.add_argument("--watch", action="store_true", help="show each change, until Ctrl-C")
    add_answer(parser, json="write JSON; with --watch, one line for each change")


def run(out: Output, options: argparse.Namespace) -> None:
    """Show the leader."""
    with errors_as_exit_codes():
        key = key_of(options)
        parent = names.path(conf.current().base, key)
        # Also with --watch: it would write nothing while ZooKeeper is not available.
        found = queue_reader.contenders(key, parent, reply_timeout=options.reply_timeout)
    if options.watch:
        with errors_as_exit_codes(), contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            for leader in LeaderWatch(key, parent).follow(None):
                _write_change(out, key, leader, json=options.json)
        return
    if options.json:
        leader_json = contender_json(found[0]) if found else None
        write_json(out, {"key": key, "leader": leader_json, "standing_by": max(0, len(found) - 1)})
    if not found:
        raise failure(f"{key!r} has no leader.", ExitCode.FREE)
    if not options.json:
        write_line(out, _line(found[0]))
        more = " or more" if len(found) == queue_reader.MOST_READ else ""
        write_line(out, f"{len(found) - 1}{more} stand by")


def _write_change(out: Output, key: str, leader: ContenderInfo | None, *, json: bool) -> None:
    now = datetime.now(timezone.utc)
    if json:
        leader_json = None if leader is None else contender_json(leader)
        write_json(out, {"key": key, "leader": leader_json, "at": now.isoformat()}, lines=True)
    else:
        write_line(out, f"{now:%Y-%m-%d %H:%M:%S} UTC  {'no leader' if leader is None else _line(leader)}")


def _line(leader: ContenderInfo) -> str:
    return f"{leader}, in the queue since {leader.came:%Y-%m-%d %H:%M:%S} UTC, token {leader.token}"
