"""The sub-commands that change a lock. Each is a row of `INTERVENTIONS`: its help, its own arguments, what it does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from django_zklock import operations
from django_zklock.core.queue.command_line import command
from django_zklock.exceptions import LockChangedHands, ZkLockError
from django_zklock.inspection.info import to_json
from django_zklock.management.arguments import (
    acting,
    add_answer,
    add_name,
    add_reason,
    integer,
    key_of,
    seconds,
    unless,
)
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_answer
from django_zklock.management.zklock.show import no_holder, read_lock
from django_zklock.report.formatting import holder_text, key_text, limit_text, span, time_text

Act: TypeAlias = Callable[[str, argparse.Namespace, Mapping[str, Any]], tuple[Any, str]]
"""It gets the key, the options and `acting`, and returns the answer for programs and the text for people."""
TOKEN: Final = {"type": int, "default": 0, "help": "only the holder with this token, as `show` prints it"}
TIME: Final = {"type": seconds, "metavar": "TIME"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """A sub-command, with the interface of a module."""

    __doc__: str
    reason: str
    """The help of `--reason`: who reads it."""
    arguments: Mapping[str, Mapping[str, Any]]
    act: Act

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        for name, more in self.arguments.items():
            parser.add_argument(name, **more)
        add_reason(parser, self.reason)
        add_answer(parser)

    def run(self, out: Output, options: argparse.Namespace) -> None:
        key = key_of(options)
        try:
            answer, text = self.act(key, options, acting(options))
        except LockChangedHands as error:
            if read_lock(options).holders:
                raise
            raise no_holder(key, str(error), options) from error
        except ValueError as error:
            if isinstance(error, ZkLockError):
                raise
            raise failure(str(error), ExitCode.USAGE) from error
        write_answer(out, {"key": key, **answer}, *text.splitlines(), json=options.json)


def _break(key: str, options: argparse.Namespace, why: Mapping[str, Any]) -> tuple[Any, str]:
    lock = read_lock(options)
    for holder in lock.holders:
        if holder.token == options.token:
            operations.break_lock(key, guid=holder.guid, token=holder.token, **why)
            return {"holder": to_json(holder)}, f"Broken: {holder_text(holder)} no longer holds {key_text(key)}."
    if lock.problem:
        raise failure(f"The holder of {key_text(key)!r} is unknown, so nothing was broken: {lock.problem}")
    now = "; ".join(f"{holder_text(holder)}, for {span(holder)}, token {holder.token}" for holder in lock.holders)
    raise LockChangedHands(f"No holder of {key_text(key)!r} has that token. {now}".rstrip(), lock=key)


def _request(key: str, options: argparse.Namespace, why: Mapping[str, Any]) -> tuple[Any, str]:
    asked = operations.request_release(key, token=options.token, **why).holders
    texts = [f"Asked: {holder_text(holder)} (token {holder.token})." for holder in asked]
    return {"holders": to_json(asked)}, "\n".join(texts)


def _hold(key: str, options: argparse.Namespace, why: Mapping[str, Any]) -> tuple[Any, str]:
    hold = operations.hold_lock(key, seconds=options.span, wait=options.wait, **why)
    text = f"{key_text(key)} is held until {time_text(hold.until)}, token {hold.token}."
    return to_json(hold), f"{text}\nTo end it earlier: {command('end-hold', key, token=hold.token, reason='')}"


def _end_hold(key: str, options: argparse.Namespace, why: Mapping[str, Any]) -> tuple[Any, str]:
    operations.end_hold(key, token=options.token, **why)
    return {"token": str(options.token)}, f"The operator hold of {key_text(key)} has ended."


def _limit(key: str, options: argparse.Namespace, why: Mapping[str, Any]) -> tuple[Any, str]:
    if options.permits is None:
        operations.clear_limit(key, **why)
    else:
        operations.set_limit(key, options.permits, **why)
    limit = operations.limit_of(key, reply_timeout=options.reply_timeout)
    text = "No limit is set. Each process uses the limit in its code." if limit is None else limit_text(limit)
    return {"limit_set": to_json(limit)}, f"{key_text(key)}: {text}"


INTERVENTIONS: Final = {
    "break": Intervention(
        __doc__="Break a lock: delete the znode of its holder, without asking the holder.",
        reason="for the audit log, and for the holder that loses the lock",
        arguments={"--token": {**TOKEN, "required": True}},
        act=_break,
    ),
    "request-release": Intervention(
        __doc__="Ask the holder of a lock to release it. No work is aborted.",
        reason="for the audit log, and for the holder",
        arguments={"--token": TOKEN},
        act=_request,
    ),
    "hold": Intervention(
        __doc__="Hold a lock yourself for a time. All waiters are shown the reason. The hold outlives this command.",
        reason="for the audit log, and for all waiters",
        arguments={
            "--for": {**TIME, "dest": "span", "required": True, "help": "how long, as in 90s, 15m, 2h"},
            "--wait": {**TIME, "default": 0.0, "help": "how long to wait for the lock (default: not at all)"},
        },
        act=_hold,
    ),
    "end-hold": Intervention(
        __doc__="End an operator hold before its time.",
        reason="for the audit log",
        arguments={"--token": {**TOKEN, "required": True}},
        act=_end_hold,
    ),
    "limit": Intervention(
        __doc__="Set the limit of a semaphore for all processes, or clear it. `show` has the present one.",
        reason="for the audit log, and shown with the limit",
        arguments={"permits": {"metavar": "N|none", "type": unless("none", integer()), "help": "the new limit"}},
        act=_limit,
    ),
}
