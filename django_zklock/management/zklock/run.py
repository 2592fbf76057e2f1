"""
Run a command under a lock, as flock(1) does. The lock is released when the command ends.

The command is a process group of its own, started by `management.supervisor`. Signals are passed on to it. It is
stopped when the lock is lost, and when this process is killed.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

from django_zklock import clock
from django_zklock.conf.options import ABORT_ON, KIND, MOST_PERMITS, is_limit
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.execution import abort
from django_zklock.locks.held import held_of
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.management import supervisor
from django_zklock.management.arguments import add_name, seconds, template_of, timeout
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import Output
from django_zklock.queue.escaping import printable
from django_zklock.zk import process

POLL_INTERVAL: Final = 0.1  # seconds between two checks of the lease
GRACE_SHARE: Final = 0.25  # of the session timeout; no other process gets a lost lock in twice that time
STOP_TIMEOUT: Final = 5.0  # seconds beyond the grace in which the supervisor must have stopped the command

_FORWARDED: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM")
_ENDING: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM")


_LOCK_OPTIONS = ("timeout", "abort_on", "kind", "limit", "max_hold", "warn_after", "min_hold")
"""The options of the lock. If one is not given, the settings of the lock decide."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_name(parser)
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="the command and its arguments, after --")
    parser.add_argument(
        "--timeout",
        type=timeout,
        default=argparse.SUPPRESS,
        metavar="TIME",
        help="how long to wait for the lock; 0: not at all, or forever (default: the lock's own, else 10 s)",
    )
    parser.add_argument(
        "-E",
        "--conflict-exit-code",
        type=_status,
        default=int(ExitCode.BUSY),
        metavar="N",
        help="the exit code if the lock was not acquired (default: %(default)s)",
    )
    parser.add_argument(
        "--abort-on",
        choices=ABORT_ON,
        default=argparse.SUPPRESS,
        help="when to stop the command (default: the lock's own)",
    )
    parser.add_argument(
        "--kill-after",
        type=seconds,
        metavar="TIME",
        help="from SIGTERM to SIGKILL, if the lock is lost (default: a quarter of the session timeout)",
    )
    parser.add_argument(
        "--kind",
        choices=KIND,
        default=argparse.SUPPRESS,
        help="the side of a read-write lock (default: the lock's own)",
    )
    parser.add_argument(
        "--limit",
        type=_permits,
        default=argparse.SUPPRESS,
        metavar="N",
        help="how many may run at a time (default: the lock's own)",
    )
    for option, text in (
        ("--max-hold", "stop the command when it has run for so long"),
        ("--warn-after", "log a warning when the command has run for so long"),
        ("--min-hold", "no other process gets the lock for so long, even if the command has ended"),
    ):
        parser.add_argument(
            option, type=seconds, default=argparse.SUPPRESS, metavar="TIME", help=f"{text} (default: the lock's own)"
        )
    parser.add_argument("--json", action="store_true", help="write a report to standard error, as JSON")


