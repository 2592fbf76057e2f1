"""List the fenced tables, and reset the tokens that are ahead of ZooKeeper after it has lost data."""

from __future__ import annotations

import argparse
import logging
import socket
from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from django.db import connections, models

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.fencing import regressions
from django_zklock.fencing.regressions import Column, Finding
from django_zklock.management.arguments import add_reason, require_reason, user_name
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, write_json, write_line, write_table

audit = logging.getLogger("zklock.audit")

HEAD: Final = ("database", "model", "rows", "highest token", "rows ahead")
QUESTION: Final = """\
{rows} rows have tokens that are ahead of ZooKeeper, whose last transaction id is {reached}. Their tokens will be set to
0, so that the present holders can write. Processes that have held a lock since before ZooKeeper lost its data could
then write, too. So first restart all of these processes.
Type 'yes' to reset the tokens: """
ADVICE: Final = """\
Holders cannot write the rows that are ahead: that raises FenceRegressed. First restart all processes that held locks
before ZooKeeper lost its data. Then use --reset to set the tokens of these rows to 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--database", metavar="ALIAS", help="only this database (default: all)")
    parser.add_argument("--model", metavar="APP.MODEL", help="only this model (default: all that are fenced)")
    parser.add_argument("--json", action="store_true", help="write JSON; tokens have 64 bits and are strings")
    parser.add_argument("--reset", action="store_true", help="set the tokens that are ahead of ZooKeeper to 0")
    add_reason(parser, "for the audit log; required with --reset")
    parser.add_argument("--no-input", action="store_true", help="do not ask for confirmation")


def run(out: Output, options: argparse.Namespace) -> None:
    """List the tables, or reset their tokens."""
    if options.reset:
        require_reason(options.reason)
    findings, reached = regressions.look(regressions.columns(_models(options.model), _databases(options.database)))
    done: dict[Column, int] | None = None
    if options.reset:
        done = _reset(findings, reached, options.reason.strip(), confirm=not options.no_input)
    if options.json:
        tables = [_table_json(finding, done) for finding in findings]
        write_json(out, {"zookeeper": None if reached is None else str(reached), "tables": tables})
    elif done is None:
        _list(out, findings, reached)
    else:
        for column, rows in done.items():
            write_line(out, f"{rows} rows of {column.label} in {column.using} set to 0")
        if not done:
            write_line(out, "No row is ahead of ZooKeeper; nothing to reset.")


def _models(label: str | None) -> list[type[models.Model]]:
    fenced = list(regressions.fenced_models())
    if label is None:
        return fenced
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError) as error:
        raise failure(f"There is no model {label!r}: {error}") from error
    if model not in fenced:
        known = ", ".join(sorted(each._meta.label for each in fenced)) or "none"
        raise failure(f"The table of {label} has no tokens. Models with tokens: {known}.")
    return [model]


def _databases(alias: str | None) -> list[str]:
    if alias is None:
        return list(connections)
    if alias not in connections:
        raise failure(f"There is no database {alias!r} in DATABASES.")
    return [alias]


def _reset(findings: Sequence[Finding], reached: int | None, reason: str, *, confirm: bool) -> dict[Column, int]:
    """Reset the tokens that are ahead of ZooKeeper; return the number of rows by column."""
    if reached is None:
        raise failure("ZooKeeper does not answer, so it is unknown which tokens are ahead of it.")
    ahead = [finding for finding in findings if finding.ahead]
    if not ahead:
        return {}
    if confirm:
        _confirm(sum(finding.ahead or 0 for finding in ahead), reached)
    user, host = user_name(), socket.gethostname()
    try:
        done = regressions.reset_all([finding.column for finding in ahead])
    except ZooKeeperUnavailable as error:
        raise failure(f"Nothing was changed: {error}") from error
    for column, rows in done.items():
        audit.warning(
            "fences reset: %d rows of %s in database %s, by %s on %s: %s",
            *(rows, column.label, column.using, user, host, reason),
            extra={
                "action": "fences_reset",
                "model": column.label,
                "database": column.using,
                "rows": rows,
                "user": user,
                "host": host,
                "reason": reason,
            },
        )
    return done


def _confirm(rows: int, reached: int) -> None:
    try:
        answer = input(QUESTION.format(rows=rows, reached=reached))
    except EOFError:
        answer = ""
    if answer != "yes":
        raise failure("Nothing was changed.")


def _table_json(finding: Finding, done: dict[Column, int] | None) -> dict[str, Any]:
    column = finding.column
    reset = {} if done is None else {"reset": done.get(column, 0)}
    return {
        "database": column.using,
        "model": column.label,
        "rows": finding.rows,
        "highest": str(finding.highest),
        "ahead": finding.ahead,
        **reset,
    }


def _list(out: Output, findings: Sequence[Finding], reached: int | None) -> None:
    if reached is None:
        write_line(out, "ZooKeeper does not answer, so it is unknown which rows are ahead of it.")
    else:
        write_line(out, f"ZooKeeper's last transaction id is {reached}.")
    if not findings:
        write_line(out, "No table has tokens.")
        return
    write_table(out, HEAD, [_cells(finding) for finding in findings], numbers=HEAD[2:])
    if any(finding.ahead for finding in findings):
        out.write(ADVICE)


def _cells(finding: Finding) -> tuple[str, ...]:
    column = finding.column
    ahead = "?" if finding.ahead is None else str(finding.ahead)
    return column.using, column.label, str(finding.rows), str(finding.highest), ahead
