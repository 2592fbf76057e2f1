"""
List the locks that are held or waited for, those in trouble first.

Examples:
  zklock list 'orders/*' --sort held --limit 20
  zklock list --host worker-7 --state contended --watch 5s
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import time
from typing import Any, Final

from django_zklock import inspection
from django_zklock.dashboard.formatting import STATE_LABELS, duration, kind_text, process_of, reasons, span, use_of
from django_zklock.inspection import LockInfo, Snapshot
from django_zklock.inspection.serialize import snapshot_json
from django_zklock.management.arguments import add_answer, seconds
from django_zklock.management.output import Output, is_terminal, write_json, write_line, write_table
from django_zklock.management.zklock.status import UNKNOWN, fail_if_incomplete, write_findings

CLEAR: Final = "\x1b[H\x1b[J"  # to the top of the terminal, and nothing below
HEAD: Final = ("lock", "state", "kind", "holder", "runs", "held", "waiting", "longest wait", "token")
NUMBERS: Final = ("held", "waiting", "longest wait", "token")
STATES: Final = ("deadlock", *(state for state in STATE_LABELS if state != "free"))
_ORDERS: Final[dict[str, Any]] = {
    "held": lambda lock: -(lock.held_for or 0.0),
    "key": lambda lock: lock.key,
    "waiting": lambda lock: -lock.waiting,
    "wait": lambda lock: -(lock.longest_wait or 0.0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("pattern", nargs="?", default="*", help="only keys like this, such as 'orders/*'")
    parser.add_argument("--contended", action="store_true", help="only locks with waiters")
    parser.add_argument("--longer-than", type=seconds, default=0.0, metavar="TIME", help="only locks held for longer")
    parser.add_argument("--host", help="only locks with a holder on this host")
    parser.add_argument("--state", choices=STATES, help="only locks in this state")
    parser.add_argument("--sort", choices=("trouble", *_ORDERS), default="trouble", help="(default: %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N")
    parser.add_argument("--keys", action="store_true", help="write only the keys")
    parser.add_argument(
        "--watch", nargs="?", type=seconds, const=2.0, metavar="TIME", help="again every 2 s, or TIME, until Ctrl-C"
    )
    add_answer(parser, json="write JSON; with --watch, one line for each scan")


def run(out: Output, options: argparse.Namespace) -> None:
    """List the locks once, or repeatedly."""
    with contextlib.suppress(*((KeyboardInterrupt, BrokenPipeError) if options.watch is not None else ())):
        while True:
            # A deadlock is seen by the first waiters.
            snapshot = inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0, max_waiters=1)
            if options.watch is not None and is_terminal(out) and not options.json:
                out.write(CLEAR)
            _write(out, snapshot, options)
            if options.watch is None:
                fail_if_incomplete(snapshot)
                return
            if snapshot.problem and not options.json:
                write_line(out, snapshot.problem)
            time.sleep(options.watch)


def _write(out: Output, snapshot: Snapshot, options: argparse.Namespace) -> None:
    locks = _selected(snapshot, options)
    if options.json:
        write_json(out, snapshot_json(snapshot, locks), lines=options.watch is not None)
    elif options.keys:
        for lock in locks:
            write_line(out, lock.key)
    elif snapshot.problem and not snapshot.locks:
        write_line(out, UNKNOWN)
    else:
        if locks:
            red, yellow = options.style.ERROR, options.style.WARNING
            colours = {"deadlock": red, "broken": red, "long": yellow, "operator": yellow}
            colours = {STATE_LABELS.get(name, name).lower(): colour for name, colour in colours.items()}
            rows = [_row(lock, _state(snapshot, lock)) for lock in locks]
            write_table(out, HEAD, rows, numbers=NUMBERS, colours=colours)
        for lock in locks:
            if lock.problem:
                write_line(out, f"{lock.key}: {reasons(lock)[0]}")
        total = f" of {snapshot.total}" if snapshot.total != len(locks) else ""
        age = f", as they were {snapshot.age:.0f} s ago" if snapshot.age > 1 else ""
        write_line(out, f"{len(locks)}{total} locks{age}")
        write_findings(out, snapshot)


def _selected(snapshot: Snapshot, options: argparse.Namespace) -> list[LockInfo]:
    locks = [
        lock
        for lock in snapshot.locks
        if fnmatch.fnmatchcase(lock.key, options.pattern)
        and (lock.contended or not options.contended)
        and (lock.held_longer_than(options.longer_than) or not options.longer_than)
        and (options.host is None or any(holder.host == options.host for holder in lock.holders))
        and options.state in (None, lock.state(), _state(snapshot, lock))
    ]
    if options.sort == "trouble":
        locks.sort(key=lambda lock: (lock.key in snapshot.deadlocked, lock.trouble), reverse=True)
    else:
        locks.sort(key=_ORDERS[options.sort])
    return locks[: options.limit]


def _state(snapshot: Snapshot, lock: LockInfo) -> str:
    return "deadlock" if lock.key in snapshot.deadlocked else lock.state()


def _row(lock: LockInfo, state: str) -> tuple[str, ...]:
    holder = lock.holders[0] if lock.holders else None
    more = f" +{len(lock.holders) - 1}" if len(lock.holders) > 1 else ""
    return (
        lock.key,
        str(STATE_LABELS.get(state, state)).lower(),
        kind_text(lock),
        f"{process_of(holder)}{more}" if holder else "",
        use_of(holder) if holder else "",
        "" if lock.held_for is None else span(lock.holders[0]),
        str(lock.waiting),
        "" if lock.longest_wait is None else duration(lock.longest_wait),
        str(holder.token) if holder else "",
    )
