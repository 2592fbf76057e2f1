"""
Starts one command in a process group of its own, and sees to it that the group ends with whoever wanted it.

A program of its own, which `manage.py zklock run` starts: it lives on when that is killed, even by SIGKILL, and then
ends the command, which would go on without its lock otherwise. It imports the standard library only, as it is up in
milliseconds so, and nothing of this package.

It reads orders, each a byte: a signal for the group. At their end it stops the group: SIGTERM, after the grace
SIGKILL. It writes lines: `started PID`, `failed ERRNO`, `stopped`, `exited STATUS` (negative: by that signal).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_KEEPER = os.getpid()
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_PAUSE = 0.02  # seconds between two looks whether the group is gone
# They reach the keeper when they reach its whole group, from the terminal or from `kill`; they are the command's.
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


class Keeper:
    """One command."""

    def __init__(self, orders: int, reports: int, grace: float) -> None:
        self._orders = orders
        self._reports = reports
        self._grace = grace
        os.set_inheritable(orders, False)  # the command is to have neither, or it would keep them open
        os.set_inheritable(reports, False)
        self._pid = 0
        self._foreground = False  # whether the command has the terminal, when it runs
        self._wakeups, wakeup = os.pipe()
        os.set_blocking(self._wakeups, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._ignored_before = {
            number for number in _IGNORED if signal.signal(number, signal.SIG_IGN) == signal.SIG_IGN
        }

    def run(self, command: list[str]) -> None:
        """Run the command to its end."""
        self._foreground = _has_terminal()
        self._pid = os.fork()
        if self._pid == 0:
            self._become(command)
        self._to_group_of_its_own()
        self._report(f"started {self._pid}")
        status = self._keep()
        if self._foreground:
            _give_terminal(os.getpgrp())
        self._report(f"exited {status}")

    def _become(self, command: list[str]) -> None:
        try:
            self._pid = os.getpid()
            _die_with_parent()
            self._to_group_of_its_own()
            # What was ignored stays so, as nohup wants it; but for SIGPIPE, which Python itself ignores.
            for number in {*_IGNORED, signal.SIGCHLD} - (self._ignored_before - {signal.SIGPIPE}):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
        except OSError as error:
            self._report(f"failed {error.errno}")
        finally:
            os._exit(127)

    def _to_group_of_its_own(self) -> None:
        """Make the group, in parent and child, as either may be first to need it."""
        try:
            os.setpgid(self._pid, self._pid)
        except OSError:
            return  # the other one has done so, and the command runs already
        if self._foreground:
            _give_terminal(self._pid)

    def _keep(self) -> int:
        while True:
            ready, _, _ = select.select([self._orders, self._wakeups], [], [])
            if self._wakeups in ready:
                os.read(self._wakeups, 512)
            status = self._look()
            if status is not None:
                return status
            if self._orders in ready:
                orders = os.read(self._orders, 512)
                if not orders:
                    return self._stop()
                for number in orders:
                    self._pass_on(number)

    def _look(self) -> int | None:
        """Return how the command has ended, None if it has not."""
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            if self._foreground:
                _give_terminal(os.getpgrp())
            self._report("stopped")
            return None
        return os.waitstatus_to_exitcode(status)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCONT and self._foreground and _has_terminal():
            _give_terminal(self._pid)
        self._signal(number)

    def _stop(self) -> int:
        """End the whole group; what the command has started ends with it."""
        status = None
        deadline = time.monotonic() + self._grace
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
        while time.monotonic() < deadline:
            if status is None:
                status = self._look()
            if status is not None and not self._signal(0):
                return status
            time.sleep(_PAUSE)
        self._signal(signal.SIGKILL)
        while status is None:
            status = self._look()
            time.sleep(_PAUSE)
        return status

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._pid, number)
        except OSError:
            return False  # there is none of the group left, or none that may be told
        return True

    def _report(self, line: str) -> None:
        try:
            os.write(self._reports, f"{line}\n".encode())
        except OSError:
            pass  # nobody is there to read it any more


def _die_with_parent() -> None:
    """Have the kernel end this process when the keeper dies; only Linux can."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only here

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != _KEEPER:
            os._exit(127)  # it has died before


def _has_terminal() -> bool:
    """Tell whether standard input is a terminal, and this process in its foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _give_terminal(group: int) -> None:
    """Put a group into the foreground of the terminal; with SIGTTOU ignored, or this would stop the process."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass  # the terminal is gone
    finally:
        signal.signal(signal.SIGTTOU, before)


if __name__ == "__main__":
    Keeper(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).run(sys.argv[4:])
