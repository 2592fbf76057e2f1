"""`manage.py zklock`: parses the arguments and calls the subcommand, a module of `management.zklock`."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import signal
from typing import Any, Final, NoReturn

from django.core.management.base import BaseCommand, CommandParser, no_translations
from django.core.management.color import no_style

from django_zklock.management.exit_codes import EXIT_CODES, ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import is_terminal
from django_zklock.management.zklock import (
    break_,
    completion,
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
    "completion": completion,
}

LONG_RUNNING: Final = ("run", "serve", "devserver")
"""Sub-commands whose log is of use. Another one ends with the same message."""

_NO_HANDLER = logging.NullHandler()


class Command(BaseCommand):
    """Call a subcommand."""

    help = "Distributed locks on ZooKeeper."
    requires_system_checks = []  # noqa: RUF012 - declared so by Django. Wrong settings must not disable the doctor

    def __init__(
        self, stdout: Any = None, stderr: Any = None, no_color: bool = False, force_color: bool = False
    ) -> None:
        plain = no_color or (bool(os.environ.get("NO_COLOR")) and not force_color)
        super().__init__(stdout, stderr, no_color=plain, force_color=force_color)

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="subcommand", required=True, parser_class=_SubcommandParser, action=_Subcommands
        )
        for name, module in SUBCOMMANDS.items():
            summary, _, more = (module.__doc__ or "").strip().partition("\n")
            subparser = subparsers.add_parser(
                name,
                help=summary,
                description=summary,
                epilog=f"{more.strip()}\n\n{EXIT_CODES}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            module.add_arguments(subparser)
            _add_common_arguments(subparser)
        self._parsers = dict(subparsers.choices)
        subparsers.choices = _AnyName(subparsers.choices)

    @no_translations
    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run the subcommand."""
        # The subcommand reports the same. Without any handler, Python would print audit records on standard error.
        logging.getLogger("zklock.audit").addHandler(_NO_HANDLER)
        if subcommand not in LONG_RUNNING:
            logging.getLogger("django_zklock").addHandler(_NO_HANDLER)
        coloured = options["force_color"] or is_terminal(self.stdout)
        options |= {"style": self.style if coloured else no_style(), "parsers": self._parsers}
        try:
            with acting_via("command"), errors_as_exit_codes():
                SUBCOMMANDS[subcommand].run(self.stdout, argparse.Namespace(**options))
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


class _AnyName(dict[str, Any]):
    """Lets argparse accept any name. `_Subcommands` then refuses it with a better message."""

    def __contains__(self, name: object) -> bool:
        return True


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Suggests the sub-command that was meant."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Parse the arguments of the sub-command."""
        if values[0] not in SUBCOMMANDS:
            close = difflib.get_close_matches(values[0], SUBCOMMANDS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Choose from {', '.join(SUBCOMMANDS)}."
            parser.error(f"There is no sub-command {values[0]!r}. {hint}")
        super().__call__(parser, namespace, values, option_string)


class _SubcommandParser(CommandParser):
    """A parser that does not interpret arguments after `--`. Only some releases of argparse do that by themselves."""

    def error(self, message: str) -> NoReturn:
        """End with the exit code of a wrong usage, in `call_command`, too."""
        if self.called_from_command_line:
            super().error(message)
        raise failure(message, ExitCode.USAGE)

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
