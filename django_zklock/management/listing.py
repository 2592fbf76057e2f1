"""List the locks that somebody holds or waits for."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import time
from typing import Any

from django_zklock import inspection
from django_zklock.inspection import LockInfo, Snapshot
from django_zklock.management.answering import add_answer
from django_zklock.management.durations import seconds
from django_zklock.management.exits import told
from django_zklock.management.picturing import HEAD, NUMBERS, cells, lock_json, snapshot_json
from django_zklock.management.printing import Output, clean, is_terminal, write_json, write_table
from django_zklock.management.status import end, write_oddities

CLEAR = "\x1b[H\x1b[J"  # to the top of the terminal, and nothing below


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("pattern", nargs="?", default="*", help="only keys like this, as in 'orders/*'")
    parser.add_argument("--contended", action="store_true", help="only locks that somebody waits for")
    parser.add_argument("--longer-than", type=seconds, default=0.0, metavar="TIME", help="only locks held for longer")
    parser.add_argument(
        "--watch", nargs="?", type=seconds, const=2.0, metavar="TIME", help="again every 2 s, or TIME, until Ctrl-C"
    )
    add_answer(parser, json="write JSON; with --watch, a line for each look")


def run(out: Output, *, watch: float | None, patience: float, json: bool, **options: Any) -> None:
    """List, once or again and again."""
    if watch is None:
        found = _look(patience)
        _write(out, found, json=json, lines=False, **options)
        end(found)
        return
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while True:
            found = _look(patience)
            if is_terminal(out) and not json:
                out.write(CLEAR)
            _write(out, found, json=json, lines=True, **options)
            if found.problem and not json:
                out.write(f"{clean(found.problem, 1000)}\n")
            out.flush()
            time.sleep(watch)


def _look(patience: float) -> Snapshot:
    with told():
        return inspection.snapshot(patience=patience, max_age=0, max_waiters=0)


def _write(
    out: Output,
    found: Snapshot,
    *,
    pattern: str,
    contended: bool,
    longer_than: float,
    json: bool,
    lines: bool,
    **options: Any,
) -> None:
    def wanted(lock: LockInfo) -> bool:
        return (
            fnmatch.fnmatchcase(lock.key, pattern)
            and (lock.contended or not contended)
            and ((lock.held_for or 0.0) > longer_than or not longer_than)
        )

    locks = [lock for lock in found.locks if wanted(lock)]
    if json:
        write_json(out, {**snapshot_json(found), "locks": [lock_json(lock) for lock in locks]}, lines=lines)
        return
    if locks:
        write_table(out, HEAD, [cells(lock) for lock in locks], numbers=NUMBERS)
    of = f" of {found.total}" if found.total != len(locks) else ""
    when = f", as they were {found.age:.0f} s ago" if found.age > 1 else ""
    out.write(f"{len(locks)}{of} locks{when}\n")
    write_oddities(out, found)
