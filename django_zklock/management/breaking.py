"""Take a lock from the one who holds it, who is told at once that it is lost."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys
from collections.abc import Sequence
from typing import Any

from django_zklock import operations
from django_zklock.inspection import ContenderInfo, LockInfo
from django_zklock.management import naming, showing
from django_zklock.management.answering import add_answer
from django_zklock.management.durations import shown
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.picturing import contender_json, runs, whose
from django_zklock.management.printing import Output, clean, write_json

WARNING = """\
{key} is held by
    {who}, for {age}, token {token}
    running: {runs}
It is told that the lock is lost, and may run on for a moment before it stops. {next}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("--reason", default="", help="why: for the log, and for the one who loses it; required")
    parser.add_argument("--token", type=int, help="only if the holder has this token; required with --no-input")
    parser.add_argument("--no-input", action="store_true", help="do not ask before")
    add_answer(parser)


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    reason: str,
    token: int | None,
    no_input: bool,
    patience: float,
    json: bool,
    **options: Any,
) -> None:
    """Break it."""
    require(reason)
    if no_input and token is None:
        raise failure("With --no-input, say whom you mean: --token, as `zklock show` tells it.", Exit.USAGE)
    key, found = showing.look(name, fields, patience)
    if found is None or (not found.holders and not found.problem):
        raise failure(f"Nobody holds {key}.", Exit.FREE)
    holder = _holder(found, token)
    if not no_input:
        _confirm(found, holder)
    by = user()
    try:
        with told():
            broken = operations.break_lock(
                key, guid=holder.guid, token=holder.token, reason=reason, by=by, patience=patience
            )
    except ValueError as error:
        raise failure(str(error)) from error
    if json:
        write_json(out, {"key": broken.key, "holder": contender_json(holder), "reason": broken.reason, "by": broken.by})
    else:
        out.write(f"Broken: {clean(whose(holder))} holds {clean(key, 1000)} no more.\n")


def require(reason: str) -> None:
    """Refuse what has no reason."""
    if not reason.strip():
        raise failure("Say why, with --reason: it is kept in the log.", Exit.USAGE)


def user() -> str:
    """Return who types."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"  # a user id without a name, as in some containers
    return f"{name}@{socket.gethostname()}"


def _holder(found: LockInfo, token: int | None) -> ContenderInfo:
    if found.problem and not found.holders:
        raise failure(f"Nobody can tell who holds {found.key}: {found.problem}")
    meant = [each for each in found.holders if token is None or each.token == token]
    meant += [each for each in found.waiters if each.may_hold and each.token == token]
    if not meant:
        raise failure(f"{found.key} has changed hands: no holder has token {token}.", Exit.CHANGED)
    if len(meant) > 1:
        tokens = ", ".join(str(each.token) for each in meant)
        raise failure(f"{found.key} has {len(meant)} holders, who share it; name one by --token: {tokens}.", Exit.USAGE)
    return meant[0]


def _confirm(found: LockInfo, holder: ContenderInfo) -> None:
    following = found.waiters[0] if found.waiters else None
    # Everything but the answer goes to standard error, where --json does not mind it.
    sys.stderr.write(
        WARNING.format(
            key=clean(found.key, 1000),
            who=clean(whose(holder)),
            age=shown(holder.age),
            token=holder.token,
            runs=clean(runs(holder)),
            next=f"Next is {clean(whose(following))}: {clean(runs(following))}." if following else "Nobody waits.",
        )
    )
    sys.stderr.write("Type 'yes' to go on: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != "yes":
        raise failure("Nothing was changed.")
