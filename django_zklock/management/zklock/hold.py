"""Hold a lock yourself for a time, with a reason that all waiters are shown. The hold outlives this command."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.core.queue.command_line import command
from django_zklock.core.queue.operator_hold import LONGEST
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import acting, add_answer, add_name, add_reason, key_of, seconds
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_answer
from django_zklock.report.formatting import key_text, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    span = "how long, as in 90s, 15m, 2h"
    parser.add_argument("--for", dest="span", type=seconds, required=True, metavar="TIME", help=span)
    add_reason(parser, "for the audit log, and for all waiters")
    wait = "how long to wait for the lock (default: not at all)"
    parser.add_argument("--wait", type=seconds, default=0.0, metavar="TIME", help=wait)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    if not 0 < options.span <= LONGEST:
        limit = "at most 7d" if options.span else "above 0"
        raise failure(f"--for must be {limit}, not {options.span / 86400:g}d.", ExitCode.USAGE)
    key = key_of(options)
    hold = operations.hold_lock(key, seconds=options.span, wait=options.wait, **acting(options))
    done = f"{key_text(key)} is held until {time_text(hold.until)}, token {hold.token}."
    following = f"To end it earlier: {command('end-hold', key, token=hold.token)}"
    write_answer(out, {"key": key, **to_json(hold)}, done, following, json=options.json)
