"""Tell in a few lines how ZooKeeper and the locks are."""

from __future__ import annotations

import argparse
from typing import Any

from django_zklock import inspection
from django_zklock.inspection import Snapshot
from django_zklock.management.answering import add_answer
from django_zklock.management.durations import shown
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.picturing import circle, snapshot_json
from django_zklock.management.printing import Output, clean, write_json
from django_zklock.queue.printable import session_hex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_answer(parser)


def run(out: Output, *, patience: float, json: bool, **options: Any) -> None:
    """Tell."""
    with told():
        found = inspection.snapshot(patience=patience, max_age=0, max_waiters=0)
    held = sum(1 for lock in found.locks if lock.holders)
    contended = sum(1 for lock in found.locks if lock.contended)
    waiting = sum(lock.waiting for lock in found.locks)
    longest = max((lock.longest_wait or 0.0 for lock in found.locks), default=0.0)
    shared = {
        "read_write": sum(1 for lock in found.locks if lock.kind == "read-write"),
        "semaphores": sum(1 for lock in found.locks if lock.kind == "semaphore"),
        "limits_set": sum(1 for lock in found.locks if lock.limit_set is not None),
    }
    if json:
        counts = {"held": held, "contended": contended, "waiting": waiting, "longest_wait": longest}
        write_json(out, {**snapshot_json(found), **counts, **shared})
    else:
        connection = found.connection
        where = f" to {clean(connection.server)}" if connection.server else ""
        hosts = clean(", ".join(connection.hosts), 1000)
        out.write(f"{clean(str(connection.state)).upper()}{where}, one of {hosts}\n")
        if connection.session_id:
            out.write(f"session {session_hex(connection.session_id)}, timeout {connection.timeout:g} s\n")
        if connection.state != "connected" and not found.locks:
            out.write("number of locks unknown: not connected\n")
        else:
            locks = f"{held} lock{'' if held == 1 else 's'} held"
            out.write(f"{locks}, {contended} contended, {waiting} waiting, longest wait {shown(longest)}\n")
        if any(shared.values()):
            out.write(
                f"among them read-write locks: {shared['read_write']}, semaphores: {shared['semaphores']} "
                f"(with a limit that was set: {shared['limits_set']})\n"
            )
        if found.total > len(found.locks):
            out.write(f"(counted: {len(found.locks)} of {found.total} locks)\n")
        write_oddities(out, found)
    end(found)


def write_oddities(out: Output, found: Snapshot) -> None:
    """Write what should not be."""
    for cycle in found.cycles:
        out.write(f"DEADLOCK: {clean(circle(cycle), 1000)}\n")
    for note in found.notes:
        out.write(f"note: {clean(note, 1000)}\n")


def end(found: Snapshot) -> None:
    """Fail if ZooKeeper did not tell all."""
    if found.problem:
        raise failure(found.problem, Exit.AWAY)
