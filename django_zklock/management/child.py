"""Start a program that ends with this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

#: A program that replaces itself by the command with exec, so the pid stays. Before that it asks Linux for a SIGKILL at
#: the end of its parent (PR_SET_PDEATHSIG is 1). It checks its parent afterwards, which may have ended before. Python
#: ignores SIGPIPE and SIGXFSZ, and a program would inherit that. The exit codes are those of a shell.
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


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """
    Start a command in a session and a process group of its own; on Linux it gets a SIGKILL when this process ends.

    `options` are those of `subprocess.Popen`. Linux sends the signal when the *thread* that calls this ends, so that
    thread must live as long as the command should. If the command cannot be run, the process says so on standard error
    and ends with status 127 (not found) or 126.
    """
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid())]
    return subprocess.Popen([*starter, *command], start_new_session=True, **options)
