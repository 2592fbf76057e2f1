"""The sub-commands that change a lock: the acts of the admin, each with its help and its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django_zklock.dashboard.acts import ACTS, Target
from django_zklock.exceptions import LockChangedHands
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
from django_zklock.management.output import Output, write_json, write_line
from django_zklock.management.zklock.show import read_lock
from django_zklock.operations import acting_via
from django_zklock.operations.audit import Action
from django_zklock.report.formatting import holder_text, key_text, span

TOKEN: Final = {"type": int, "default": 0, "help": "only the holder with this token, as `show` prints it"}
SPAN: Final = {"metavar": "TIME", "help": "how long, as in 90s, 15m, 2h"}
WAIT: Final = {"metavar": "TIME", "help": "how long to wait for the lock (default: not at all)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """A sub-command, with the interface of a module."""

    __doc__: str
    act: str
    """The name of the act."""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the act, by the names of its fields."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        for name, more in self.arguments.items():
            parser.add_argument(name, **more)
        add_reason(parser)
        add_answer(parser)

    def run(self, out: Output, options: argparse.Namespace) -> None:
        key, act = key_of(options), ACTS[self.act]
        target = Target(key, token=getattr(options, "token", 0))
        values = {name: getattr(options, name) for name in act.fields}
        with acting_via("command") as actions:
            try:
                act.run(target, **values, **acting(options))
            except LockChangedHands as error:
                raise _changed(key, options, error) from error
        if options.json:
            write_json(out, {"key": key, "actions": [_as_json(action) for action in actions]})
            return
        for action in actions:
            write_line(out, f"{key_text(key)}: {action}.")


def _as_json(action: Action) -> dict[str, object]:
    token = action.token and str(action.token)  # 64 bits; numbers in JavaScript have 53
    return {"action": str(action), "token": token, "by": action.by, "reason": action.reason}


def _minutes(text: str) -> float:
    """Return a span of time in minutes, as the form of the admin has it; an argparse type."""
    return seconds(text) / 60


def _changed(key: str, options: argparse.Namespace, error: LockChangedHands) -> Exception:
    """Return the error that a lock has no such holder, with those that it has."""
    holders = read_lock(options).holders
    if not holders:
        return failure(str(error), ExitCode.NO_HOLDER)
    now = "; ".join(f"{holder_text(holder)}, for {span(holder)}, token {holder.token}" for holder in holders)
    return LockChangedHands(f"{error} Its holders: {now}.", lock=key)


INTERVENTIONS: Final = {
    "break": Intervention(
        __doc__="Break a lock: delete the znode of its holder, without asking the holder.",
        act="break",
        arguments={"--token": {**TOKEN, "required": True}},
    ),
    "request-release": Intervention(
        __doc__="Ask the holder of a lock to release it. No work is aborted.",
        act="ask",
        arguments={"--token": TOKEN},
    ),
    "hold": Intervention(
        __doc__="Hold a lock yourself for a time. All waiters are shown the reason. The hold outlives this command.",
        act="hold",
        arguments={
            "--for": {"type": _minutes, "dest": "minutes", "required": True, **SPAN},
            "--wait": {"type": seconds, "default": 0.0, **WAIT},
        },
    ),
    "end-hold": Intervention(
        __doc__="End an operator hold before its time.",
        act="end",
        arguments={"--token": {**TOKEN, "required": True}},
    ),
    "limit": Intervention(
        __doc__="Set the limit of a semaphore for all processes, or clear it. `show` has the present one.",
        act="limit",
        arguments={"permits": {"metavar": "N|none", "type": unless("none", integer()), "help": "the new limit"}},
    ),
}
