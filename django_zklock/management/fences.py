"""List the rows that are fenced, and set back tokens that ZooKeeper cannot have given (it was wiped, or restored)."""

from __future__ import annotations

import argparse
import getpass
import json as json_format
import logging
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections, models

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.fencing import regressions
from django_zklock.fencing.regressions import Column, Finding

audit = logging.getLogger("zklock.audit")

WARNING = """\
{rows} rows have seen tokens that ZooKeeper, which has come to {reached}, cannot have given. Their tokens will be set
to 0, so that today's holders can write. A process that has held a lock since before ZooKeeper lost its data could
then write, too: be sure that all of them have been restarted since.
"""


ADVICE = """\
Holders cannot write rows that are ahead: that raises FenceRegressed. When all processes that held locks before
ZooKeeper lost its data have been restarted, --reset sets the tokens of these rows to 0.
"""


class Output(Protocol):
    """Where lines are written to."""

    def write(self, text: str) -> object:
        """Write a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--database", metavar="ALIAS", help="only this one; all, if not given")
    parser.add_argument("--model", metavar="APP.MODEL", help="only this one; all that are fenced, if not given")
    parser.add_argument(
        "--json", action="store_true", help="write JSON; tokens are strings there, as they have 64 bits"
    )
    parser.add_argument("--reset", action="store_true", help="set the tokens that are ahead of ZooKeeper to 0")
    parser.add_argument("--reason", default="", help="why, for the log; required with --reset")
    parser.add_argument("--no-input", action="store_true", help="do not ask before the reset")


def run(
    out: Output,
    *,
    database: str | None,
    model: str | None,
    json: bool,
    reset: bool,
    reason: str,
    no_input: bool,
    **options: Any,
) -> None:
    """List, or reset."""
    if reset and not reason.strip():
        raise CommandError("Say why, with --reason: it is kept in the log.")
    columns = regressions.columns(_models(model), _databases(database))
    findings, reached = regressions.look(columns)
    done: dict[Column, int] = {}
    if reset:
        ahead = sum(finding.ahead or 0 for finding in findings)
        if reached is None:
            raise CommandError("ZooKeeper does not answer, so nobody can tell which tokens are ahead of it.")
        if ahead and not no_input:
            _confirm(ahead, reached)
        if ahead:
            done = _reset([finding.column for finding in findings if finding.ahead], reason.strip())
    if json:
        out.write(json_format.dumps(_as_json(findings, reached, done if reset else None), indent=2) + "\n")
        return
    if reset:
        for column, rows in done.items():
            out.write(f"{rows} rows of {column.label} in {column.using} set to 0\n")
        if not done:
            out.write("No row is ahead of ZooKeeper; nothing to reset.\n")
        return
    _list(out, findings, reached)


def _models(label: str | None) -> list[type[models.Model]]:
    fenced = list(regressions.fenced_models())
    if label is None:
        return fenced
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError) as error:
        raise CommandError(f"There is no model {label!r}: {error}") from error
    if model not in fenced:
        known = ", ".join(sorted(each._meta.label for each in fenced)) or "none"
        raise CommandError(f"The table of {label} has no tokens. Those that have: {known}.")
    return [model]


def _databases(alias: str | None) -> list[str]:
    if alias is None:
        return list(connections)
    if alias not in connections:
        raise CommandError(f"There is no database {alias!r} in DATABASES.")
    return [alias]


def _confirm(rows: int, reached: int) -> None:
    try:
        answer = input(WARNING.format(rows=rows, reached=reached) + "Type 'yes' to go on: ")
    except EOFError:
        answer = ""
    if answer != "yes":
        raise CommandError("Nothing was changed.")


def _reset(columns: Sequence[Column], reason: str) -> dict[Column, int]:
    who, host = _who(), socket.gethostname()
    try:
        done = regressions.reset_all(columns)
    except ZooKeeperUnavailable as error:
        raise CommandError(f"Nothing was changed: {error}") from error
    for column, rows in done.items():
        audit.warning(
            "fences reset: %d rows of %s in database %s, by %s on %s: %s",
            *(rows, column.label, column.using, who, host, reason),
            extra={
                "action": "fences_reset",
                "model": column.label,
                "database": column.using,
                "rows": rows,
                "user": who,
                "host": host,
                "reason": reason,
            },
        )
    return done


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"  # a user id without a name, as in some containers


def _as_json(findings: Sequence[Finding], reached: int | None, done: dict[Column, int] | None) -> dict[str, Any]:
    tables = []
    for finding in findings:
        column = finding.column
        table = {
            "database": column.using,
            "model": column.label,
            "rows": finding.rows,
            "highest": str(finding.highest),
            "ahead": finding.ahead,
        }
        tables.append(table if done is None else {**table, "reset": done.get(column, 0)})
    return {"zookeeper": None if reached is None else str(reached), "tables": tables}


def _list(out: Output, findings: Sequence[Finding], reached: int | None) -> None:
    if reached is None:
        out.write("ZooKeeper does not answer, so nobody can tell which rows are ahead of it.\n")
    else:
        out.write(f"ZooKeeper has come to {reached}.\n")
    if not findings:
        out.write("No table has tokens.\n")
        return
    head = ("database", "model", "rows", "highest token", "rows ahead")
    lines = [head, *(_cells(finding) for finding in findings)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(head))]
    for line in lines:
        texts = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        out.write("  ".join([*texts, *numbers]) + "\n")
    if any(finding.ahead for finding in findings):
        out.write(ADVICE)


def _cells(finding: Finding) -> tuple[str, ...]:
    column = finding.column
    ahead = "?" if finding.ahead is None else str(finding.ahead)
    return (column.using, column.label, str(finding.rows), str(finding.highest), ahead)
