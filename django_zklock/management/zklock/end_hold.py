"""End an operator hold before its time."""

from __future__ import annotations

import argparse

from django_zklock import operations
from django_zklock.management.arguments import acting, add_answer, add_name, add_reason, key_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_answer
from django_zklock.management.zklock.show import no_holder, read_lock
from django_zklock.report.formatting import key_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("--token", type=int, help="the token of the hold (default: the hold that has the lock)")
    add_reason(parser, "for the audit log", required=False)
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    key, token = key_of(options), options.token
    if token is None:
        lock = read_lock(options)
        holds = [hold.operator for hold in (*lock.holders, *lock.expired_holds) if hold.operator is not None]
        if lock.is_unread:
            raise failure(f"It is not known who holds {key!r}: {lock.problem}", ExitCode.PARTIAL)
        if not holds:
            raise no_holder(key, f"{key!r} has no operator hold.", options)
        token = holds[0].token
    operations.end_hold(key, token=token, **acting(options))
    answer = {"key": key, "token": str(token), "ended": True}
    write_answer(out, answer, f"The operator hold of {key_text(key)} has ended.", json=options.json)
