"""Show the holders and waiters of one lock."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

from django_zklock import conf, inspection, operations
from django_zklock.dashboard.formatting import kind_text, limit_text, process_of, reasons, span, use_of
from django_zklock.inspection import LockInfo, ScannedContender
from django_zklock.inspection.serialize import lock_json
from django_zklock.management.arguments import add_answer, add_name, entries_below, key_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line, write_table
from django_zklock.queue import names
from django_zklock.queue.escaping import session_hex

HEAD: Final = ("", "who", "wants", "runs", "since", "for", "token", "thread", "session")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Show the lock."""
    key, lock = read_lock(options)
    if lock is None:
        _show_free(out, key, options)
    if options.json:
        write_json(out, lock_json(lock))
        return
    write_line(out, f"{lock.key} ({kind_text(lock)}) at {lock.path}")
    for text in ([limit_text(lock.limit_set)] if lock.limit_set is not None else []) + reasons(lock):
        write_line(out, text)
    rows = [("expired", *_cells(hold)) for hold in lock.expired_holds]
    rows += [("holds" if holder.idle_for is None else "keeps", *_cells(holder)) for holder in lock.holders]
    rows += [
        (f"{number}, may hold" if waiter.may_hold else str(number), *_cells(waiter))
        for number, waiter in enumerate(lock.waiters, start=1)
    ]
    write_table(out, HEAD, rows, numbers=("for", "token"))
    if lock.waiting > len(lock.waiters):
        write_line(out, f"{len(lock.waiters)} of {lock.waiting} waiters are shown")
    for holder in lock.holders:
        if holder.release_request is not None:
            write_line(out, f"{process_of(holder)} was asked to release by {holder.release_request}")
    for contender in (*lock.holders, *lock.waiters)[:1]:
        if contender.about:
            write_line(out, ", ".join(f"{name} {text}" for name, text in contender.about.items()))


def read_lock(options: argparse.Namespace) -> tuple[str, LockInfo | None]:
    """Return the key that was given, and its lock; None if the lock is free."""
    key = key_of(options)
    return key, inspection.look_at(key, reply_timeout=options.reply_timeout)


def _show_free(out: Output, key: str, options: argparse.Namespace) -> NoReturn:
    """Say that the lock is free. A limit can be set all the same."""
    limit = operations.limit_of(key, reply_timeout=options.reply_timeout)
    if options.json:
        write_json(out, lock_json(LockInfo(key=key, path=names.path(conf.current().base, key), limit_set=limit)))
    limit_set = "" if limit is None else f" {limit_text(limit)}."
    message = f"The lock {key!r} is free.{limit_set} {entries_below(key)}"
    raise failure(message.rstrip(), ExitCode.NO_HOLDER)


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
