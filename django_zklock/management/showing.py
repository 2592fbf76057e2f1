"""Show one lock: who holds it, and who waits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from django_zklock import inspection
from django_zklock.inspection import ContenderInfo, LockInfo
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.durations import shown
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.picturing import lock_json, runs, whose
from django_zklock.management.printing import Output, clean, write_json, write_table

HEAD = ("", "who", "runs", "since", "age", "token", "thread", "session")


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
        if json:
            write_json(out, {"key": key, "holders": [], "waiters": [], "waiting": 0})
        raise failure(f"Nobody holds {key}, or waits for it.", Exit.FREE)
    if json:
        write_json(out, lock_json(found))
        return
    out.write(f"{clean(found.key, 1000)} ({clean(found.kind)}) at {clean(found.path, 2000)}\n")
    if found.problem:
        out.write(f"{clean(found.problem, 1000)}\n")
    rows = [("holds", *_cells(each)) for each in found.holders]
    rows += [(str(place), *_cells(each)) for place, each in enumerate(found.waiters, start=1)]
    write_table(out, HEAD, rows, numbers=("age", "token"))
    if found.waiting > len(found.waiters):
        out.write(f"{len(found.waiters)} of {found.waiting} that wait are shown\n")
    for each in (*found.holders, *found.waiters)[:1]:
        details = ", ".join(f"{name} {text}" for name, text in each.about.items())
        if details:
            out.write(f"{clean(details, 1000)}\n")


def look(name: str, fields: Sequence[tuple[str, str]], patience: float) -> tuple[str, LockInfo | None]:
    """Return the key that is meant, and what is known of its lock."""
    with told():
        key = naming.key_of(name, fields)
        return key, inspection.look_at(key, patience=patience)


def _cells(each: ContenderInfo) -> tuple[str, ...]:
    return (
        whose(each),
        runs(each),
        f"{each.came:%Y-%m-%d %H:%M:%S}",
        shown(each.age),
        str(each.token),
        each.thread,
        f"{each.session_id & 0xFFFFFFFFFFFFFFFF:#x}" if each.session_id else "none",
    )
