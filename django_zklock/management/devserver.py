"""Run a ZooKeeper for development in the foreground, without Java; it keeps everything in memory."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from django.core.management.base import CommandError

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.queue.printable import session_hex
from django_zklock.testing.server import DevServer

LOOK_INTERVAL = 0.2  # seconds between two looks at the sessions


class Output(Protocol):
    """Where lines are written to."""

    def write(self, text: str) -> object:
        """Write a line."""

    def flush(self) -> object:
        """Show it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--port", type=int, default=2181, help="0 takes any that is free (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="FILE", help="keep the tree in this file over a restart")
    parser.add_argument(
        "--tick", type=float, default=2.0, help="seconds; session timeouts are 2 to 20 of it (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="run although settings.DEBUG is off")


def run(out: Output, *, port: int, host: str, data: Path | None, tick: float, force: bool, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM."""
    if not conf.debug() and not force:
        raise CommandError(
            "settings.DEBUG is off, so this may be production, and the dev server is not made for that: it is one "
            "process without replicas, and when it ends, all locks end with it. Point ZKLOCK to a real ZooKeeper, "
            "or say --force."
        )
    server = DevServer(port, host=host, tick=tick, data=data)
    with _until_stopped() as stopped:
        try:
            server.start()
        except (OSError, ValueError) as error:
            raise CommandError(f"The dev server cannot start on {host}:{port}: {error}") from error
        try:
            _welcome(out, server, host, data)
            _report_sessions(out, server, stopped)
        finally:
            server.stop()
    _say(out, "Stopped." if data is None else f"Stopped. The tree is kept in {data}")


def _welcome(out: Output, server: DevServer, host: str, data: Path | None) -> None:
    _say(out, f"ZooKeeper's dev server listens on {server.address}. For your settings:")
    _say(out, f'\n    ZKLOCK = {{"URL": "{server.url("myproject")}"}}\n')
    if data is not None:
        _say(out, f"What is in the tree when it stops is kept in {data}")
    if not url.is_loopback(host):
        _say(out, "Other machines can reach it, and whoever does has full power over the locks.")
    _say(out, "Ctrl-C (or SIGTERM) stops it.\n")


def _report_sessions(out: Output, server: DevServer, stopped: threading.Event) -> None:
    """Write a line for each session that comes or goes; one that is shorter than a look is not seen."""
    known: set[int] = set()
    while not stopped.wait(LOOK_INTERVAL):
        sessions = {session.id: session for session in server.sessions()}
        now = time.strftime("%H:%M:%S")
        for session_id in sorted(sessions.keys() - known):
            session = sessions[session_id]
            _say(
                out,
                f"{now}  session {session_hex(session_id)} opened by {session.client}, timeout {session.timeout:g} s",
            )
        for session_id in sorted(known - sessions.keys()):
            _say(out, f"{now}  session {session_hex(session_id)} is over; {len(sessions)} left")
        known = set(sessions)


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """Have SIGINT and SIGTERM set an event instead of ending the process; in the main thread, where signals go."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, _setter(stopped)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _setter(event: threading.Event) -> Callable[[int, object], None]:
    return lambda number, frame: event.set()


def _say(out: Output, line: str) -> None:
    out.write(f"{line}\n")
    out.flush()  # also into a pipe, where somebody waits for the first line
