"""List the locks that are held or waited for."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import time
from typing import Final

from django_zklock import inspection
from django_zklock.dashboard.formatting import duration, kind_text, process_of, reasons, span, use_of
from django_zklock.inspection import LockInfo, Snapshot
from django_zklock.inspection.serialize import snapshot_json
from django_zklock.management.arguments import add_answer, seconds
from django_zklock.management.output import Output, is_terminal, write_json, write_line, write_table
from django_zklock.management.zklock.status import fail_if_incomplete, write_findings

CLEAR: Final = "\x1b[H\x1b[J"  # to the top of the terminal, and nothing below
HEAD: Final = ("lock", "kind", "holder", "runs", "held", "waiting", "longest wait", "token")
NUMBERS: Final = ("held", "waiting", "longest wait", "token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("pattern", nargs="?", default="*", help="only keys like this, such as 'orders/*'")
    parser.add_argument("--contended", action="store_true", help="only locks with waiters")
    parser.add_argument("--longer-than", type=seconds, default=0.0, metavar="TIME", help="only locks held for longer")
    parser.add_argument(
        "--watch", nargs="?", type=seconds, const=2.0, metavar="TIME", help="again every 2 s, or TIME, until Ctrl-C"
    )
    add_answer(parser, json="write JSON; with --watch, one line for each scan")


def run(out: Output, options: argparse.Namespace) -> None:
    """List the locks once, or repeatedly."""
    snapshot = inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0, max_waiters=0)
    if options.watch is None:
        _write(out, snapshot, options)
        fail_if_incomplete(snapshot)
        return
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while True:
            if is_terminal(out) and not options.json:
                out.write(CLEAR)
            _write(out, snapshot, options)
            if snapshot.problem and not options.json:
                write_line(out, snapshot.problem)
            time.sleep(options.watch)
            snapshot = inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0, max_waiters=0)


def _write(out: Output, snapshot: Snapshot, options: argparse.Namespace) -> None:
    locks = [
        lock
        for lock in snapshot.locks
        if fnmatch.fnmatchcase(lock.key, options.pattern)
        and (lock.contended or not options.contended)
        and (lock.held_longer_than(options.longer_than) or not options.longer_than)
    ]
    if options.json:
        write_json(out, snapshot_json(snapshot, locks), lines=options.watch is not None)
        return
    if locks:
        write_table(out, HEAD, [_row(lock) for lock in locks], numbers=NUMBERS)
    total = f" of {snapshot.total}" if snapshot.total != len(locks) else ""
    age = f", as they were {snapshot.age:.0f} s ago" if snapshot.age > 1 else ""
    write_line(out, f"{len(locks)}{total} locks{age}")
    write_findings(out, snapshot)


def _row(lock: LockInfo) -> tuple[str, ...]:
    holder = lock.holders[0] if lock.holders else None
    more = f" +{len(lock.holders) - 1}" if len(lock.holders) > 1 else ""
    return (
        lock.key,
        kind_text(lock),
        f"{process_of(holder)}{more}" if holder else f"? {' '.join(reasons(lock))}",
        use_of(holder) if holder else "",
        "" if lock.held_for is None else span(lock.holders[0]),
        str(lock.waiting),
        "" if lock.longest_wait is None else duration(lock.longest_wait),
        str(holder.token) if holder else "",
    )
