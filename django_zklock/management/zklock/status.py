"""Show a summary of the connection and the locks."""

from __future__ import annotations

import argparse

from django_zklock import inspection
from django_zklock.inspection import ConnectionInfo, Snapshot
from django_zklock.inspection.serialize import snapshot_json
from django_zklock.management.arguments import add_answer
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import Output, deadlock, duration, write_json, write_line
from django_zklock.queue.escaping import session_hex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Write the summary."""
    with errors_as_exit_codes():
        found = inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0, max_waiters=0)
    held = sum(lock.held_for is not None for lock in found.locks)
    idle = sum(lock.idle_for is not None for lock in found.locks)
    contended = sum(lock.contended for lock in found.locks)
    waiting = sum(lock.waiting for lock in found.locks)
    longest = max((lock.longest_wait or 0.0 for lock in found.locks), default=0.0)
    shared = {
        "read_write": sum(lock.kind == "read-write" for lock in found.locks),
        "semaphores": sum(lock.kind == "semaphore" for lock in found.locks),
        "limits_set": sum(lock.limit_set is not None for lock in found.locks),
    }
    if options.json:
        summary = snapshot_json(found)
        del summary["locks"]
        summary |= {"held": held, "idle": idle, "contended": contended, "waiting": waiting}
        summary |= {"longest_wait": longest, **shared}
        write_json(out, summary)
    else:
        _write_connection(out, found.connection)
        if found.connection.state != "connected" and not found.locks:
            write_line(out, "number of locks unknown: not connected")
        else:
            locks = f"{held} lock{'' if held == 1 else 's'} held"
            locks += f", {idle} kept for the next user" if idle else ""
            write_line(out, f"{locks}, {contended} contended, {waiting} waiting, longest wait {duration(longest)}")
        if any(shared.values()):
            semaphores = f"semaphores: {shared['semaphores']} (with a limit that was set: {shared['limits_set']})"
            write_line(out, f"among them read-write locks: {shared['read_write']}, {semaphores}")
        if found.total > len(found.locks):
            write_line(out, f"(counted: {len(found.locks)} of {found.total} locks)")
        write_notes(out, found)
    fail_if_incomplete(found)


def _write_connection(out: Output, connection: ConnectionInfo) -> None:
    server = f" to {connection.server}" if connection.server else ""
    write_line(out, f"{connection.state.upper()}{server}, one of {', '.join(connection.hosts)}")
    if connection.session_id:
        write_line(out, f"session {session_hex(connection.session_id)}, timeout {connection.timeout:g} s")


def write_notes(out: Output, found: Snapshot) -> None:
    """Write the deadlocks, and what the scan has skipped."""
    for cycle in found.cycles:
        write_line(out, f"DEADLOCK: {deadlock(cycle)}")
    for note in found.notes:
        write_line(out, f"note: {note}")


def fail_if_incomplete(found: Snapshot) -> None:
    """End with an exit code that says so if the snapshot is old or incomplete."""
    if found.problem:
        raise failure(found.problem, ExitCode.UNAVAILABLE)
