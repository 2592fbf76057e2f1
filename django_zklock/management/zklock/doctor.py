"""Check the ensemble, the locks and the fences. The exit code tells a probe whether all is well."""

from __future__ import annotations

import argparse
import functools
import os
import platform
import socket
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections

from django_zklock import conf, inspection
from django_zklock.conf import Config
from django_zklock.contrib.celery.unique import reservations
from django_zklock.fencing import regressions
from django_zklock.inspection import ContenderInfo, Snapshot
from django_zklock.management.arguments import add_answer
from django_zklock.management.checkup import CheckupResult, check_up
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import Output, deadlock, different_limits, process_of, write_json, write_table
from django_zklock.queue.escaping import session_hex
from django_zklock.zk import process

SLOW_SHARE: Final = 0.05  # of the session timeout; slower writes may let leases end
CLOCK_SHARE: Final = 0.25  # of the session timeout; with a larger difference the times of locks mislead
MAX_DEAD: Final = 5  # dead reservations that are listed
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
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="reads and writes to time (default: %(default)s)"
    )
    parser.add_argument("--strict", action="store_true", help="fail on warnings, too")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    """Run the checks and report them."""
    reply_timeout = options.reply_timeout
    with errors_as_exit_codes():
        config = conf.current()
        found = check_up(process.current(), max(1, min(options.rounds, 1000)), reply_timeout)
        snapshot = (
            inspection.snapshot(reply_timeout=reply_timeout, max_age=0, max_waiters=50) if found.connected else None
        )
    checks = [*_versions(), *_ensemble(reply_timeout), *_connection(config, found)]
    if found.connected:
        checks += [*_speed(found), *_rights(config, found)]
    if snapshot is not None:
        checks += [*_locks(snapshot), *_reservations(reservations.report(reply_timeout)), *_fences()]
    bad = {"error", "warning"} if options.strict else {"error"}
    healthy = not any(check.result in bad for check in checks)
    if options.json:
        write_json(out, {"healthy": healthy, "checks": [asdict(check) for check in checks], **_figures(found)})
    else:
        write_table(out, ("", "check", "finding"), [(each.result, each.name, each.text) for each in checks])
    if not found.connected:
        raise failure(found.problem, ExitCode.UNAVAILABLE)
    if not healthy:
        raise failure("At least one check has failed.")


def _versions() -> Iterator[Check]:
    names = ("django-zklock", "Django", "kazoo", "celery")
    known = ", ".join(f"{name} {version}" for name in names if (version := _version(name)))
    yield Check("versions", "info", f"Python {platform.python_version()}, {known}")


def _ensemble(reply_timeout: float) -> Iterator[Check]:
    found = inspection.ensemble(reply_timeout=reply_timeout, max_age=0)
    for server in found.servers:
        if server.problem:
            continue  # it is among the findings
        facts = [server.role, f"ZooKeeper {server.version}"]
        if server.latency is not None:
            facts.append(f"{server.latency * 1000:.1f} ms on average")
        if server.outstanding is not None:
            facts.append(f"{server.outstanding} requests to answer")
        if server.connections is not None:
            facts.append(f"{server.connections} connections")
        yield Check("server", "ok" if server.serves else "warning", f"{server.address}: {', '.join(facts)}")
    for finding in found.findings:
        yield Check("ensemble", finding.result, finding.text)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _connection(config: Config, found: CheckupResult) -> Iterator[Check]:
    if not found.connected:
        yield Check("connection", "error", found.problem)
        return
    session = session_hex(found.session_id)
    yield Check("connection", "ok", f"to {found.server} within {found.connect_time * 1000:.0f} ms, session {session}")
    yield Check("address", "info", config.url_for_log)
    if found.problem:
        yield Check("answers", "error", found.problem)
    asked = f"{config.session_timeout:g} s requested, {found.timeout:g} s negotiated"
    if abs(found.timeout - config.session_timeout) < 0.01:
        yield Check("session timeout", "ok", f"{found.timeout:g} s, as requested")
    else:
        yield Check("session timeout", "warning", f"{asked}: the server allows 2 to 20 of its ticks")


