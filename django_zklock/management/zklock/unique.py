"""
List, show or delete the reservations of unique tasks.

A task with the option `unique` is not sent while its reservation exists. If its message was lost, delete the
reservation: the next call sends the task again. If the message still exists, the task may run twice.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from django_zklock.contrib.celery.unique import listing
from django_zklock.core.queue.command_line import command
from django_zklock.management.arguments import acting, add_answer, add_reason, add_wide
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, width_of, write_answer, write_json, write_line, write_table

DROP: Final = ("task id", "sent by", "since", "lock")
CUT: Final = ("task", "lock", "sent by", "key")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "delete"), help="show and delete take one key")
    words = "words of a key or task; for show and delete, a key as `unique list` shows it, or that of a lock"
    parser.add_argument("words", nargs="*", metavar="WORD", help=words)
    add_reason(parser, "for the audit log; delete needs it", required=False)
    parser.add_argument("--task-id", default="", help="only the reservation of this task")
    add_answer(parser)
    add_wide(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    if options.action == "list":
        _list(out, options)
        return
    is_wrong = options.action == "delete" and not options.reason
    if is_wrong or len(options.words) != 1:
        raise failure(f"{options.action} takes one key{', and a --reason' if is_wrong else ''}.", ExitCode.USAGE)
    listed = listing.of_key(options.words[0], reply_timeout=options.reply_timeout)
    wanted = [info for info in listed if options.task_id in ("", info.task_id)]
    if len(wanted) > 1:
        keys = ", ".join(info.key for info in wanted)
        raise failure(f"There are {len(wanted)} reservations. Name the key of one: {keys}.", ExitCode.USAGE)
    if not wanted:
        text, code = ("has another task", ExitCode.CHANGED) if listed else ("does not exist", ExitCode.NO_HOLDER)
        raise failure(f"The reservation of {options.words[0]!r} {text}. See: {command('unique list')}", code)
    if options.action == "delete":
        listing.delete(wanted[0], **acting(options))
    texts = listing.lines(wanted[0]) if options.action == "show" else listing.DELETED
    write_answer(out, listing.to_json(wanted[0]), *texts, json=options.json)


def _list(out: Output, options: argparse.Namespace) -> None:
    listed = listing.read(" ".join(options.words), reply_timeout=options.reply_timeout)
    if options.json:
        counts = {"total": listed.total, "matching": listed.matching, "problem": listed.problem}
        write_json(out, {**counts, "reservations": [listing.to_json(info) for info in listed.shown]})
    else:
        if listed.shown:
            fit: Any = {"width": width_of(out, wide=options.wide), "drop": DROP, "cut": CUT}
            write_table(out, listing.HEAD, [listing.cells(info) for info in listed.shown], **fit)
        write_line(out, f"{len(listed.shown)} shown, {listed.matching} found, of {listed.total}")
    if listed.problem:
        raise failure(listed.problem, ExitCode.UNAVAILABLE)
