"""List the locks that are held or waited for, those in trouble first."""

from __future__ import annotations

import argparse
import fnmatch
from dataclasses import replace
from typing import Any, Final

from django_zklock import inspection
from django_zklock.inspection import LockInfo, Snapshot
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import add_answer, integer
from django_zklock.management.output import Output, count, write_json, write_line, write_table
from django_zklock.management.zklock.status import fail_if_incomplete, write_skipped
from django_zklock.report import formatting, verdict

HEAD: Final = ("lock", "state", "kind", "holder", "runs", "held", "waiting", "longest wait", "token")
CUT: Final = ("lock", "holder", "runs")
ORDERS: Final[dict[str, Any]] = {
    "trouble": lambda lock: lock.trouble,
    "held": lambda lock: lock.held_for or 0.0,
    "waiting": lambda lock: lock.waiting,
    "wait": lambda lock: lock.longest_wait or 0.0,
}
"""The greatest value comes first. The other order is that of the keys."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="only keys like this, such as 'orders/*'")
    parser.add_argument("--host", help="only locks with a holder on this host")
    parser.add_argument("--state", choices=[*formatting.STATE_LABELS][:-1], help="only locks in this state")
    parser.add_argument("--sort", choices=[*ORDERS, "key"], default="trouble", help="(default: %(default)s)")
    parser.add_argument("--limit", type=integer(), metavar="N", help="only the first N")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    snapshot = inspection.snapshot(reply_timeout=options.reply_timeout, max_age=0)
    incidents, _facts = verdict.by_key(snapshot)
    states = {lock.key: verdict.state_of(lock, incidents.get(lock.key)) for lock in snapshot.locks}
    locks = [lock for lock in snapshot.locks if _is_wanted(lock, states[lock.key], options)]
    if options.sort in ORDERS:
        locks.sort(key=ORDERS[options.sort], reverse=True)
    locks = locks[: options.limit]
    if options.json:
        write_json(out, to_json(replace(snapshot, locks=tuple(locks))))
    elif snapshot.problem and not snapshot.locks:
        write_line(out, "number of locks unknown: not connected")
    else:
        _write(out, options, snapshot, locks, states)
    fail_if_incomplete(snapshot)


def _write(
    out: Output, options: argparse.Namespace, snapshot: Snapshot, locks: list[LockInfo], states: dict[str, str]
) -> None:
    red, yellow = options.style.ERROR, options.style.WARNING
    colours = {"deadlocked": red, "unreadable": red, "blocked": red, "slow": yellow, "long": yellow, "operator": yellow}
    if locks:
        write_table(out, HEAD, [_row(lock, states[lock.key]) for lock in locks], colours=colours, cut=CUT)
    for lock in locks:
        if lock.problem or lock.expired_holds:
            write_line(out, f"{formatting.key_text(lock.key)}: {' '.join(formatting.reasons(lock))}")
    total = f"{len(locks)} of " if snapshot.total != len(locks) else ""
    write_line(out, f"{total}{count(snapshot.total, 'lock')}")
    write_skipped(out, snapshot)


def _is_wanted(lock: LockInfo, state: str, options: argparse.Namespace) -> bool:
    return (
        any(fnmatch.fnmatchcase(text, options.pattern) for text in (lock.key, formatting.key_text(lock.key)))
        and options.state in (None, state, *lock.states)
        and options.host in (None, *(holder.host for holder in lock.holders))
    )


def _row(lock: LockInfo, state: str) -> tuple[str, ...]:
    wait = formatting.duration(lock.longest_wait)
    shown = (formatting.key_text(lock.key), state, formatting.kind_text(lock))
    if not lock.holders:
        return (*shown, "", "", "", str(lock.waiting), wait, "")
    first, *others = lock.holders
    more = f" +{len(others)}" if others else ""
    held = "" if lock.held_for is None else formatting.span(first)
    who, work = f"{formatting.process_of(first)}{more}", formatting.use_of(first)
    return (*shown, who, work, held, str(lock.waiting), wait, str(first.token))