def _speed(found: CheckupResult) -> Iterator[Check]:
    for name, times in (("read", found.reads), ("write", found.writes)):
        if times:
            median, worst = statistics.median(times), max(times)
            text = f"median {median * 1000:.2f} ms, worst {worst * 1000:.2f} ms of {len(times)}"
            slow = worst > found.timeout * SLOW_SHARE
            yield Check(name, "warning" if slow else "ok", text)
    if found.clock_ahead is not None:
        way = "ahead of" if found.clock_ahead >= 0 else "behind"
        ahead, error = abs(found.clock_ahead), found.clock_error
        text = f"the server's is {ahead:.3f} s {way} ours, within {error * 1000:.0f} ms"
        far = ahead - error > max(1.0, found.timeout * CLOCK_SHARE)
        yield Check("clock", "warning" if far else "ok", f"{text}; no lock depends on it" if far else text)


def _rights(config: Config, found: CheckupResult) -> Iterator[Check]:
    if found.refused:
        yield Check("rights", "error", f"this client may not {found.refused}")
    else:
        yield Check("rights", "ok", f"this client may create, list and delete below {config.base}")
    if found.base_acl is not None:
        text = ", ".join(":".join(entry) for entry in found.base_acl)
        open_to_all = any(entry[:2] == _WORLD and set(entry[2]) & set("wcda") for entry in found.base_acl)
        if open_to_all and config.acl != "open":
            yield Check(
                "access list",
                "warning",
                f"{text}: any client may change {config.base}, though ACL in ZKLOCK is not 'open'",
            )
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
        yield Check("deadlock", "error", deadlock(cycle))
    for note in snapshot.notes:
        yield Check("note", "info", note)


def _reservations(found: reservations.ReservationReport) -> Iterator[Check]:
    if found.total or found.problem:
        yield Check("reservations", "info", f"{found.total} of unique tasks. {found.problem}".rstrip())
    for key in found.unreadable:
        yield Check("reservation", "error", f"{key}: cannot be read, so this task is not sent")
    if found.dead:
        some = ", ".join(found.dead[:MAX_DEAD])
        more = f" and {len(found.dead) - MAX_DEAD} more" if len(found.dead) > MAX_DEAD else ""
        yield Check("reservation", "info", f"dead, so the next publisher takes it over: {some}{more}")


def _fences() -> Iterator[Check]:
    models = list(regressions.fenced_models())
    rows, sound = 0, True
    for using in connections if models else ():
        try:
            findings, reached = regressions.look(regressions.columns(models, [using]))
        except (DatabaseError, ImproperlyConfigured) as error:
            sound = False
            yield Check("fences", "warning", f"database {using} cannot be read: {error}")
            continue
        sound = sound and reached is not None
        rows += sum(finding.rows for finding in findings)
        for finding in findings:
            if finding.ahead:
                sound = False
                where, seen = f"{finding.column.label} in {using}", f"have seen tokens up to {finding.highest}"
                remedy = "Remedy: manage.py zklock fences --reset"
                text = f"{where}: {finding.ahead} rows {seen}; ZooKeeper's last transaction id is {reached}. {remedy}"
                yield Check("fences", "error", text)
    if rows and sound:
        yield Check("fences", "ok", f"{rows} rows, none of them ahead of ZooKeeper")


def _why_orphan(contender: ContenderInfo) -> str:
    if not contender.session_id:
        # An operator hold needs no process.
        return "" if contender.operator else "belongs to no session, so nothing deletes it"
    if contender.client == "unknown":
        return f"belongs to an unknown program ({process_of(contender)})"
    if contender.client == "zklock" and contender.host == _host() and contender.pid and not _is_running(contender.pid):
        return f"belongs to process {contender.pid} of this host, which has ended; it is deleted with its session"
    return ""


@functools.cache
def _host() -> str:
    return socket.gethostname()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process of another user
    return True


def _figures(found: CheckupResult) -> dict[str, Any]:
    def median(times: tuple[float, ...]) -> float | None:
        return statistics.median(times) if times else None

    return {
        "connect_seconds": found.connect_time if found.connected else None,
        "read_seconds": median(found.reads),
        "write_seconds": median(found.writes),
        "clock_ahead_seconds": found.clock_ahead,
        "session_timeout": found.timeout or None,
    }
