"""End an operator's hold before its time."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from django_zklock import operations
from django_zklock.management import naming, showing
from django_zklock.management.answering import add_answer
from django_zklock.management.breaking import user
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.printing import Output, clean, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("--token", type=int, help="of the hold, as it was told (default: the one that holds the lock)")
    parser.add_argument("--reason", default="", help="why, for the log")
    add_answer(parser)


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    token: int | None,
    reason: str,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """End it."""
    key, found = showing.look(name, fields, patience)
    if token is None:
        hold = None if found is None else found.operator or next((each.operator for each in found.over), None)
        if hold is None:
            raise failure(f"No operator holds {key}.", Exit.FREE)
        token = hold.token
    with told():
        operations.end_hold(key, token=token, by=user(), reason=reason, patience=patience)
    if json:
        write_json(out, {"key": key, "token": str(token), "ended": True})
    else:
        out.write(f"The operator's hold of {clean(key, 1000)} has ended.\n")
