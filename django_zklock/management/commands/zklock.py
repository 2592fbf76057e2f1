"""`manage.py zklock`: parses the arguments and calls the subcommand, a module of `management.zklock`."""

from __future__ import annotations

import argparse
import logging
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, no_translations

from django_zklock.management.exit_codes import errors_as_exit_codes
from django_zklock.management.zklock import (
    break_,
    devserver,
    doctor,
    end_hold,
    history,
    hold,
    leader,
    limit,
    list_,
    request_release,
    run,
    serve,
    show,
    status,
)
from django_zklock.operations import acting_via

SUBCOMMANDS = {
    "status": status,
    "list": list_,
    "show": show,
    "history": history,
    "leader": leader,
    "break": break_,
    "request-release": request_release,
    "hold": hold,
    "end-hold": end_hold,
    "limit": limit,
    "run": run,
    "serve": serve,
    "doctor": doctor,
    "devserver": devserver,
}

_NO_HANDLER = logging.NullHandler()


class Command(BaseCommand):
    """Call a subcommand."""

    help = "Distributed locks on ZooKeeper."
    requires_system_checks = []  # noqa: RUF012 - declared so by Django. Wrong settings must not disable the doctor

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="subcommand", required=True, parser_class=_SubcommandParser
        )
        for name, module in SUBCOMMANDS.items():
            summary = (module.__doc__ or "").strip().partition("\n")[0]
            subparser = subparsers.add_parser(name, help=summary, description=summary)
            module.add_arguments(subparser)
            _add_common_arguments(subparser)

    @no_translations
    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run the subcommand."""
        # The subcommand reports the same. Without any handler, Python would print audit records on standard error.
        logging.getLogger("zklock.audit").addHandler(_NO_HANDLER)
        try:
            with acting_via("command"), errors_as_exit_codes():
                SUBCOMMANDS[subcommand].run(self.stdout, argparse.Namespace(**options))
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


class _SubcommandParser(CommandParser):
    """A parser that does not interpret arguments after `--`. Only some releases of argparse do that by themselves."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. If the subcommand has a `command`, that is what comes after the first `--`."""
        given = list(args or ())
        if "command" not in {action.dest for action in self._actions} or "--" not in given:
            return super().parse_known_args(given, namespace)
        separator = given.index("--")
        parsed, unknown = super().parse_known_args(given[:separator], namespace)
        if parsed.command:
            self.error("give the whole command after --")
        parsed.command = given[separator + 1 :]
        return parsed, unknown


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Accept Django's common options after the subcommand, too."""
    # Without SUPPRESS, a default here would overwrite a value that was given before the subcommand.
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--settings", **common)
    parser.add_argument("--pythonpath", **common)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **common)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **common)
