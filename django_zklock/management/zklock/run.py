"""
Run a command under a lock, as flock(1) does. The lock is released when the command ends.

The command has a session and a process group of its own, and ends with this process. Signals are passed on to the
group. It is stopped when the lock is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, get_args

from django_zklock.conf.arguments import AbortOn, KindOfLock
from django_zklock.core import clock, log
from django_zklock.core.execution import abort
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.queue.escaping import printable
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.lock import Lock
from django_zklock.management.arguments import add_name, integer, seconds, template_of, unless
from django_zklock.management.exit_codes import ExitCode, errors_as_exit_codes, failure
from django_zklock.management.output import LINE, Output

CHECK_INTERVAL: Final = 0.1  # seconds between two checks of the lease
KILL_TIMEOUT: Final = 1.0  # seconds to wait after SIGKILL; in a container, perhaps nothing reaps the dead processes
STOP_INTERVAL: Final = 0.02  # seconds between two checks whether a stopped command has ended
GRACE_SHARE: Final = 0.25  # of the session timeout; no other process gets a lost lock in twice that time

_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TIME: Final[dict[str, Any]] = {"type": seconds, "metavar": "TIME"}
_WAIT: Final = {**_TIME, "type": unless("forever", seconds)}
_LOCK_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeout": {**_WAIT, "help": "how long to wait for the lock, or forever; 0: not at all"},
    "abort_on": {"choices": get_args(AbortOn), "help": "when to stop the command"},
    "kind": {"choices": get_args(KindOfLock), "help": "the side of a read-write lock"},
    "limit": {"type": unless("none", integer()), "metavar": "N", "help": "how many may run at a time, or none"},
    "max_hold": {**_TIME, "help": "stop the command when it has run for so long"},
    "warn_after": {**_TIME, "help": "log a warning when the command has run for so long"},
    "min_hold": {**_TIME, "help": "no other process gets the lock for so long, even if the command has ended"},
}
"""The options of the lock. If one is not given, the settings of the lock decide."""
# A program that replaces itself by the command with exec, so the pid stays. Before that it asks Linux for a SIGKILL at
# the end of its parent (PR_SET_PDEATHSIG is 1). It checks its parent afterwards, which may have ended before. Python
# ignores SIGPIPE and SIGXFSZ, and a program would inherit that. The exit codes are those of a shell.
_STARTER: Final = """\
import os, signal, sys
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]!r} cannot be run: {error.strerror}.\\n")
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


class CommandLock(Lock):
    """The lock of a command, which others see as such."""

    _lasts = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="the command and its arguments, after --")
    for name, given in _LOCK_OPTIONS.items():
        text = f"{given['help']} (default: the lock's own)"
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **{**given, "help": text})
    code: dict[str, Any] = {"type": integer(0, 255), "default": int(ExitCode.BUSY), "metavar": "N"}
    text = "the exit code if the lock was not acquired (default: %(default)s)"
    parser.add_argument("-E", "--conflict-exit-code", **code, help=text)
    text = "time from SIGTERM to SIGKILL when the lock is lost (default: a quarter of the session timeout)"
    parser.add_argument("--kill-after", **_TIME, help=text)
    parser.add_argument("--json", action="store_true", help="write a report to standard error, as JSON")


def run(out: Output, options: argparse.Namespace) -> None:
    """Acquire the lock, run the command, and exit with its status."""
    if not options.command:
        raise failure("Give a command after --, as in: zklock run reports -- make report", ExitCode.USAGE)
    command: _Command | None = None
    receivers: list[Callable[[int], object]] = []
    waited = 0.0
    with _signals_to(receivers), errors_as_exit_codes(busy=options.conflict_exit_code):
        lock = _lock(options)
        started = clock.now()
        try:
            with lock as hold:
                waited = clock.now() - started
                default = process.current().timeout * GRACE_SHARE
                grace = default if options.kill_after is None else options.kill_after
                command = _Command(options.command, hold, grace)
                receivers.append(command.on_signal)
                command.run()
        except LockLost:
            if command is None:
                raise
            # The command has ended by now.
    _report(command, waited, as_json=options.json)


def _lock(options: argparse.Namespace) -> Lock:
    """Return the lock. Raises `ValueError` for wrong options."""
    program = os.path.basename(options.command[0])
    lock = CommandLock(
        template_of(options.name),
        fields=options.fields,
        atomic=False,
        **{option: value for option, value in vars(options).items() if option in _LOCK_OPTIONS},
        what=f"run: {program}",
        about={"command": program},
    )
    lock.key  # noqa: B018 - checks all options
    return lock


