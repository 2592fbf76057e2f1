"""Check the connection, the servers, the rights and the locks, and say what was found at each."""

from __future__ import annotations

import argparse
import contextlib
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from django_zklock import conf, inspection
from django_zklock.conf import Config
from django_zklock.core import clock
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Callback, Gateway
from django_zklock.inspection.reads import read_acl
from django_zklock.locks.requests import call
from django_zklock.management.arguments import add_answer
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_json, write_line, write_table
from django_zklock.report import servers, verdict
from django_zklock.report.formatting import different_limits, key_text, process_of
from django_zklock.report.verdict import Look

NEW: Final = " (new: no process has used it. Is it the address of your other hosts?)"
_WORLD: Final = ("world", "anyone")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    result: str
    """ "ok", "info", "warning" or "error"."""
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="fail on warnings, too")
    add_answer(parser)


def run(out: Output, options: argparse.Namespace) -> None:
    look = verdict.now(options.reply_timeout, max_age=0, max_locks=None)
    asked = [*_connection(look, options.reply_timeout)]
    checks = [*_versions(), *_servers(look.servers), *asked, *_attention(look)]
    results = Counter(check.result for check in checks)
    summary = f"errors: {results['error']}, warnings: {results['warning']}"
    status = ExitCode.OK
    if results["error"] or (options.strict and results["warning"]):
        status = ExitCode.FAILED if asked[0].result == "ok" else ExitCode.UNAVAILABLE
    elif not look.verdict.complete:
        status = ExitCode.PARTIAL
        summary += ". Not all was looked at."
    _write(out, options, checks, healthy=status is ExitCode.OK)
    if status is not ExitCode.OK:
        raise failure(summary, status)
    if not options.json:
        write_line(out, summary)


def _write(out: Output, options: argparse.Namespace, checks: Iterable[Check], *, healthy: bool) -> None:
    if options.json:
        write_json(out, {"healthy": healthy, "checks": [asdict(check) for check in checks]})
        return
    colours = {"error": options.style.ERROR, "warning": options.style.WARNING, "ok": options.style.SUCCESS}
    rows = [(check.result, check.name, check.text) for check in checks]
    write_table(out, ("", "check", "finding"), rows, colours=colours)


def _versions() -> Iterator[Check]:
    known = [f"Python {platform.python_version()}"]
    for name in ("django-zklock", "Django", "kazoo", "celery"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            known.append(f"{name} {metadata.version(name)}")
    yield Check("versions", "info", ", ".join(known))


def _servers(report: inspection.EnsembleReport) -> Iterator[Check]:
    for server in report.servers:
        if not server.problem:
            text = f"{server.address}: {server.role}, ZooKeeper {server.version}"
            yield Check("server", "ok", text)
    if report.has_quorum:
        yield Check("write", "ok", f"a quorum needed {report.write_seconds * 1000:.2f} ms for a write")
    for server in servers.unasked(report):
        yield Check("server", "warning", servers.problem_text(server))


def _attention(look: Look) -> Iterator[Check]:
    seen = look.verdict
    for incident in seen.incidents:
        shown = incident.describe()
        parts = [f"{shown['title']}.", shown["explanation"], shown["remedy"]]
        yield Check(incident.cause, incident.severity, " ".join(parts))
    for text in dict.fromkeys((*seen.unseen, *look.snapshot.skipped)):
        yield Check("skipped", "info", text)


def _connection(look: Look, reply_timeout: float) -> Iterator[Check]:
    """Yield what ZooKeeper says to this process. The first check is that of the connection."""
    config, connection = conf.current(), look.snapshot.connection
    if not look.snapshot.answers:
        yield Check("connection", "error", look.snapshot.problem)
        return
    yield Check("connection", "ok", f"to {connection.server}, session {connection.session}")
    if abs(connection.timeout - config.session_timeout) < 0.01:
        yield Check("session timeout", "ok", f"{connection.timeout:g} s, as requested")
    else:
        text = f"{config.session_timeout:g} s requested, {connection.timeout:g} s negotiated"
        yield Check("session timeout", "warning", f"{text}: the server allows 2 to 20 of its ticks")

    def ask(gateway: Gateway, done: Callback[Any]) -> None:
        read_acl(gateway, config.base, done)

    acl = call(process.current(), ask, clock.now() + reply_timeout)
    yield Check("address", "info", f"{config.url_for_log}{NEW if isinstance(acl, NodeMissing) else ''}")
    if isinstance(acl, list):
        yield _access_list(config, acl)
    elif not isinstance(acl, NodeMissing):
        yield Check("access list", "error", f"this client may not read that of the node above all locks: {acl}")
    yield from _locks(look.snapshot)


def _access_list(config: Config, acl: list[Any]) -> Check:
    text = ", ".join(":".join(entry) for entry in acl)
    open_to_all = any(entry[:2] == _WORLD and set(entry[2]) & set("wcda") for entry in acl)
    if open_to_all and config.acl != "open":
        text += f": any client may change {config.base}, though ACL in ZKLOCK is not 'open'"
        return Check("access list", "warning", text)
    return Check("access list", "info" if open_to_all else "ok", text)


def _locks(snapshot: inspection.Snapshot) -> Iterator[Check]:
    idle = sum(lock.idle_for is not None for lock in snapshot.locks)
    kept = f", {idle} of them kept for the next user" if idle else ""
    yield Check("locks", "info", f"{snapshot.total} held or waited for{kept}")
    for lock in snapshot.locks:
        if lock.own_limits:
            yield Check("limits", "warning", f"{key_text(lock.key)}: {different_limits(lock)}")
        for contender in (*lock.holders, *lock.waiters):
            if contender.session_id and contender.client == "unknown":
                text = f"{key_text(lock.key)}: {contender.name} belongs to an unknown program ({process_of(contender)})"
                yield Check("orphan", "warning", text)
