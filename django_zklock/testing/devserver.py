"""Run a ZooKeeper for development in the foreground. It needs no Java and keeps everything in memory."""

from __future__ import annotations

import argparse
import errno
import signal
import time
from contextlib import suppress
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.queue.escaping import session_hex
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, write_line
from django_zklock.testing.server import DevServer

EXAMPLES: Final = ("", "--port 2182")
POLL_INTERVAL: Final = 0.2  # seconds between two reads of the sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of this sub-command."""
    parser.add_argument("--port", type=int, help="0 takes any free port (default: that of your settings, or 2181)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    tick = "seconds; session timeouts are 2 to 20 ticks (default: %(default)s)"
    parser.add_argument("--tick", type=float, default=2.0, help=tick)
    parser.add_argument("--force", action="store_true", help="run although settings.DEBUG is off")


def run(out: Output, options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    if not conf.setting("DEBUG") and not options.force:
        raise failure(
            "settings.DEBUG is off, so this may be production. The dev server is one process without replicas: when "
            "it ends, all locks end with it. Point ZKLOCK to a real ZooKeeper, or use --force."
        )
    port = [*_ports_in_settings(options.host), url.DEFAULT_PORT][0] if options.port is None else options.port
    server = DevServer(port, host=options.host, tick=options.tick)
    try:
        server.start()
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = ". Change the port in ZKLOCK, or pass another one as --port." if in_use else ""
        raise failure(f"The dev server cannot start on {options.host}:{port}: {error}{hint}") from error
    for number in (signal.SIGINT, signal.SIGTERM):
        set_handler(number, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            _welcome(out, server, options.host)
            _report_sessions(out, server)
    finally:
        server.stop()
    write_line(out, "Stopped.")


def _welcome(out: Output, server: DevServer, host: str) -> None:
    if server.port in _ports_in_settings(host):
        out.write(f"The dev server listens on {server.address}, as your settings say.\n")
    else:
        out.write(f"The dev server listens on {server.address}. For your settings:\n\n")
        out.write(f'    ZKLOCK = {{"URL": "{server.url("myproject")}"}}\n\n')
    if not url.is_loopback(host):
        write_line(out, "Other machines can reach this server, and have full power over the locks.")
    out.write("Ctrl-C (or SIGTERM) stops it.\n\n")
    out.flush()


def _ports_in_settings(host: str) -> list[int]:
    """Return the ports of the servers in the settings that are on this machine, in the family of the host (IPv6?)."""
    try:
        hosts = conf.current().hosts
    except ImproperlyConfigured:
        return []
    return [port for known, port in hosts if url.is_loopback(known) and (":" in known) == (":" in host)]


def _report_sessions(out: Output, server: DevServer) -> None:
    """Write a line for each session that opens or ends. Sessions shorter than the interval are missed."""
    known: set[int] = set()
    while True:
        sessions = {session.id: session for session in server.sessions()}
        now = time.strftime("%H:%M:%S")
        for session_id in sorted(sessions.keys() - known):
            session = sessions[session_id]
            opened = f"opened by {session.client}, timeout {session.timeout:g} s"
            write_line(out, f"{now}  session {session_hex(session_id)} {opened}")
        for session_id in sorted(known - sessions.keys()):
            write_line(out, f"{now}  session {session_hex(session_id)} is over; {len(sessions)} left")
        known = set(sessions)
        time.sleep(POLL_INTERVAL)
