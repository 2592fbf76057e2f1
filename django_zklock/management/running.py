"""
Run a command under a lock, as flock(1) does; the lock is let go of when the command ends.

The command is a process group of its own. Signals are passed on to it; it is stopped when the lock is lost, and also
when this process is killed.
"""

from __future__ import annotations

import argparse
import errno
import json as json_format
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from django_zklock import conf
from django_zklock.conf.options import ABORT_ON, KIND, MOST_PERMITS, UNSET, Unset, is_limit
from django_zklock.exceptions import LockLost, ZkLockError
from django_zklock.execution import abort
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.protocol.grant import Grant
from django_zklock.management import durations, keeper, naming
from django_zklock.management.exits import Exit, failure, told
from django_zklock.management.printing import Output, clean

LOOK_INTERVAL: Final = 0.1  # seconds between two looks at the lease
GRACE_SHARE: Final = 0.25  # of the session timeout: a lost lock is nobody else's for at least twice as long
KEEPER_PATIENCE: Final = 5.0  # seconds beyond the grace that the keeper may take to end a command

_PASSED_ON: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM")
_ENDING: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    naming.add_name(parser)
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="what to run, with its arguments, after --")
    parser.add_argument(
        "--timeout",
        type=durations.patience,
        default=UNSET,
        metavar="TIME",
        help="how long to wait for the lock: 0 not at all, or forever (default: the lock's own, else 10 s)",
    )
    parser.add_argument(
        "-E",
        "--conflict-exit-code",
        type=_status,
        default=int(Exit.BUSY),
        metavar="N",
        help="how to exit if the lock was not to be had (default: %(default)s)",
    )
    parser.add_argument("--abort-on", choices=ABORT_ON, help="when the command is stopped (default: the lock's own)")
    parser.add_argument(
        "--kill-after",
        type=durations.seconds,
        metavar="TIME",
        help="from SIGTERM to SIGKILL, if the lock is lost (default: a quarter of the session timeout)",
    )
    parser.add_argument(
        "--kind", choices=KIND, default=UNSET, help="which side of a read-write lock (default: as code)"
    )
    parser.add_argument(
        "--limit", type=_permits, default=UNSET, metavar="N", help="how many may run at a time (default: as code)"
    )
    for option, text in (
        ("--max-hold", "stop the command when it has run for so long"),
        ("--warn-after", "log a warning when it has run for so long"),
        ("--min-hold", "nobody else gets the lock for so long, though the command has ended"),
    ):
        parser.add_argument(
            option, type=durations.seconds, default=UNSET, metavar="TIME", help=f"{text} (default: the lock's own)"
        )
    parser.add_argument("--json", action="store_true", help="write what came of it to standard error, as JSON")


