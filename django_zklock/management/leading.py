"""Show who leads, once or at each change."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from django_zklock import conf
from django_zklock.locks import looking
from django_zklock.locks.election import observer
from django_zklock.locks.election.observer import Candidate, LeaderWatch
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.printing import Output, clean, write_json
from django_zklock.queue import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("--watch", action="store_true", help="go on, and show each change, until Ctrl-C")
    add_answer(parser, json="write JSON; with --watch, a line for each change")


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    watch: bool,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """Show."""
    with told():
        key = naming.key_of(name, fields)
        parent = names.path(conf.current().base, key)
        found = observer.candidates(key, parent, patience=patience)  # first of all: does ZooKeeper answer?
    if watch:
        with told(), contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            for leader in LeaderWatch(key, parent).follow(None):
                _write_change(out, key, leader, json=json)
        return
    if json:
        leader_json = candidate_json(found[0]) if found else None
        write_json(out, {"key": key, "leader": leader_json, "standing_by": max(0, len(found) - 1)})
    if not found:
        raise failure(f"Nobody leads {key}.", Exit.FREE)
    if not json:
        out.write(f"{_line(found[0])}\n")
        more = " or more" if len(found) == looking.MOST_READ else ""
        out.write(f"{len(found) - 1}{more} stand by\n")


def _write_change(out: Output, key: str, leader: Candidate | None, *, json: bool) -> None:
    now = datetime.now(timezone.utc)
    if json:
        found = None if leader is None else candidate_json(leader)
        write_json(out, {"key": key, "leader": found, "at": now}, lines=True)
    else:
        out.write(f"{now:%Y-%m-%d %H:%M:%S} UTC  {'nobody' if leader is None else _line(leader)}\n")
        out.flush()


def _line(leader: Candidate) -> str:
    came = f"in the queue since {leader.since:%Y-%m-%d %H:%M:%S} UTC, token {leader.token}"
    return f"{clean(str(leader), 1000)}, {came}"


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate for JSON."""
    return {
        "client": candidate.client,
        "what": candidate.what,
        "host": candidate.host,
        "pid": candidate.pid,
        "token": str(candidate.token),
        "since": candidate.since,
        "operator": candidate.operator or None,
        "path": candidate.path,
    }
