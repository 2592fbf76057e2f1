"""Say what needs attention, with its remedy. The exit code tells a probe whether there is anything."""

from __future__ import annotations

import argparse
from typing import Final

from django_zklock.inspection import Snapshot
from django_zklock.management.arguments import add_answer
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, count, write_json, write_line
from django_zklock.report import verdict

add_arguments = add_answer
MAX_COMMANDS: Final = 2  # of one incident, so that several incidents fit on a screen


def run(out: Output, options: argparse.Namespace) -> None:
    report = verdict.as_json(options.reply_timeout)
    if options.json:
        write_json(out, report)
    else:
        for number, incident in enumerate(report["incidents"], 1):
            write_line(out, f"{number}. {incident['title']}. {incident['explanation']}")
            write_line(out, f"   -> {incident['remedy']}")
            for command in incident["commands"][:MAX_COMMANDS]:
                write_line(out, f"   $ {command}")
        write_line(out, f"{report['held']} held, {report['waiting']} waiting. {report['verdict']}")
    causes = [incident["cause"] for incident in report["incidents"]]
    if "quorum" in causes:
        raise failure(report["problem"], ExitCode.UNAVAILABLE)
    if causes:
        raise failure(f"{count(len(causes), 'incident')}.", ExitCode.INCIDENT)
    if not report["healthy"]:
        raise failure(report["verdict"], ExitCode.PARTIAL)


def write_skipped(out: Output, snapshot: Snapshot) -> None:
    """Write what the scan has skipped."""
    if snapshot.total > len(snapshot.locks):
        write_line(out, f"read: {len(snapshot.locks)} of {snapshot.total} locks, those with the most waiters")
    for text in snapshot.skipped:
        write_line(out, f"skipped: {text}")


def fail_if_incomplete(snapshot: Snapshot) -> None:
    """End with an exit code that says so if the snapshot is old or incomplete."""
    if snapshot.problem:
        raise failure(snapshot.problem, ExitCode.UNAVAILABLE)
    if not snapshot.complete:
        raise failure("Not all locks were read.", ExitCode.PARTIAL)
