"""Ask the holder of a lock to release it. No work is aborted."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.dashboard.formatting import holder_text
from django_zklock.exceptions import LockChangedHands
from django_zklock.inspection.serialize import contender_json
from django_zklock.management.arguments import add_answer, add_name, add_reason, key_of, require_reason, user
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    add_reason(parser, "for the audit log, and for the holder; required")
    parser.add_argument("--guid", default="", help="only the holder with this guid (default: all holders)")
    parser.add_argument("--token", type=int, default=0, help="only the holder with this token")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Ask the holders."""
    require_reason(options.reason)
    key = key_of(options)
    try:
        asked = operations.request_release(
            key,
            options.reason,
            by=user(),
            guid=options.guid,
            token=options.token,
            reply_timeout=options.reply_timeout,
        )
    except LockChangedHands as error:
        if options.guid or options.token:
            raise
        raise failure(str(error), ExitCode.NO_HOLDER) from error
    if options.json:
        holders = [contender_json(holder) for holder in asked.holders]
        write_json(out, {"key": asked.key, "holders": holders, "reason": asked.reason, "by": asked.by})
        return
    for holder in asked.holders:
        write_line(out, f"Asked: {holder_text(holder)} (token {holder.token}) is asked to release {key}.")
