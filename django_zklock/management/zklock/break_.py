"""Break a lock: delete the znode of its holder, without asking the holder."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from django_zklock import operations
from django_zklock.core.queue.escaping import printable
from django_zklock.inspection import LockInfo, ScannedContender
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import acting, add_answer, add_holder, add_name, add_reason
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_answer
from django_zklock.management.zklock.show import no_holder, read_lock
from django_zklock.report.formatting import key_text, process_of, span, use_of

QUESTION: Final = """\
{key} is {state} by
    {who}, for {age}, token {token}
    running: {work}
The holder learns at once that the lock is lost. Its work may continue for a moment. {next}
Type 'yes' to break the lock: """


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    add_reason(parser, "for the audit log, and for the holder that loses the lock")
    add_holder(parser)
    parser.add_argument("--no-input", action="store_true", help="do not ask for confirmation; needs --token")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    if options.no_input and not (options.guid or options.token):
        raise failure("--no-input requires --token, the holder's token as `zklock show` prints it.", ExitCode.USAGE)
    lock = read_lock(options)
    if not lock.holders:
        if lock.problem:
            raise failure(f"The holder of {lock.key!r} is unknown: {lock.problem}")
        raise no_holder(lock.key, f"{lock.key!r} has no holder.", options)
    holders = [
        holder for holder in lock.holders if options.guid in ("", holder.guid) and options.token in (0, holder.token)
    ]
    if not holders:
        raise failure(f"{lock.key!r} has changed hands: no holder has that token.", ExitCode.CHANGED)
    if len(holders) > 1:
        tokens = ", ".join(str(holder.token) for holder in holders)
        raise failure(f"{lock.key!r} has {len(holders)} holders. Choose one with --token: {tokens}.", ExitCode.USAGE)
    holder = holders[0]
    if not options.no_input:
        _confirm(lock, holder)
    broken = operations.break_lock(lock.key, guid=holder.guid, token=holder.token, **acting(options))
    answer = {"key": lock.key, "holder": to_json(holder), "reason": broken.reason, "by": broken.by}
    write_answer(out, answer, f"Broken: {process_of(holder)} no longer holds {key_text(lock.key)}.", json=options.json)


def _confirm(lock: LockInfo, holder: ScannedContender) -> None:
    following = "".join(f"Next is {process_of(waiter)}: {use_of(waiter)}." for waiter in lock.waiters[:1])
    state = "held" if holder.idle_for is None else "kept"
    texts = {"key": key_text(lock.key), "state": state, "who": process_of(holder), "age": span(holder)}
    texts |= {"token": str(holder.token), "work": use_of(holder), "next": following or "It has no waiters."}
    # The question goes to standard error, so that it is not mixed with the JSON.
    sys.stderr.write(QUESTION.format_map({name: printable(str(text)) for name, text in texts.items()}))
    sys.stderr.flush()
    if sys.stdin.readline().strip() != "yes":
        raise failure("Nothing was changed.")
