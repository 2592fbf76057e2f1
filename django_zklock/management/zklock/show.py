"""
Show one lock: its state, its holders and waiters, its last grants, and the next command.

Examples:
  zklock show orders/4711
  zklock show 'orders/{pk}' --field pk=4711 --json
"""

from __future__ import annotations

import argparse
import difflib
from dataclasses import asdict
from typing import Any, Final

from django.core.management.base import CommandError

from django_zklock import inspection, operations
from django_zklock.dashboard import past
from django_zklock.dashboard.detail import Detail, read_detail
from django_zklock.dashboard.formatting import (
    commands,
    cycle_text,
    kind_text,
    limit_text,
    process_of,
    span,
    time_text,
    use_of,
)
from django_zklock.inspection import LockInfo, ScannedContender
from django_zklock.inspection.serialize import limit_json, lock_json
from django_zklock.management.arguments import add_answer, add_name, entries_below, key_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line, write_table
from django_zklock.queue.escaping import session_hex

HEAD: Final = ("", "who", "wants", "runs", "since", "for", "token", "thread", "session")
MAX_GRANTS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Show the lock."""
    shown = read_detail(key_of(options), reply_timeout=options.reply_timeout)
    lock = shown.info
    is_free = lock.state() == "free"
    limit = operations.limit_of(lock.key, reply_timeout=options.reply_timeout) if is_free else lock.limit_set
    if options.json:
        write_json(out, {**_json(shown), "limit_set": limit_json(limit)})
    elif not is_free:
        _write(out, shown)
    if is_free:
        limit_set = "" if limit is None else f" {limit_text(limit)}."
        raise no_holder(lock.key, f"The lock {lock.key!r} is free.{limit_set}", options)


def read_lock(options: argparse.Namespace) -> tuple[str, LockInfo | None]:
    """Return the key that was given, and its lock; None if the lock is free."""
    key = key_of(options)
    return key, inspection.look_at(key, reply_timeout=options.reply_timeout)


def no_holder(key: str, message: str, options: argparse.Namespace) -> CommandError:
    """Return the error that a lock has no holder, with a hint at an entry of `LOCKS` or a similar key that is held."""
    locks = inspection.snapshot(reply_timeout=options.reply_timeout, max_waiters=1).locks
    close = difflib.get_close_matches(key, [lock.key for lock in locks if lock.key != key], n=1, cutoff=0.8)
    hint = entries_below(key) or (f"Did you mean {close[0]!r}?" if close else "")
    return failure(f"{message} {hint}".rstrip(), ExitCode.NO_HOLDER)


def _json(shown: Detail) -> dict[str, Any]:
    return {
        **lock_json(shown.info),
        "reasons": shown.reasons,
        "advice": shown.advice,
        "chain": [asdict(wait) for wait in shown.chain],
        "deadlock": shown.is_cycle,
        "grants": [{**asdict(grant), "at": grant.at.isoformat()} for grant in _grants(shown.info)],
        "commands": commands(shown.info),
    }


def _write(out: Output, shown: Detail) -> None:
    lock = shown.info
    write_line(out, f"{lock.key} ({kind_text(lock)}) at {lock.path}")
    chain = f"{'DEADLOCK: ' if shown.is_cycle else ''}{cycle_text(shown.chain)}"
    for text in (f"{shown.state_label}.", shown.limit_set, *shown.reasons, chain, shown.advice):
        if text:
            write_line(out, text)
    rows = [("expired", *_cells(hold)) for hold in lock.expired_holds]
    rows += [("holds" if holder.idle_for is None else "keeps", *_cells(holder)) for holder in lock.holders]
    rows += [
        (f"{number}, may hold" if waiter.may_hold else str(number), *_cells(waiter))
        for number, waiter in enumerate(lock.waiters, start=1)
    ]
    if rows:
        write_table(out, HEAD, rows, numbers=("for", "token"))
        if shown.hidden:
            write_line(out, f"{len(lock.waiters)} of {lock.waiting} waiters are shown")
    _write_more(out, shown)


def _write_more(out: Output, shown: Detail) -> None:
    """Write the release requests, the items of the work, the last grants and the next commands."""
    lock = shown.info
    for holder in lock.holders:
        if holder.release_request is not None:
            write_line(out, f"{process_of(holder)} was asked to release by {holder.release_request}")
    for contender in (*lock.holders, *lock.waiters)[:1]:
        if contender.about and contender.operator is None:
            write_line(out, ", ".join(f"{name} {text}" for name, text in contender.about.items()))
    grants = [(time_text(grant.at), grant.by, grant.waited, grant.lasted, grant.what) for grant in _grants(lock)]
    if grants:
        write_table(out, ("last grants", "to", "waited", "held", ""), grants, numbers=("waited", "held"))
    for command in (*commands(lock), *(shown.commands if lock.problem else ())):
        write_line(out, f"Next: {command}")


def _grants(lock: LockInfo) -> list[past.PastEvent]:
    """Return the last grants, as `contrib.events` has recorded them."""
    history = past.past_of(lock)
    return list(history.grants[:MAX_GRANTS]) if history else []


def _cells(contender: ScannedContender) -> tuple[str, ...]:
    return (
        process_of(contender),
        contender.kind,
        use_of(contender),
        f"{contender.since:%Y-%m-%d %H:%M:%S}",
        span(contender),
        str(contender.token),
        contender.thread,
        session_hex(contender.session_id) or "none",
    )