def _permits(text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    if not text.isdecimal() or not is_limit(int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of permits; give 1 to {MOST_PERMITS}, or none")
    return int(text)


def _status(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit code; give 0 to 255")
    return int(text)


def run(out: Output, options: argparse.Namespace) -> None:
    """Acquire the lock, run the command, and exit with its status."""
    if not options.command:
        raise failure("Give a command after --, as in: zklock run reports -- make report", ExitCode.USAGE)
    child: _Child | None = None
    waited = 0.0
    with _ForwardedSignals() as signals, errors_as_exit_codes(busy=options.conflict_exit_code):
        lock = _lock(options)
        started = clock.now()
        try:
            with lock as hold:
                waited = clock.now() - started
                grace = options.kill_after
                if grace is None:
                    grace = process.current().timeout * GRACE_SHARE
                child = _Child(options.command, hold, grace, signals)
                child.run()
        except LockLost:
            if child is None:
                raise
            # The command has ended by now.
    _report(child, waited, as_json=options.json)


def _lock(options: argparse.Namespace) -> Lock:
    """Return the lock. Wrong options end this process with the exit code for wrong usage."""
    program = os.path.basename(options.command[0])
    try:
        lock = Lock(
            template_of(options.name),
            fields=dict(options.fields),
            atomic=False,
            **{option: value for option, value in vars(options).items() if option in _LOCK_OPTIONS},
            what=f"run: {program}",
            about={"command": program},
        )
        lock.key  # noqa: B018 - checks all options
    except ValueError as error:
        if isinstance(error, ZkLockError):
            raise
        raise failure(str(error), ExitCode.USAGE) from error
    return lock


def _report(child: _Child, waited: float, *, as_json: bool) -> None:
    """Report how the command ended, and exit with its status."""
    key = child.hold.key
    if as_json:
        report = {
            "lock": key,
            "token": str(child.hold.token),  # 64 bits; numbers in JavaScript have 53
            "waited": round(waited, 3),
            "seconds": round(child.seconds, 3),
            "status": child.status,
            "lost": child.lost,
        }
        print(json.dumps(report), file=sys.stderr, flush=True)
    if child.error:
        status = ExitCode.NOT_FOUND if child.error == errno.ENOENT else ExitCode.NOT_RUN
        raise failure(f"{child.program} cannot be run: {os.strerror(child.error)}.", status)
    if child.lost and child.must_stop:
        raise failure(f"The lock {key!r} was lost: {child.lost}. The command was stopped.", ExitCode.LOST)
    if child.lost:
        print(f"The lock {key!r} was lost meanwhile: {printable(child.lost)}.", file=sys.stderr)
    if child.status:
        raise SystemExit(child.status)


class _Child:
    """The command, run by a supervisor process."""

    def __init__(self, command: Sequence[str], hold: Hold, grace: float, signals: _ForwardedSignals) -> None:
        self.hold = hold
        self.program = command[0]
        self.status = 0
        self.error = 0  # the errno, if the command could not be run
        self.lost = ""  # why the lock was lost, if it was
        self.seconds = 0.0
        self._command = command
        self._grace = grace
        self._signals = signals
        self._pid = 0
        self._ended = False  # the supervisor has reported the command's status

    @property
    def must_stop(self) -> bool:
        """Whether a loss of the lock stops the command: by its policy, or because `max_hold` is over."""
        return held_of(self.hold).policy.abort_on != "never" or held_of(self.hold).grant.overdue

    @abort.shielded
    def run(self) -> None:
        """Run the command to its end. An abort of this block must wait for that, so the method is shielded."""
        started = clock.now()
        with _pipe() as (orders, give_orders), _pipe() as (reports, report):
            helper = [
                sys.executable,
                "-I",
                "-S",
                str(Path(supervisor.__file__)),
                str(orders.fileno()),
                str(report.fileno()),
            ]
            self._signals.forward_to(give_orders)  # the supervisor reads them when the command runs
            process = subprocess.Popen(
                [*helper, str(self._grace), *self._command],
                pass_fds=(orders.fileno(), report.fileno()),
                env={**os.environ, "ZKLOCK_KEY": self.hold.key, "ZKLOCK_TOKEN": str(self.hold.token)},
            )
            orders.close()
            report.close()
            try:
                self._follow(reports, give_orders)
            finally:
                self._signals.ignore_all()
                give_orders.close()  # if this method has failed, the supervisor stops the command
            process.wait()
        if not self._ended and self._pid:  # the supervisor was killed
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        self.lost = self.lost or held_of(self.hold).grant.why_invalid() or ""
        self.seconds = clock.now() - started

    def _follow(self, reports: FileIO, orders: FileIO) -> None:
        """Read the reports of the supervisor to their end. Let it stop the command when the lock is lost."""
        deadline: float | None = None
        unread = b""
        while deadline is None or clock.now() < deadline:
            readable, _, _ = select.select([reports], [], [], POLL_INTERVAL)
            if readable:
                data = os.read(reports.fileno(), 4096)
                if not data:
                    return
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._on_report(line.decode(), orders)
            if deadline is None and not self._ended:
                # The guard of the block applies the policy: it makes a suspended lock a lost one.
                reason = held_of(self.hold).grant.why_invalid()
                if reason is not None and self.must_stop:
                    self.lost = reason
                    deadline = clock.now() + self._grace + STOP_TIMEOUT
                    self._signals.ignore_all()
                    orders.close()

    def _on_report(self, report: str, orders: FileIO) -> None:
        event, _, number = report.partition(" ")
        if event == "started":
            self._pid = int(number)
        elif event == "failed":
            self.error = int(number)
        elif event == "exited":
            self._ended = True
            self.status = int(number) if int(number) >= 0 else 128 - int(number)
        elif event == "stopped":
            # For example by Ctrl-Z: stop this process, too, so that the shell gets its terminal back. The shell
            # continues this process when the job continues.
            os.kill(os.getpid(), signal.SIGSTOP)
            _send(orders, signal.SIGCONT)


class _ForwardedSignals:
    """Forwards signals to the command while it runs. Before that they end this process, as usual."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._orders: FileIO | None = None
        self._ignored = False

    def __enter__(self) -> _ForwardedSignals:
        if threading.current_thread() is threading.main_thread():
            for name in _FORWARDED:
                number = getattr(signal, name)
                # One that is ignored, as under nohup, stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN or name not in _ENDING:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def forward_to(self, orders: FileIO) -> None:
        """Forward signals as orders to the supervisor."""
        self._orders = orders

    def ignore_all(self) -> None:
        """Ignore all signals from now on, so that none interrupts the end."""
        self._ignored = True

    def _handle(self, number: int, frame: object) -> None:
        if self._ignored:
            return
        if self._orders is not None:
            _send(self._orders, number)
        elif signal.Signals(number).name in _ENDING:
            raise SystemExit(128 + number)


def _send(orders: FileIO, number: int) -> None:
    with suppress(OSError, ValueError):  # the supervisor has ended, or was told to stop the command
        orders.write(bytes([number]))


@contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """Open a pipe. At the end, close the ends that are still open."""
    reading, writing = os.pipe()
    with FileIO(reading, "r") as readable, FileIO(writing, "w") as writable:
        yield readable, writable
