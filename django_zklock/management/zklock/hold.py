"""Hold a lock yourself for a time, with a reason that all waiters are shown. The hold outlives this command."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.dashboard.formatting import time_text
from django_zklock.inspection.serialize import operator_hold_json
from django_zklock.management.arguments import add_answer, add_name, add_reason, key_of, require_reason, seconds, user
from django_zklock.management.output import Output, write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    parser.add_argument(
        "--for", dest="span", type=seconds, required=True, metavar="TIME", help="how long, as in 90s, 15m, 2h"
    )
    add_reason(parser, "for the audit log, and for all waiters; required")
    parser.add_argument(
        "--wait", type=seconds, default=0.0, metavar="TIME", help="how long to wait for the lock (default: not at all)"
    )
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Hold the lock."""
    require_reason(options.reason)
    key = key_of(options)
    hold = operations.hold_lock(
        key,
        seconds=options.span,
        reason=options.reason,
        by=user(),
        wait=options.wait,
        reply_timeout=options.reply_timeout,
    )
    if options.json:
        write_json(out, {"key": key, **operator_hold_json(hold)})
        return
    write_line(out, f"{key} is held until {time_text(hold.until)}, token {hold.token}.")
    write_line(out, f"To end it earlier: zklock end-hold {key} --token {hold.token}")
