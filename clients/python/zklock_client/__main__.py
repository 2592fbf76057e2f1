"""Run a command under a lock: `python -m zklock_client run KEY -- COMMAND`. For shell scripts."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from zklock_client.client import KINDS, ClientOptions, ZkLockClient
from zklock_client.errors import CoordinatorUnavailable, LockBusy, LockLost, LockTimeout, ZkLockError
from zklock_client.lease import USABLE, Lease

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
CHECK_EVERY: Final = 0.05
"""Seconds between two looks at the command, the lease and the signals."""

REFUSED: Final = 1
USAGE: Final = 2  # argparse's
NO_COORDINATOR: Final = 69  # EX_UNAVAILABLE of sysexits.h
BUSY: Final = 75  # EX_TEMPFAIL, worth another try later
LOST: Final = 76
EXIT_CODES: Final = """\
The exit code is that of the command (128 + the signal that ended it), or one of these:
  1 refused; 2 wrong usage; 69 no coordinator can grant locks; 75 the lock was not free in time;
  76 the lock was lost, and the command was stopped; 126, 127 the command cannot be run
"""

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
STARTER: Final = """\
import ctypes, os, signal, sys
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
"""
A program that replaces itself by the command.

Before that it asks Linux for a SIGKILL at the end of its parent (PR_SET_PDEATHSIG is 1), which may have ended already.
Python ignores SIGPIPE and SIGXFSZ, and the command would inherit that.
"""


class _Signals:
    """The signals for the command. Until it is started, they end this program instead, and so its wait for the lock."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.is_started = False
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # one that is ignored, as under nohup, stays so
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGTSTP, lambda *_: None)  # a stopped program would lose the lock, and the command run on

    def _on_signal(self, number: int, _frame: object) -> None:
        if not self.is_started:
            raise SystemExit(128 + number)
        self.received.append(number)


def main() -> int:
    """Acquire the lock, run the command, and return the exit code."""
    words, command = _split(sys.argv[1:])
    parser = _parser()
    options = parser.parse_args(words)
    if not command:
        parser.error("give a command after --, as in: run reports -- make report")
    signals = _Signals()
    try:
        with _client(options) as client:
            return _run(client, options, command, signals)
    except (LockBusy, LockTimeout) as error:
        return _failure(error, BUSY)
    except CoordinatorUnavailable as error:
        return _failure(error, NO_COORDINATOR)
    except LockLost as error:
        return _failure(error, LOST)
    except (ZkLockError, OSError) as error:
        return _failure(error, REFUSED)
    except ValueError as error:
        return _failure(error, USAGE)


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what is before the first `--`, and what is behind it."""
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zklock_client",
        usage="%(prog)s run KEY [options] -- COMMAND",
        description="Run a command while a lock of a coordinator is held.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["run"], metavar="run")
    parser.add_argument("key", metavar="KEY", help="the name of the lock, such as report/may")
    lock: dict[str, dict[str, Any]] = {
        "wait": {"type": float, "metavar": "SECONDS", "help": "how long to wait for the lock (default: without limit)"},
        "term": {"type": float, "metavar": "SECONDS", "help": "how long the lock outlives this program (default: 10)"},
        "kind": {"choices": [*KINDS], "help": "the kind of lock (default: lock)"},
        "limit": {"type": int, "metavar": "N", "help": "the number of permits of a semaphore"},
    }
    client: dict[str, dict[str, Any]] = {
        "token-file": {"type": Path, "metavar": "FILE", "help": "a file with the bearer token of the coordinator"},
        "ca": {"metavar": "FILE", "help": "the certificates of authorities (PEM); with it, TLS is used"},
        "certificate": {"metavar": "FILE", "help": "the certificate of this client (PEM)"},
        "key": {"metavar": "FILE", "dest": "private_key", "help": "the key of that certificate (PEM)"},
        "client-id": {"metavar": "NAME", "help": "the name that operators and others in the queue see"},
        "reply-timeout": {"type": float, "metavar": "SECONDS", "help": "how long an answer may take (default: 5)"},
    }
    for name, given in {**lock, **client}.items():
        parser.add_argument(f"--{name}", **given)
    text = f"a coordinator; may be given several times (default: {DEFAULT_ADDRESS})"
    parser.add_argument("--address", action="append", metavar="HOST:PORT", help=text)
    return parser


def _client(options: argparse.Namespace) -> ZkLockClient:
    given: ClientOptions = {"ca": options.ca, "certificate": options.certificate, "key": options.private_key}
    if options.token_file is not None:
        given["token"] = options.token_file.read_text().strip()
    if options.client_id is not None:
        given["client_id"] = options.client_id
    if options.reply_timeout is not None:
        given["reply_timeout"] = options.reply_timeout
    return ZkLockClient(options.address or [DEFAULT_ADDRESS], **given)


def _run(client: ZkLockClient, options: argparse.Namespace, command: Sequence[str], signals: _Signals) -> int:
    """Run the command under the lock. Raises `LockLost` if the lock was lost before the command had ended."""
    wanted = {name: getattr(options, name) for name in ("term", "wait", "kind", "limit")}
    chosen: Any = {name: value for name, value in wanted.items() if value is not None}
    lost = threading.Event()
    with client.lock(options.key, on_lost=lambda _: lost.set(), **chosen) as lease:
        # The client calls a lease lost when a tenth of it is left. The second half of that is for the SIGKILL.
        grace = lease.remaining * (1 - USABLE) / 2
        signals.is_started = True
        process = _start(command, lease)
        while process.poll() is None and not lost.wait(CHECK_EVERY):
            while signals.received:
                _signal(process, signals.received.pop(0))
        if lost.is_set():
            _stop(process, grace)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _start(command: Sequence[str], lease: Lease) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own. It ends with this program, also if that is killed."""
    starter = [sys.executable, "-I", "-S", "-c", STARTER, str(os.getpid())]
    environment = {**os.environ, "ZKLOCK_KEY": lease.resource, "ZKLOCK_TOKEN": str(lease.token)}
    return subprocess.Popen([*starter, *command], env=environment, start_new_session=True)


def _stop(process: subprocess.Popen[bytes], grace: float) -> None:
    """Stop the whole group, with all that the command has started in it: SIGTERM, and SIGKILL after `grace` seconds."""
    _signal(process, signal.SIGTERM)
    _signal(process, signal.SIGCONT)  # a stopped process does not handle SIGTERM
    deadline = time.monotonic() + grace
    while _signal(process, 0) and time.monotonic() < deadline:
        time.sleep(CHECK_EVERY / 5)
        process.poll()
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the group of the command; return False if it has ended, or may not be signalled."""
    try:
        os.killpg(process.pid, number)
    except OSError:
        return False
    return True


def _failure(error: Exception, code: int) -> int:
    sys.stderr.write(f"{error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
