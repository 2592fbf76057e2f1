"""Show the leader of an election, once, or again when another one leads."""

from __future__ import annotations

import argparse
import contextlib
import time
from datetime import datetime, timezone

from django_zklock import conf
from django_zklock.core.execution import waiters
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection.info import to_json
from django_zklock.locks import queue_reader
from django_zklock.locks.election import read_leader
from django_zklock.management.arguments import add_answer, add_name, key_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line
from django_zklock.names import template as names
from django_zklock.report.formatting import time_text

WATCH_INTERVAL = 1.0  # seconds between two reads of the queue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("--watch", action="store_true", help="ask each second, and show each change, until Ctrl-C")
    add_answer(parser, json="write JSON; with --watch, one line for each change")


def run(out: Output, options: argparse.Namespace) -> None:
    key = key_of(options)
    parent = names.path(conf.current().base, key)
    # Also with --watch: it would write nothing while ZooKeeper is not available.
    queue = queue_reader.contenders(key, parent, reply_timeout=options.reply_timeout)
    if options.watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(out, key, parent, json=options.json)
        return
    leader, others = (queue[0], len(queue) - 1) if queue else (None, 0)
    if options.json:
        write_json(out, {"key": key, "leader": to_json(leader), "standing_by": others})
    if leader is None:
        raise failure(f"{key!r} has no leader.", ExitCode.NO_HOLDER)
    if not options.json:
        more = " or more" if len(queue) == queue_reader.MOST_READ else ""
        write_line(out, _line(leader))
        write_line(out, f"{others}{more} stand by")


def _watch(out: Output, key: str, parent: str, *, json: bool) -> None:
    """Show the leader, and each change. While ZooKeeper does not answer, nothing is shown."""
    shown: int | None = -1  # the token of the leader
    while True:
        with contextlib.suppress(ZooKeeperUnavailable):
            leader = waiters.run(read_leader(key, parent, waiters.ThreadWaiter()))
            token = None if leader is None else leader.token
            if token != shown:
                shown, now = token, datetime.now(timezone.utc)
                if json:
                    write_json(out, {"key": key, "leader": to_json(leader), "at": now.isoformat()}, lines=True)
                else:
                    write_line(out, f"{time_text(now)}  {_line(leader)}")
        time.sleep(WATCH_INTERVAL)


def _line(leader: ContenderInfo | None) -> str:
    if leader is None:
        return "no leader"
    return f"{leader}, in the queue since {time_text(leader.came)}, token {leader.token}"
