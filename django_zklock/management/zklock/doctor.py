"""Check the ensemble and the locks. The exit code tells a probe whether all is well."""

from __future__ import annotations

import argparse
import contextlib
import platform
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from django_zklock import conf, inspection
from django_zklock.conf import Config
from django_zklock.contrib.celery.unique import reservations
from django_zklock.dashboard import incidents
from django_zklock.dashboard.formatting import cycle_text, different_limits, process_of
from django_zklock.inspection import ContenderInfo, Snapshot
from django_zklock.management.arguments import add_answer, integer
from django_zklock.management.checkup import CheckupResult, check_up
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line, write_table
from django_zklock.queue.escaping import session_hex
from django_zklock.zk import process

SLOW_SHARE: Final = 0.05  # of the session timeout; slower writes may let leases end
MAX_DEAD: Final = 5  # dead reservations that are listed
MAX_EXPLAINED: Final = 8  # incidents with an explanation
_WORLD: Final = ("world", "anyone")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    result: str
    """ "ok", "info", "warning" or "error"."""
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    rounds = "how many reads and writes to time (default: %(default)s)"
    parser.add_argument("--rounds", type=integer(), default=20, metavar="N", help=rounds)
    parser.add_argument("--strict", action="store_true", help="fail on warnings, too")
    parser.add_argument("--incident", action="store_true", help="only what needs attention, with its remedy")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Run the checks and report them."""
    reply_timeout = options.reply_timeout
    if options.incident:
        _incidents(out, reply_timeout, json=options.json)
        return
    config = conf.current()
    checkup = check_up(process.current(), options.rounds, reply_timeout)
    snapshot = (
        inspection.snapshot(reply_timeout=reply_timeout, max_age=0, max_waiters=50) if checkup.connected else None
    )
    checks = [*_versions(), *_ensemble(reply_timeout), *_connection(config, checkup)]
    if checkup.connected:
        checks += [*_speed(checkup), *_rights(config, checkup)]
    if snapshot is not None:
        checks += [*_locks(snapshot), *_reservations(reservations.report(reply_timeout))]
    bad = {"error", "warning"} if options.strict else {"error"}
    healthy = not any(check.result in bad for check in checks)
    if options.json:
        write_json(out, {"healthy": healthy, "checks": [asdict(check) for check in checks], **_figures(checkup)})
    else:
        colours = {"error": options.style.ERROR, "warning": options.style.WARNING, "ok": options.style.SUCCESS}
        rows = [(check.result, check.name, check.text) for check in checks]
        write_table(out, ("", "check", "finding"), rows, colours=colours)
    results = Counter(check.result for check in checks)
    summary = f"errors: {results['error']}, warnings: {results['warning']}"
    if not healthy:
        raise failure(summary, ExitCode.FAILED if checkup.connected else ExitCode.UNAVAILABLE)
    if not options.json:
        write_line(out, summary)


def _incidents(out: Output, reply_timeout: float, *, json: bool) -> None:
    """Write what needs attention, the worst first. The exit code is that of the worst cause."""
    report = incidents.report(reply_timeout, sure=True)
    present = report["incidents"]
    if json:
        write_json(out, report)
    for number, incident in enumerate(() if json else present, 1):
        write_line(out, f"{number}. {incident['title']}.")
        if number <= MAX_EXPLAINED:
            write_line(out, f"   {incident['explanation']}")
        write_line(out, f"   -> {incident['remedy']}")
        for command in incident["commands"]:
            write_line(out, f"   $ {command}")
    if present:
        cause = present[0]["cause"]
        status = ExitCode.UNAVAILABLE if cause == "quorum" else ExitCode[cause.upper()]
        raise failure(f"{len(present)} incidents. First: {present[0]['title']}", status)
    if not report["healthy"]:
        raise failure(report["problem"], ExitCode.UNAVAILABLE)
    if not json:
        write_line(out, f"Nothing needs attention: {report['locks']} locks.")


def _versions() -> Iterator[Check]:
    known = [f"Python {platform.python_version()}"]
    for name in ("django-zklock", "Django", "kazoo", "celery"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            known.append(f"{name} {metadata.version(name)}")
    yield Check("versions", "info", ", ".join(known))


def _ensemble(reply_timeout: float) -> Iterator[Check]:
    report = inspection.ensemble(reply_timeout=reply_timeout, max_age=0)
    for server in report.servers:
        if not server.problem:  # else it is among the findings
            latency = f", {server.milliseconds} ms on average" if server.milliseconds else ""
            text = f"{server.address}: {server.role}, ZooKeeper {server.version}{latency}"
            yield Check("server", "ok" if server.serves else "warning", text)
    for finding in report.findings:
        yield Check("ensemble", finding.result, finding.text)


def _connection(config: Config, checkup: CheckupResult) -> Iterator[Check]:
    if not checkup.connected:
        yield Check("connection", "error", checkup.problem)
        return
    text = f"to {checkup.server} within {checkup.connect_time * 1000:.0f} ms, session {session_hex(checkup.session_id)}"
    yield Check("connection", "ok", text)
    yield Check("address", "info", config.url_for_log)
    if checkup.problem:
        yield Check("answers", "error", checkup.problem)
    if abs(checkup.timeout - config.session_timeout) < 0.01:
        yield Check("session timeout", "ok", f"{checkup.timeout:g} s, as requested")
    else:
        text = f"{config.session_timeout:g} s requested, {checkup.timeout:g} s negotiated"
        yield Check("session timeout", "warning", f"{text}: the server allows 2 to 20 of its ticks")


def _speed(checkup: CheckupResult) -> Iterator[Check]:
    for name, times in (("read", checkup.reads), ("write", checkup.writes)):
        if times:
            worst = max(times)
            text = f"median {statistics.median(times) * 1000:.2f} ms, worst {worst * 1000:.2f} ms of {len(times)}"
            yield Check(name, "warning" if worst > checkup.timeout * SLOW_SHARE else "ok", text)


def _rights(config: Config, checkup: CheckupResult) -> Iterator[Check]:
    if checkup.refused:
        yield Check("rights", "error", f"this client may not {checkup.refused}")
    else:
        yield Check("rights", "ok", f"this client may create, list and delete below {config.base}")
    if checkup.base_acl is not None:
        text = ", ".join(":".join(entry) for entry in checkup.base_acl)
        open_to_all = any(entry[:2] == _WORLD and set(entry[2]) & set("wcda") for entry in checkup.base_acl)
        if open_to_all and config.acl != "open":
            text += f": any client may change {config.base}, though ACL in ZKLOCK is not 'open'"
            yield Check("access list", "warning", text)
        else:
            yield Check("access list", "info" if open_to_all else "ok", text)


def _locks(snapshot: Snapshot) -> Iterator[Check]:
    if snapshot.problem:
        yield Check("locks", "error", snapshot.problem)
    idle = sum(lock.idle_for is not None for lock in snapshot.locks)
    kept = f", {idle} of them kept for the next user" if idle else ""
    yield Check("locks", "info", f"{snapshot.total} held or waited for{kept}")
    for lock in snapshot.locks:
        if lock.problem:
            yield Check("queue", "error", f"{lock.key}: {lock.problem}")
        if lock.own_limits:
            yield Check("limits", "warning", f"{lock.key}: {different_limits(lock)}")
        for contender in (*lock.holders, *lock.waiters):
            orphan = _why_orphan(contender)
            if orphan:
                yield Check("orphan", "warning", f"{lock.key}: {contender.name} {orphan}")
    for cycle in snapshot.cycles:
        yield Check("deadlock", "error", cycle_text(cycle))
    for text in snapshot.skipped:
        yield Check("skipped", "info", text)


def _reservations(report: reservations.ReservationReport) -> Iterator[Check]:
    if report.total or report.problem:
        yield Check("reservations", "info", f"{report.total} of unique tasks. {report.problem}".rstrip())
    for key in report.unreadable:
        yield Check("reservation", "error", f"{key}: cannot be read, so this task is not sent")
    if report.dead:
        listed = ", ".join(report.dead[:MAX_DEAD])
        more = f" and {len(report.dead) - MAX_DEAD} more" if len(report.dead) > MAX_DEAD else ""
        yield Check("reservation", "info", f"dead, so the next publisher takes it over: {listed}{more}")


def _why_orphan(contender: ContenderInfo) -> str:
    if not contender.session_id:
        # An operator hold needs no process.
        return "" if contender.operator else "belongs to no session, so nothing deletes it"
    if contender.client == "unknown":
        return f"belongs to an unknown program ({process_of(contender)})"
    return ""


def _figures(checkup: CheckupResult) -> dict[str, Any]:
    return {
        "connect_seconds": checkup.connect_time if checkup.connected else None,
        "read_seconds": statistics.median(checkup.reads) if checkup.reads else None,
        "write_seconds": statistics.median(checkup.writes) if checkup.writes else None,
        "session_timeout": checkup.timeout or None,
    }
