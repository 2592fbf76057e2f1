"""Show one lock: its state, its holders and waiters, its last grants, and the next command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from django_zklock import inspection, operations
from django_zklock.dashboard.detail import Detail, Row, read_details
from django_zklock.inspection import LockInfo
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import (
    add_answer,
    add_name,
    key_of,
)
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line, write_table
from django_zklock.report import formatting, past
from django_zklock.report.formatting import duration, time_text

HEAD: Final = ("", "who", "wants", "runs", "since", "for", "token", "thread", "session")
GRANTS: Final = ("last grants", "to", "waited", "held", "what")
GRANT: Final = ("at", "host", "pid", "work", "token", "waited", "held", "outcome", "reason")
MAX_GRANTS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    (shown,) = read_details([key_of(options)], reply_timeout=options.reply_timeout)
    lock, grants = shown.info, past.ask("last_grants", shown.info.key, MAX_GRANTS) or ()
    is_free = lock.state == "free"
    if is_free:
        lock = replace(lock, limit_set=operations.limit_of(lock.key, reply_timeout=options.reply_timeout))
    if options.json:
        write_json(out, {**to_json(lock), **_more_json(shown, grants)})
    else:
        if not is_free:
            _write_queue(out, shown)
        _write_grants(out, grants)
        for line in shown.next_commands:
            write_line(out, f"Next: {line}")
    if lock.is_unread:
        raise failure("It is not known who holds this lock.", ExitCode.PARTIAL)
    if is_free:
        limit = f" {formatting.limit_text(lock.limit_set)}." if lock.limit_set else ""
        raise failure(f"The lock {formatting.key_text(lock.key)!r} is free.{limit}", ExitCode.NO_HOLDER)


def _more_json(shown: Detail, grants: Sequence[Any]) -> dict[str, Any]:
    return {
        "reasons": shown.reasons,
        "advice": shown.advice or None,
        "chain": to_json(shown.chain),
        "grants": [to_json(grant, GRANT) for grant in grants],
        "commands": shown.next_commands,
    }


def _write_queue(out: Output, shown: Detail) -> None:
    for text in filter(None, _texts(shown)):
        write_line(out, text)
    rows = [_cells(row) for row in shown.rows]
    if rows:
        write_table(out, HEAD, rows, cut=("who", "runs"))


def _write_grants(out: Output, grants: Sequence[Any]) -> None:
    rows = [
        (time_text(grant.at), grant.who, duration(grant.waited), duration(grant.held), grant.outcome)
        for grant in grants
    ]
    if rows:
        write_table(out, GRANTS, rows, cut=("to", "what"))


def _texts(shown: Detail) -> Iterator[str]:
    """Yield the lines about the state of a lock. Some may be empty."""
    lock = shown.info
    yield f"{formatting.key_text(lock.key)} ({formatting.kind_text(lock)}) at {lock.path}"
    yield from (f"{shown.state_label}.", shown.limit_set, *shown.reasons)
    yield f"{'DEADLOCK: ' if lock.deadlocked else ''}{formatting.cycle_text(shown.chain)}"
    yield shown.advice
    for holder in lock.holders:
        if holder.release_request is not None:
            request = formatting.request_text(holder.release_request)
            yield f"{formatting.process_of(holder)} was asked to release by {request}"
    for contender in (*lock.holders, *lock.waiters)[:1]:
        if contender.operator is None:
            yield ", ".join(f"{name} {text}" for name, text in contender.about.items())
    if shown.hidden:
        yield f"{len(lock.waiters)} of {lock.waiting} waiters are shown"


def read_lock(options: argparse.Namespace) -> LockInfo:
    """Return the lock that was given, free or not."""
    key = key_of(options)
    return inspection.look_at(key, reply_timeout=options.reply_timeout) or LockInfo(key=key, path="")


def _cells(row: Row) -> tuple[str, ...]:
    contender, role = row.info, str(row.number)
    if not contender.waits_behind:
        role = "expired" if not contender.holds else "holds" if contender.idle_for is None else "keeps"
    return (
        role,
        formatting.process_of(contender),
        contender.kind,
        formatting.use_of(contender),
        formatting.time_text(contender.since),
        formatting.span(contender),
        str(contender.token),
        contender.thread,
        contender.session or "none",
    )