def _report(command: _Command, waited: float, *, as_json: bool) -> None:
    """Report how the command ended, and exit with its status."""
    key = command.hold.key
    log.flush(process.LOG_TIMEOUT)  # the records of the loss come before the report
    if as_json:
        report = {
            "lock": key,
            "token": str(command.hold.token),  # 64 bits; numbers in JavaScript have 53
            "waited": round(waited, 3),
            "seconds": round(command.seconds, 3),
            "status": command.status,
            "lost": command.lost,
        }
        print(json.dumps(report), file=sys.stderr, flush=True)
    if command.lost and command.must_stop:
        raise failure(f"The lock {key!r} was lost: {command.lost}. The command was stopped.", ExitCode.LOST)
    if command.lost:
        text = f"The lock {key!r} was lost while the command ran; the policy let it finish: {command.lost}."
        print(printable(text, LINE), file=sys.stderr)
    if command.status:
        raise SystemExit(command.status)


class _Command:
    """The command under the lock."""

    def __init__(self, arguments: Sequence[str], hold: Hold, grace: float) -> None:
        self.hold = hold
        self.status = 0
        self.lost = ""  # why the lock was lost, if it was
        self.seconds = 0.0
        self._arguments = arguments
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []  # the signals that came while the process was started

    @property
    def must_stop(self) -> bool:
        """Whether a loss of the lock stops the command: by its policy, or because `max_hold` is over."""
        held = held_of(self.hold)
        return held.policy.stops_at(held.grant)

    @abort.shielded
    def run(self) -> None:
        """Run the command to its end. An abort of this block must wait for that, so the method is shielded."""
        started = clock.now()
        process = _start(
            self._arguments,
            stdin=subprocess.DEVNULL if _in_background() else None,
            env={**os.environ, "ZKLOCK_KEY": self.hold.key, "ZKLOCK_TOKEN": str(self.hold.token)},
        )
        self._process = process
        for number in self._early:
            self._signal(number)
        try:
            while process.poll() is None and not self.lost:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CHECK_INTERVAL)
                if self.must_stop:
                    self.lost = self._why_lost()
        finally:
            if self.lost or process.poll() is None:
                self._stop(process)
        self.status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        self.lost = self.lost or self._why_lost()
        self.seconds = clock.now() - started

    def _why_lost(self) -> str:
        """Return why the lock is lost, or an empty string. The guard of the block makes a suspended lock a lost one."""
        return held_of(self.hold).grant.why_invalid() or ""

    def on_signal(self, number: int) -> None:
        """Pass a signal on to the process group of the command; in a signal handler."""
        if self._process is None:
            self._early.append(number)
        elif self._process.returncode is None:
            self._signal(number)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop the whole group, with all that the command has started in it: SIGTERM, and SIGKILL after the grace."""
        for number, grace in ((signal.SIGTERM, self._grace), (signal.SIGKILL, KILL_TIMEOUT)):
            deadline = clock.now() + grace
            self._signal(number)
            self._signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
            while self._signal(0) and clock.now() < deadline:
                time.sleep(STOP_INTERVAL)
                process.poll()
        process.wait()

    def _signal(self, number: int) -> bool:
        """Signal the group; return False if it has ended, or may not be signalled."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            return False
        return True


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """
    Start a command in a session and a process group of its own; on Linux it gets a SIGKILL when this process ends.

    `options` are those of `subprocess.Popen`. Linux sends the signal when the *thread* that calls this ends, so that
    thread must live as long as the command should. If the command cannot be run, the process says so on standard error
    and ends with status 127 (not found) or 126.
    """
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid())]
    return subprocess.Popen([*starter, *command], start_new_session=True, **options)


@contextmanager
def _signals_to(receivers: Sequence[Callable[[int], object]]) -> Iterator[None]:
    """
    Give signals to the receivers. While there is none, they end this process, as usual.

    Ctrl-Z is ignored: a stopped process would lose the lock, and the command would run on.
    """

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGTSTP:
            return
        if not receivers:
            raise SystemExit(128 + number)
        for receiver in receivers:
            receiver(number)

    before: dict[int, Any] = {}
    try:
        for number in (*_PASSED_ON, signal.SIGTSTP):
            previous = signal.getsignal(number)
            # One that is ignored, as under nohup, stays so. None was not set from Python, and could not be restored.
            if previous not in (signal.SIG_IGN, None) and set_handler(number, handle):
                before[number] = previous
        yield
    finally:
        for passed_on, handler in before.items():
            set_handler(passed_on, handler)


def _in_background() -> bool:
    """
    Return whether standard input is a terminal, and this process is a background job there.

    A background job that reads is stopped by the terminal. The command has a session of its own, so the terminal does
    not stop it: it would take the shell's input.
    """
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False