def _permits(text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    if not text.isdecimal() or not is_limit(int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of permits; 1 to {MOST_PERMITS}, or none")
    return int(text)


def _status(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 255:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit status; 0 to 255")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Policy:
    """When the command is to be stopped."""

    abort_on: str
    grace: float

    @classmethod
    def of(cls, name: str, given: str | None) -> _Policy:
        options = conf.current().options_for(name)
        configured = "suspended" if isinstance(options.abort_on, Unset) else options.abort_on
        return cls(given or configured, 0.0 if isinstance(options.grace, Unset) else options.grace)

    def why_stop(self, grant: Grant) -> str | None:
        """Return why the command may go on no longer, or None."""
        if grant.overdue:  # it was asked for
            return grant.why_overdue
        if self.abort_on == "never":
            return None
        since = grant.suspect_since
        if self.abort_on == "suspended" and since is not None and time.monotonic() - since >= self.grace:
            return grant.suspect_reason
        return grant.why_invalid()


def run(
    out: Output,
    *,
    name: str,
    fields: Sequence[tuple[str, str]],
    command: list[str],
    timeout: float | Unset | None,
    conflict_exit_code: int,
    abort_on: str | None,
    kill_after: float | None,
    json: bool,
    kind: str | Unset,
    limit: int | Unset | None,
    max_hold: float | Unset,
    warn_after: float | Unset,
    min_hold: float | Unset,
    **options: Any,
) -> None:
    """Take the lock, run the command, and exit as it does."""
    if not command:
        raise failure("Say what to run, behind --, as in: zklock run reports -- make report", Exit.USAGE)
    program = os.path.basename(command[0])
    child: _Command | None = None
    waited = 0.0
    with _Signals() as signals, told(busy=conflict_exit_code):
        template = naming.template_of(name)
        policy = _Policy.of(template, abort_on)
        with _usage():
            # It is stopped from here, not by the abort of a block: that would have to strike this thread.
            lock = Lock(
                template,
                fields=dict(fields),
                timeout=timeout,
                abort_on="never",
                atomic=False,
                kind=kind,
                limit=limit,
                max_hold=max_hold,
                warn_after=warn_after,
                min_hold=min_hold,
                what=f"run: {program}",
                about={"command": program},
            )
            lock.key  # noqa: B018 - is made out of all options
        asked_at = time.monotonic()
        try:
            with lock as hold:
                waited = time.monotonic() - asked_at
                grace = hold._grant.session.timeout * GRACE_SHARE if kill_after is None else kill_after
                child = _Command(command, hold, policy, grace, signals)
                child.run()
        except LockLost:
            if child is None:
                raise
            # The time of the hold was over, and the command has ended by now.
    _end(child, waited, stops=policy.abort_on != "never" or child.hold._grant.overdue, json=json)


@contextmanager
def _usage() -> Iterator[None]:
    """Turn options that mean nothing, or contradict each other or the settings, into the message that says so."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ZkLockError):
            raise
        raise failure(str(error), Exit.USAGE) from error


def _end(child: _Command, waited: float, *, stops: bool, json: bool) -> None:
    """Say what came of it, and exit as the command did."""
    hold = child.hold
    if json:
        report = {
            "lock": hold.key,
            "token": str(hold.token),  # of 64 bits, which many readers of JSON have not
            "waited": round(waited, 3),
            "seconds": round(child.seconds, 3),
            "status": child.status,
            "lost": child.lost,
        }
        print(json_format.dumps(report), file=sys.stderr, flush=True)
    if child.error:
        status = Exit.NOT_FOUND if child.error == errno.ENOENT else Exit.NOT_RUN
        raise failure(f"{child.program} cannot be run: {os.strerror(child.error)}.", status)
    if child.lost and stops:
        raise failure(f"The lock {hold.key!r} was lost: {child.lost}. The command was stopped.", Exit.LOST)
    if child.lost:
        print(f"The lock {clean(hold.key)!r} was lost meanwhile: {clean(child.lost)}.", file=sys.stderr)
    if child.status:
        raise SystemExit(child.status)


class _Command:
    """The command, by way of its keeper."""

    def __init__(self, command: Sequence[str], hold: Hold, policy: _Policy, grace: float, signals: _Signals) -> None:
        self.status = 0
        self.error = 0  # an errno: it could not be run
        self.lost = ""  # why the lock was lost meanwhile
        self.seconds = 0.0
        self.program = command[0]
        self._command = command
        self.hold = hold
        self._policy = policy
        self._grace = grace
        self._signals = signals
        self._pid = 0
        self._over = False  # the keeper has said how the command ended

    @abort.shielded
    def run(self) -> None:
        """Run it to its end; nothing interrupts that, or the lock would be let go of before the command has ended."""
        began_at = time.monotonic()
        with _pipe() as (orders, give), _pipe() as (reports, report):
            helper = [
                sys.executable,
                "-I",
                "-S",
                str(Path(keeper.__file__)),
                str(orders.fileno()),
                str(report.fileno()),
            ]
            process = subprocess.Popen(
                [*helper, str(self._grace), *self._command],
                pass_fds=(orders.fileno(), report.fileno()),
                env={**os.environ, "ZKLOCK_KEY": self.hold.key, "ZKLOCK_TOKEN": str(self.hold.token)},
            )
            orders.close()
            report.close()
            self._signals.pass_on(give)
            try:
                self._follow(reports, give)
            finally:
                self._signals.stop_passing()
                give.close()  # if the command runs still, because something has failed here, it is to end
            process.wait()
        if not self._over and self._pid:  # somebody has killed the keeper
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        self.lost = self.lost or self.hold._grant.why_invalid() or ""
        self.seconds = time.monotonic() - began_at

    def _follow(self, reports: FileIO, give: FileIO) -> None:
        """Read the keeper's reports to their end; have it stop the command when the lock is lost."""
        deadline: float | None = None
        unread = b""
        while deadline is None or time.monotonic() < deadline:
            readable, _, _ = select.select([reports], [], [], LOOK_INTERVAL)
            if readable:
                data = os.read(reports.fileno(), 4096)
                if not data:
                    return
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._take(line.decode(), give)
            if deadline is None and not self._over:
                reason = self._policy.why_stop(self.hold._grant)
                if reason is not None:
                    self.lost = reason
                    deadline = time.monotonic() + self._grace + KEEPER_PATIENCE
                    self._signals.stop_passing()
                    give.close()

    def _take(self, report: str, give: FileIO) -> None:
        what, _, number = report.partition(" ")
        if what == "started":
            self._pid = int(number)
        elif what == "failed":
            self.error = int(number)
        elif what == "exited":
            self._over = True
            self.status = int(number) if int(number) >= 0 else 128 - int(number)
        elif what == "stopped":
            # By Ctrl-Z, say: the shell is to get its terminal back, and wakes this process when it wants it to go on.
            os.kill(os.getpid(), signal.SIGSTOP)
            _order(give, signal.SIGCONT)


class _Signals:
    """While there is a command, its signals are passed on; before and after, they end this process in order."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._give: FileIO | None = None
        self._mute = False

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for name in _PASSED_ON:
                number = getattr(signal, name)
                if signal.getsignal(number) is not signal.SIG_IGN or name not in _ENDING:  # as nohup wants it
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self, give: FileIO) -> None:
        """Pass them on as orders to the keeper."""
        self._give = give

    def stop_passing(self) -> None:
        """Pass on no more; nothing may tear what is to be done now."""
        self._mute = True

    def _handle(self, number: int, frame: object) -> None:
        if self._mute:
            return
        if self._give is not None:
            _order(self._give, number)
        elif signal.Signals(number).name in _ENDING:
            raise SystemExit(128 + number)


def _order(give: FileIO, number: int) -> None:
    with suppress(OSError, ValueError):  # the keeper is gone, or was told to stop the command
        give.write(bytes([number]))


@contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """Make a pipe; close what is left open of it at the end."""
    reading, writing = os.pipe()
    with FileIO(reading, "r") as readable, FileIO(writing, "w") as writable:
        yield readable, writable
