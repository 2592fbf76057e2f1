"""End an operator hold before its time."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.management.arguments import add_answer, add_name, add_reason, user
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line
from django_zklock.management.zklock.show import read_lock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    parser.add_argument("--token", type=int, help="the token of the hold (default: the hold that has the lock)")
    add_reason(parser, "for the audit log")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """End the hold."""
    key, lock = read_lock(options)
    token = options.token
    if token is None:
        contenders = (*lock.holders, *lock.expired_holds) if lock else ()
        holds = [contender.operator for contender in contenders if contender.operator is not None]
        if not holds:
            raise failure(f"{key!r} has no operator hold.", ExitCode.NO_HOLDER)
        token = holds[0].token
    operations.end_hold(key, token=token, by=user(), reason=options.reason, reply_timeout=options.reply_timeout)
    if options.json:
        write_json(out, {"key": key, "token": str(token), "ended": True})
    else:
        write_line(out, f"The operator hold of {key} has ended.")
