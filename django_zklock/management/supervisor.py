"""
A program that starts one command in a process group of its own, and stops the group when its caller ends.

`manage.py zklock run` starts it. If `run` is killed, even by SIGKILL, the supervisor lives on and stops the command,
which would otherwise continue without its lock. It starts in milliseconds, because it imports the standard library
only and nothing of this package.

It reads orders. Each is one byte: a signal for the group. When the pipe of the orders is closed, it stops the group
with SIGTERM, and after the grace with SIGKILL. It writes reports, one a line: `started PID`, `failed ERRNO`, `stopped`,
`exited STATUS`, where a negative status is the signal that ended the command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_SUPERVISOR = os.getpid()
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_POLL_INTERVAL = 0.02  # seconds between two checks whether the group has ended
# Signals that the terminal or `kill` sends to a whole group reach the supervisor, too. They are for the command.
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)


class Supervisor:
    """Runs one command."""

    def __init__(self, orders: int, reports: int, grace: float) -> None:
        self._orders = orders
        self._reports = reports
        self._grace = grace
        os.set_inheritable(orders, False)  # in the command, the pipes would stay open
        os.set_inheritable(reports, False)
        self._pid = 0
        self._foreground = False  # whether the command has the terminal while it runs
        self._wakeups, wakeup = os.pipe()
        os.set_blocking(self._wakeups, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._ignored_before = {
            number for number in _IGNORED if signal.signal(number, signal.SIG_IGN) == signal.SIG_IGN
        }

    def run(self, command: list[str]) -> None:
        """Run the command, and return when it has ended."""
        self._foreground = _has_terminal()
        starting, closed_by_exec = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._become(command)
        os.close(closed_by_exec)
        self._move_to_own_group()
        self._report(f"started {self._pid}")
        os.read(starting, 1)  # ends when the command runs; until then the child may ignore the signals of orders
        status = self._wait()
        if self._foreground:
            _give_terminal(os.getpgrp())
        self._report(f"exited {status}")

    def _become(self, command: list[str]) -> None:
        try:
            self._pid = os.getpid()
            _die_with_parent()
            self._move_to_own_group()
            # A signal that is ignored, as under nohup, stays ignored. SIGPIPE does not, as Python itself ignores it.
            for number in {*_IGNORED, signal.SIGCHLD} - (self._ignored_before - {signal.SIGPIPE}):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
        except OSError as error:
            self._report(f"failed {error.errno}")
        finally:
            os._exit(127)

    def _move_to_own_group(self) -> None:
        """Make the group. Both parent and child call this, as either may be the first to need it."""
        try:
            os.setpgid(self._pid, self._pid)
        except OSError:
            return  # the other process has made the group, and the command already runs
        if self._foreground:
            _give_terminal(self._pid)

    def _wait(self) -> int:
        """Follow the orders until the command has ended; return its status."""
        while True:
            ready, _, _ = select.select([self._orders, self._wakeups], [], [])
            if self._wakeups in ready:
                os.read(self._wakeups, 512)
            status = self._poll()
            if status is not None:
                return status
            if self._orders in ready:
                orders = os.read(self._orders, 512)
                if not orders:
                    return self._stop()
                for number in orders:
                    self._forward(number)

    def _poll(self) -> int | None:
        """Return the status of the command, None if it still runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            if self._foreground:
                _give_terminal(os.getpgrp())
            self._report("stopped")
            return None
        return os.waitstatus_to_exitcode(status)

    def _forward(self, number: int) -> None:
        if number == signal.SIGCONT and self._foreground and _has_terminal():
            _give_terminal(self._pid)
        self._signal(number)

    def _stop(self) -> int:
        """Stop the whole group, with all that the command has started; return the status of the command."""
        status = None
        deadline = time.monotonic() + self._grace
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        while time.monotonic() < deadline:
            if status is None:
                status = self._poll()
            if status is not None and not self._signal(0):
                return status
            time.sleep(_POLL_INTERVAL)
        self._signal(signal.SIGKILL)
        while status is None:
            status = self._poll()
            time.sleep(_POLL_INTERVAL)
        return status

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._pid, number)
        except OSError:
            return False  # the group has ended, or may not be signalled
        return True

    def _report(self, line: str) -> None:
        try:
            os.write(self._reports, f"{line}\n".encode())
        except OSError:
            pass  # the reader has ended


def _die_with_parent() -> None:
    """Let the kernel end this process when the supervisor dies. Only Linux can do that."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - slow, and used only here

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != _SUPERVISOR:
            os._exit(127)  # the supervisor has already died


def _has_terminal() -> bool:
    """Return True if standard input is a terminal, and this process is in its foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _give_terminal(group: int) -> None:
    """Put a group into the foreground of the terminal. Without SIGTTOU ignored, that would stop this process."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass  # the terminal was closed
    finally:
        signal.signal(signal.SIGTTOU, before)


if __name__ == "__main__":
    Supervisor(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).run(sys.argv[4:])
