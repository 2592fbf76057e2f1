"""Show how many permits a semaphore has, or set that for all processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from django_zklock import operations
from django_zklock.conf.options import MOST_PERMITS, is_limit
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.breaking import require, user
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.picturing import limit_json, limit_text
from django_zklock.management.printing import Output, clean, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("permits", metavar="N", nargs="?", type=int, help="how many there are to be")
    parser.add_argument("--clear", action="store_true", help="have the limit in the code of each process count again")
    parser.add_argument("--reason", default="", help="why, for the log and for who looks; required with N or --clear")
    add_answer(parser)


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    permits: int | None,
    clear: bool,
    reason: str,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """Show it, set it or clear it."""
    if clear and permits is not None:
        raise failure("Either N or --clear: a limit is set or cleared.", Exit.USAGE)
    if permits is not None and not is_limit(permits):
        raise failure(f"N is a number of permits from 1 to {MOST_PERMITS}.", Exit.USAGE)
    if clear or permits is not None:
        require(reason)
    cleared = False
    try:
        with told():
            key = naming.key_of(name, fields)
            if permits is not None:
                operations.set_limit(key, permits, reason=reason, by=user(), patience=patience)
            elif clear:
                cleared = operations.clear_limit(key, reason=reason, by=user(), patience=patience)
            found = operations.limit_of(key, patience=patience)
    except ValueError as error:
        raise failure(str(error)) from error
    if json:
        write_json(out, {"key": key, "limit_set": None if found is None else limit_json(found)})
    elif found is not None:
        out.write(f"{clean(key, 1000)}: {clean(limit_text(found), 1000)}\n")
    else:
        was = "The limit is cleared" if cleared else "No limit is set"
        out.write(f"{clean(key, 1000)}: {was}: each process goes by the one in its code.\n")
