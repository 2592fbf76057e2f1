"""`manage.py zklock`: parses the arguments and calls the sub-command, a module of `management.zklock`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from importlib import import_module
from typing import Any, Final, NoReturn

from django.core.management.base import BaseCommand, CommandParser, no_translations
from django.core.management.color import no_style

from django_zklock.core.queue.command_line import command
from django_zklock.management.exit_codes import EXIT_CODES, ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import discard
from django_zklock.management.zklock.interventions import INTERVENTIONS

EXAMPLES: Final = {
    "status": ("", "--json --reply-timeout 2s"),
    "list": ("--sort=held --limit=20 -- 'orders/*'", "--host=worker-7 --state=contended"),
    "show": ("-- orders/4711", "--field=pk=4711 --json -- 'orders/{pk}'"),
    "break": ("--token=4294967311 --reason='web-3 hangs' -- orders/7",),
    "request-release": ("--reason='deploy at 14:00' -- orders/7", "--reason=deploy --token=4294967311 -- orders/7"),
    "hold": ("--for=15m --reason=deploy -- reports", "--for=2h --reason=migration --wait=5m -- reports"),
    "end-hold": ("--token=4294967311 --reason='deploy done' -- reports",),
    "limit": ("--reason='all is well' -- imports none", "--reason='the database is slow' -- imports 3"),
    "run": ("reports --timeout 5m -- make reports", "nightly --timeout 0 -E 0 --min-hold 5m -- ./nightly.sh"),
    "doctor": ("", "--strict --json"),
}
"""The arguments of examples for each sub-command."""
SUBCOMMANDS: Final[dict[str, Any]] = {
    name: (
        INTERVENTIONS.get(name) or import_module(f"django_zklock.management.zklock.{name.replace('list', 'list_')}"),
        examples,
    )
    for name, examples in EXAMPLES.items()
}
EXTENSIONS: Final = {
    "devserver": "django_zklock.testing.devserver",
    "serve": "django_zklock.contrib.leases.serve",
}
"""The modules of the sub-commands that live with what they start. Each has examples of its own."""
for _name, _path in EXTENSIONS.items():
    SUBCOMMANDS[_name] = import_module(_path), import_module(_path).EXAMPLES
_NO_HANDLER: Final = logging.NullHandler()


class Command(BaseCommand):
    """Call a sub-command."""

    help = "Distributed locks on ZooKeeper."
    requires_system_checks = []  # noqa: RUF012 - declared so by Django. Wrong settings must not disable the doctor

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="sub-command", required=True, parser_class=_SubcommandParser
        )
        for name, (module, examples) in SUBCOMMANDS.items():
            summary, _, more = module.__doc__.strip().partition("\n")
            lines = "".join(f"\n  {command(f'{name} {example}')}".rstrip() for example in examples)
            subparser = subparsers.add_parser(
                name,
                help=summary,
                description=summary,
                epilog=f"{more}\n\nexamples:{lines}\n\n{EXIT_CODES}".strip(),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            module.add_arguments(subparser)
            _add_common_arguments(subparser)

    @no_translations
    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run the sub-command."""
        # Without any handler, Python would write to standard error what the sub-command says there itself.
        for name in ("zklock.audit", "django_zklock") if "reply_timeout" in options else ("zklock.audit",):
            logging.getLogger(name).addHandler(_NO_HANDLER)
        if not options["force_color"] and (os.environ.get("NO_COLOR") or not self.stdout.isatty()):
            self.style, self.stderr.style_func = no_style(), None
        try:
            with errors_as_exit_codes():
                SUBCOMMANDS[subcommand][0].run(self.stdout, argparse.Namespace(**options, style=self.style))
                self.stdout.flush()
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except BrokenPipeError:  # `head` has read enough
            discard(self.stdout)
            raise SystemExit(128 + signal.SIGPIPE) from None


class _SubcommandParser(CommandParser):
    """A parser for which all after `--` is an argument. Only some releases of argparse are (python/cpython#59317)."""

    def error(self, message: str) -> NoReturn:
        """End with the exit code of a wrong usage, in `call_command`, too."""
        if self.called_from_command_line:
            super().error(message)
        raise failure(message, ExitCode.USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. If the sub-command has a `command`, that is what follows the first `--`."""
        given = list(args or ())
        if "--" not in given or all(action.dest != "command" for action in self._actions):
            return super().parse_known_args(given, namespace)
        separator = given.index("--")
        parsed, unknown = super().parse_known_args(given[:separator], namespace)
        if parsed.command:
            self.error("give the whole command after --")
        parsed.command = given[separator + 1 :]
        return parsed, unknown


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Accept Django's common options after the sub-command, too."""
    # Without SUPPRESS, a default here would overwrite a value that was given before the sub-command.
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--settings", **common)
    parser.add_argument("--pythonpath", **common)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **common)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **common)
