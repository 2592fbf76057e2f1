"""Show the holders and waiters of one lock."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

from django_zklock import inspection, operations
from django_zklock.inspection import LockInfo, ScannedContender
from django_zklock.inspection.serialize import limit_json, lock_json
from django_zklock.management.arguments import add_answer, add_name, entries_below, key_of
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import (
    Output,
    different_limits,
    duration,
    kind,
    limit_text,
    over,
    process_of,
    work_of,
    write_json,
    write_line,
    write_table,
)
from django_zklock.queue.escaping import session_hex

HEAD: Final = ("", "who", "wants", "runs", "since", "age", "token", "thread", "session")


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
    permits = f", {kind(lock)} permits" if lock.limit is not None else ""
    write_line(out, f"{lock.key} ({lock.kind}{permits}) at {lock.path}")
    _write_notes(out, lock)
    rows = [("over", *_cells(each)) for each in lock.over]
    rows += [("holds" if each.idle_for is None else "keeps", *_cells(each)) for each in lock.holders]
    rows += [
        (f"{number}, may hold" if each.may_hold else str(number), *_cells(each))
        for number, each in enumerate(lock.waiters, start=1)
    ]
    write_table(out, HEAD, rows, numbers=("age", "token"))
    if lock.waiting > len(lock.waiters):
        write_line(out, f"{len(lock.waiters)} of {lock.waiting} waiters are shown")
    for each in lock.holders:
        if each.release_request is not None:
            write_line(out, f"{process_of(each)} was asked to release by {each.release_request}")
    for each in (*lock.holders, *lock.waiters)[:1]:
        if each.about:
            write_line(out, ", ".join(f"{name} {text}" for name, text in each.about.items()))


def read_lock(options: argparse.Namespace) -> tuple[str, LockInfo | None]:
    """Return the key that was given, and its lock; None if the lock is free."""
    with errors_as_exit_codes():
        key = key_of(options)
        return key, inspection.look_at(key, reply_timeout=options.reply_timeout)


def _write_notes(out: Output, lock: LockInfo) -> None:
    limit_set = "" if lock.limit_set is None else limit_text(lock.limit_set)
    ended = [f"{over(each)}; the next django-zklock client that wants the lock ends it" for each in lock.over]
    for text in (limit_set, different_limits(lock), lock.problem, *ended):
        if text:
            write_line(out, text)


def _show_free(out: Output, key: str, options: argparse.Namespace) -> NoReturn:
    """Say that the lock is free. A limit can be set all the same."""
    with errors_as_exit_codes():
        limit = operations.limit_of(key, reply_timeout=options.reply_timeout)
    if options.json:
        write_json(out, {"key": key, "limit_set": limit_json(limit), "holders": [], "waiters": [], "waiting": 0})
    limit_set = "" if limit is None else f" Its {limit_text(limit)}."
    message = f"The lock {key!r} is free.{limit_set} {entries_below(key)}"
    raise failure(message.rstrip(), ExitCode.FREE)


def _cells(contender: ScannedContender) -> tuple[str, ...]:
    return (
        process_of(contender),
        contender.kind,
        work_of(contender),
        f"{contender.came:%Y-%m-%d %H:%M:%S}",
        duration(contender.age),
        str(contender.token),
        contender.thread,
        session_hex(contender.session_id) or "none",
    )
