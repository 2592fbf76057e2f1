"""Ask the holder of a lock to release it. No work is aborted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django_zklock import operations
from django_zklock.exceptions import LockChangedHands
from django_zklock.management import naming
from django_zklock.management.answering import add_answer
from django_zklock.management.breaking import require, user
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.printing import Output, clean, write_json
from django_zklock.queue.printable import session_hex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("--reason", default="", help="why: for the log, and for the one who is asked; required")
    parser.add_argument("--guid", default="", help="only the holder with this guid (default: all that share the lock)")
    parser.add_argument("--token", type=int, default=0, help="only the holder with this token")
    add_answer(parser)


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    reason: str,
    guid: str,
    token: int,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """Ask."""
    require(reason)
    try:
        with told():
            key = naming.key_of(name, fields)
            try:
                asked = operations.request_release(key, reason, by=user(), guid=guid, token=token, patience=patience)
            except LockChangedHands as error:
                if guid or token:
                    raise
                raise failure(str(error), Exit.FREE) from error
    except ValueError as error:
        raise failure(str(error)) from error
    if json:
        holders = [
            {**asdict(each), "token": str(each.token), "session": session_hex(each.session_id) or None}
            for each in asked.holders
        ]
        for each in holders:
            del each["session_id"]
        write_json(out, {"key": asked.key, "holders": holders, "reason": asked.reason, "by": asked.by})
        return
    for holder in asked.holders:
        who = f"{holder.host}:{holder.pid}" if holder.host else f"session {session_hex(holder.session_id)}"
        runs = f", which runs {holder.what}" if holder.what else ""
        out.write(f"Asked: {clean(who)}{clean(runs)} (token {holder.token}) is asked to release {clean(key, 1000)}.\n")
