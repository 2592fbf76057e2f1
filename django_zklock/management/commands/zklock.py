"""`manage.py zklock`: a shell over its sub-commands, each of which is a module of its own."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_zklock.management import (
    breaking,
    devserver,
    doctor,
    ending,
    fences,
    holding,
    leading,
    limiting,
    listing,
    request_release,
    running,
    showing,
    status,
)

SUBCOMMANDS = {
    "status": status,
    "list": listing,
    "show": showing,
    "leader": leading,
    "break": breaking,
    "request-release": request_release,
    "hold": holding,
    "end-hold": ending,
    "limit": limiting,
    "run": running,
    "doctor": doctor,
    "fences": fences,
    "devserver": devserver,
}


class Command(BaseCommand):
    """Pass the call on to a sub-command."""

    help = "Distributed locks on ZooKeeper."
    requires_system_checks = []  # noqa: RUF012 - Django's own declaration; who mends ZKLOCK needs the commands

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="subcommand", required=True, parser_class=_SubcommandParser
        )
        for name, module in SUBCOMMANDS.items():
            summary = (module.__doc__ or "").strip().partition("\n")[0]
            subparser = subparsers.add_parser(name, help=summary, description=summary)
            module.add_arguments(subparser)
            _add_common_arguments(subparser)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run the sub-command."""
        try:
            with _steps_reported_once():
                SUBCOMMANDS[subcommand].run(self.stdout, **options)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


@contextmanager
def _steps_reported_once() -> Iterator[None]:
    """Keep audit records off standard error where no handler takes them: the command reports each step."""
    audit = logging.getLogger("zklock.audit")
    handler = None if audit.hasHandlers() else logging.NullHandler()  # else Python prints them by `logging.lastResort`
    if handler is not None:
        audit.addHandler(handler)
    try:
        yield
    finally:
        if handler is not None:
            audit.removeHandler(handler)


class _SubcommandParser(CommandParser):
    """A parser that leaves alone what is behind `--`; argparse itself does so only in some releases."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; what is behind the first `--` becomes the `command`, if there is to be one."""
        given = list(args or ())
        if "command" not in {action.dest for action in self._actions} or "--" not in given:
            return super().parse_known_args(given, namespace)
        at = given.index("--")
        found, unknown = super().parse_known_args(given[:at], namespace)
        if found.command:
            self.error("the whole command is to stand behind --")
        found.command = given[at + 1 :]
        return found, unknown


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the options of every command behind the sub-command too, where one would write them."""
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}  # else it would undo the first
    parser.add_argument("--settings", **common)
    parser.add_argument("--pythonpath", **common)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **common)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **common)
