"""Show the limit of a semaphore, or set it for all processes."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import acting, add_answer, add_name, add_reason, integer, key_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_answer
from django_zklock.report.formatting import key_text, limit_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("permits", metavar="N", nargs="?", type=integer(), help="the new number of permits")
    parser.add_argument("--clear", action="store_true", help="use the limit in the code of each process again")
    add_reason(parser, "for the audit log, and shown with the limit; required with N or --clear", required=False)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    permits = options.permits
    if options.clear and permits is not None:
        raise failure("Give either N or --clear.", ExitCode.USAGE)
    if (options.clear or permits is not None) and options.reason is None:
        raise failure("Give the reason with --reason. It is kept in the audit log.", ExitCode.USAGE)
    cleared = False
    key = key_of(options)
    if permits is not None:
        operations.set_limit(key, permits, **acting(options))
    elif options.clear:
        cleared = operations.clear_limit(key, **acting(options))
    limit = operations.limit_of(key, reply_timeout=options.reply_timeout)
    without = f"{'The limit is cleared' if cleared else 'No limit is set'}. Each process uses the limit in its code."
    line = f"{key_text(key)}: {without if limit is None else limit_text(limit)}"
    write_answer(out, {"key": key, "limit_set": to_json(limit)}, line, json=options.json)
