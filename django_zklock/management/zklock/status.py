"""Show a summary of the connection and the locks."""

from __future__ import annotations

import argparse
from typing import Final

from django_zklock import inspection
from django_zklock.core.queue.command_line import command
from django_zklock.core.queue.escaping import session_hex
from django_zklock.inspection import ConnectionInfo, Figures, Snapshot
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import add_answer
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, count, write_json, write_line
from django_zklock.report import verdict
from django_zklock.report.formatting import duration

UNKNOWN: Final = "number of locks unknown: not connected"
UNREAD: Final = "number of locks unknown: none could be read"
add_arguments = add_answer


def read_all(options: argparse.Namespace) -> Snapshot:
    """Return a snapshot of all locks. JSON has the first waiter of each."""
    return inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0, max_waiters=1)


def run(out: Output, options: argparse.Namespace) -> None:
    snapshot, _servers, seen = verdict.now(options.reply_timeout, max_age=0)
    figures = Figures.of(snapshot.locks)
    if options.json:
        counts = {"held": figures.held, "idle": figures.kept, "contended": figures.contended}
        waits = {"waiting": figures.waiting, "longest_wait": figures.longest_wait}
        summary = {name: value for name, value in to_json(snapshot).items() if name != "locks"}
        said = {"healthy": seen.healthy, "verdict": str(seen)}
        incidents = [incident.describe() for incident in seen.incidents]
        write_json(out, {**summary, **counts, **waits, **said, "incidents": incidents})
    else:
        if number := len(seen.incidents):
            needs = f"{count(number, 'incident')} need{'s' if number == 1 else ''} attention"
            write_line(out, f"{needs}: {command('doctor --incident')}")
        for incident in seen.incidents:
            write_line(out, f"- {incident.describe()['title']}")
        _write_connection(out, snapshot.connection)
        write_line(out, _summary(snapshot, figures))
        write_skipped(out, snapshot)
    fail_if_incomplete(snapshot)


def _write_connection(out: Output, connection: ConnectionInfo) -> None:
    server = f" to {connection.server}" if connection.server else ""
    write_line(out, f"{connection.state.upper()}{server}, one of {', '.join(connection.hosts)}")
    if connection.session_id:
        write_line(out, f"session {session_hex(connection.session_id)}, timeout {connection.timeout:g} s")


def _summary(snapshot: Snapshot, figures: Figures) -> str:
    """Return how many locks are held and waited for, as far as they were read."""
    if snapshot.problem and not snapshot.locks:
        return UNKNOWN
    if all(lock.is_unread for lock in snapshot.locks) and not snapshot.complete:
        return UNREAD
    kept = f", {figures.kept} kept for the next user" if figures.kept else ""
    wait = f", longest wait {duration(figures.longest_wait)}" if figures.longest_wait else ""
    held = f"{'' if snapshot.complete else 'at least '}{count(figures.held, 'lock')}"
    return f"{held} held{kept}, {figures.contended} contended, {figures.waiting} waiting{wait}"


def write_skipped(out: Output, snapshot: Snapshot) -> None:
    """Write what the scan has skipped."""
    if snapshot.total > len(snapshot.locks):
        write_line(out, f"read: {len(snapshot.locks)} of {snapshot.total} locks, those with the most waiters")
    for text in snapshot.skipped:
        write_line(out, f"skipped: {text}")


def fail_if_incomplete(snapshot: Snapshot) -> None:
    """End with an exit code that says so if the snapshot is old or incomplete."""
    if snapshot.problem:
        raise failure(snapshot.problem, ExitCode.UNAVAILABLE)
    if not snapshot.complete:
        raise failure("Not all locks were read.", ExitCode.PARTIAL)
