"""Show one lock: its state, its holders and waiters, its last grants, and the next command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.core.management.base import CommandError

from django_zklock import inspection, operations
from django_zklock.core.queue.escaping import session_hex
from django_zklock.dashboard.detail import Detail, Row, read_detail
from django_zklock.inspection import ContenderInfo, LockInfo
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import (
    add_answer,
    add_name,
    add_wide,
    did_you_mean,
    entries_below,
    key_of,
    user,
)
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, width_of, write_json, write_line, write_table
from django_zklock.management.zklock.status import read_all
from django_zklock.report import formatting, past
from django_zklock.management.zklock.history import as_json
from django_zklock.report.formatting import duration, host_and_pid, time_text

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Event

HEAD: Final = ("", "who", "wants", "runs", "since", "for", "token", "thread", "session")
GRANTS: Final = ("last grants", "to", "waited", "held", "what")
MAX_GRANTS: Final = 5

Stacks: TypeAlias = Mapping[ContenderInfo, Sequence[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("--stack", action="store_true", help="ask the holders what they run now, at this line of code")
    add_answer(parser)
    add_wide(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    shown = read_detail(key_of(options), reply_timeout=options.reply_timeout)
    lock, grants = shown.info, past.ask("last_grants", shown.info.key, MAX_GRANTS, default=())
    is_free = lock.state() == "free"
    stacks: Stacks = {}
    if is_free:
        lock = replace(lock, limit_set=operations.limit_of(lock.key, reply_timeout=options.reply_timeout))
    elif options.stack:
        stacks = operations.show_stacks(lock.key, by=user(), reply_timeout=options.reply_timeout)
    if options.json:
        write_json(out, {**to_json(lock), **_more_json(shown, grants, stacks)})
    elif not is_free:
        _write(out, shown, grants, width_of(out, wide=options.wide))
        _write_stacks(out, stacks)
    if lock.is_unread:
        raise failure("It is not known who holds this lock.", ExitCode.PARTIAL)
    if is_free:
        limit = f" {formatting.limit_text(lock.limit_set)}." if lock.limit_set else ""
        raise no_holder(lock.key, f"The lock {formatting.key_text(lock.key)!r} is free.{limit}", options)


def _more_json(shown: Detail, grants: Sequence[Event], stacks: Stacks) -> dict[str, Any]:
    more = {
        "reasons": shown.reasons,
        "advice": shown.advice or None,
        "chain": to_json(shown.chain),
        "grants": [as_json(grant) for grant in grants],
        "commands": shown.next_commands,
    }
    if stacks:
        more["stacks"] = {str(holder.token): stack for holder, stack in stacks.items()}
    return more


def _write_stacks(out: Output, stacks: Stacks) -> None:
    for holder, stack in stacks.items():
        for line in (f"Stack of {formatting.process_of(holder)} (the innermost function is first):", *stack):
            write_line(out, line)


def _write(out: Output, shown: Detail, grants: Sequence[Event], width: int | None) -> None:
    lock = shown.info
    for text in filter(None, _texts(shown)):
        write_line(out, text)
    rows = [_cells(row) for row in (*shown.expired_holds, *shown.holders, *shown.waiters)]
    if rows:
        fit: Any = {"width": width, "drop": ("since", "wants"), "cut": ("who", "runs")}
        write_table(out, HEAD, rows, numbers=("for", "token"), **fit)
    if grants:
        events = [
            (time_text(grant.at), host_and_pid(grant.host, grant.pid), duration(grant.waited), duration(grant.held), grant.outcome)
            for grant in grants
        ]
        write_table(out, GRANTS, events, numbers=("waited", "held"), width=width, cut=("to", "what"))
    more = shown.commands if lock.problem or lock.numbers_left is not None else ()
    for line in (*shown.next_commands, *more):
        write_line(out, f"Next: {line}")


def _texts(shown: Detail) -> Iterator[str]:
    """Yield the lines about the state of a lock. Some may be empty."""
    lock = shown.info
    yield f"{formatting.key_text(lock.key)} ({formatting.kind_text(lock)}) at {lock.path}"
    yield from (f"{shown.state_label}.", shown.limit_set, *shown.reasons)
    yield f"{'DEADLOCK: ' if shown.is_cycle else ''}{formatting.cycle_text(shown.chain)}"
    yield shown.advice
    for holder in lock.holders:
        if holder.release_request is not None:
            request = formatting.request_text(holder.release_request)
            yield f"{formatting.process_of(holder)} was asked to release by {request}"
    for contender in (*lock.holders, *lock.waiters)[:1]:
        if contender.operator is None:
            yield ", ".join(f"{name} {text}" for name, text in contender.about.items())
    if shown.hidden:
        yield f"{len(lock.waiters)} of {lock.waiting} waiters are shown"


def read_lock(options: argparse.Namespace) -> LockInfo:
    """Return the lock that was given, free or not."""
    key = key_of(options)
    return inspection.look_at(key, reply_timeout=options.reply_timeout) or LockInfo(key=key, path="")


def no_holder(key: str, message: str, options: argparse.Namespace) -> CommandError:
    """Return the error that a lock has no holder, with a hint at an entry of `LOCKS` or a similar key that is held."""
    # A key with another number is another lock, not an error in writing.
    similar = [lock.key for lock in read_all(options).locks if re.findall(r"\d", lock.key) == re.findall(r"\d", key)]
    hint = entries_below(key) or did_you_mean(key, similar)
    return failure(f"{message} {hint}".rstrip(), ExitCode.NO_HOLDER)


def _cells(row: Row) -> tuple[str, ...]:
    contender, role = row.info, str(row.number)
    if not contender.waits_behind:
        role = "expired" if not contender.holds else "holds" if contender.idle_for is None else "keeps"
    since = formatting.time_text(contender.since)
    process, use = formatting.process_of(contender), formatting.use_of(contender)
    cells = (role, process, contender.kind, use, since, formatting.span(contender))
    return (*cells, str(contender.token), contender.thread, session_hex(contender.session_id) or "none")
