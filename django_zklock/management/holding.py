"""Hold a lock yourself for a time, with a reason that all who wait can read; it outlives this command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from django_zklock import operations
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.breaking import require, user
from django_zklock.management.durations import seconds
from django_zklock.management.exits import failure, told
from django_zklock.management.picturing import hold_json
from django_zklock.management.printing import Output, clean, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("--for", dest="span", type=seconds, required=True, metavar="TIME", help="as in 90s, 15m, 2h")
    parser.add_argument("--reason", default="", help="why: for the log, and for all who wait; required")
    parser.add_argument(
        "--wait", type=seconds, default=0.0, metavar="TIME", help="for who holds it to be done (default: not at all)"
    )
    add_answer(parser)


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    span: float,
    reason: str,
    wait: float,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """Take it."""
    require(reason)
    try:
        with told():
            key = naming.key_of(name, fields)
            hold = operations.hold_lock(key, seconds=span, reason=reason, by=user(), wait=wait, patience=patience)
    except ValueError as error:
        raise failure(str(error)) from error
    if json:
        write_json(out, {"key": key, **hold_json(hold)})
        return
    out.write(f"{clean(key, 1000)} is held until {hold.until:%Y-%m-%d %H:%M:%S} UTC, token {hold.token}.\n")
    out.write(f"To end it before: zklock end-hold {clean(key, 1000)} --token {hold.token}\n")
