"""Show one lock: who holds it, and who waits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from django_zklock import inspection, operations
from django_zklock.inspection import ContenderInfo, LockInfo
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.durations import shown
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.picturing import differing, kind, limit_json, limit_text, lock_json, over, runs, whose
from django_zklock.management.printing import Output, clean, write_json, write_table
from django_zklock.queue.printable import session_hex

HEAD = ("", "who", "wants", "runs", "since", "age", "token", "thread", "session")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    add_answer(parser)


def run(
    out: Output, *, name: str, fields: Sequence[tuple[str, str]], patience: float, json: bool, **options: Any
) -> None:
    """Show."""
    key, found = look(name, fields, patience)
    if found is None:
        _free(out, key, patience, json=json)
    if json:
        write_json(out, lock_json(found))
        return
    permits = f", {kind(found)} permits" if found.limit is not None else ""
    out.write(f"{clean(found.key, 1000)} ({clean(found.kind)}{permits}) at {clean(found.path, 2000)}\n")
    _write_notes(out, found)
    rows = [("over", *_cells(each)) for each in found.over]
    rows += [("holds", *_cells(each)) for each in found.holders]
    rows += [
        (f"{place}, may hold" if each.may_hold else str(place), *_cells(each))
        for place, each in enumerate(found.waiters, start=1)
    ]
    write_table(out, HEAD, rows, numbers=("age", "token"))
    if found.waiting > len(found.waiters):
        out.write(f"{len(found.waiters)} of {found.waiting} that wait are shown\n")
    for each in found.holders:
        if each.release_request is not None:
            out.write(f"{clean(whose(each))} was asked to release by {clean(str(each.release_request), 1000)}\n")
    for each in (*found.holders, *found.waiters)[:1]:
        details = ", ".join(f"{name} {text}" for name, text in each.about.items())
        if details:
            out.write(f"{clean(details, 1000)}\n")


def _write_notes(out: Output, found: LockInfo) -> None:
    ended = [f"{over(each)}, and the next client of django-zklock that wants the lock ends it" for each in found.over]
    limit_set = "" if found.limit_set is None else limit_text(found.limit_set)
    for text in (limit_set, differing(found), found.problem, *ended):
        if text:
            out.write(f"{clean(text, 1000)}\n")


def _free(out: Output, key: str, patience: float, *, json: bool) -> NoReturn:
    """End, as there is nobody; a limit that is set is told all the same."""
    with told():
        limit = operations.limit_of(key, patience=patience)
    if json:
        told_limit = None if limit is None else limit_json(limit)
        write_json(out, {"key": key, "limit_set": told_limit, "holders": [], "waiters": [], "waiting": 0})
    and_limit = "" if limit is None else f" Its {limit_text(limit)}."
    raise failure(f"Nobody holds {key}, or waits for it.{and_limit} {naming.entries_below(key)}".rstrip(), Exit.FREE)


def look(name: str, fields: Sequence[tuple[str, str]], patience: float) -> tuple[str, LockInfo | None]:
    """Return the key that is meant, and what is known of its lock."""
    with told():
        key = naming.key_of(name, fields)
        return key, inspection.look_at(key, patience=patience)


def _cells(each: ContenderInfo) -> tuple[str, ...]:
    return (
        whose(each),
        each.kind,
        runs(each),
        f"{each.came:%Y-%m-%d %H:%M:%S}",
        shown(each.age),
        str(each.token),
        each.thread,
        session_hex(each.session_id) or "none",
    )
