"""Child processes that end with this one, on Linux even when it is killed, and that no Ctrl-C reaches."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Final

#: Becomes the command by exec, so that the process id stays; first asks Linux for a SIGKILL when the parent is gone
#: (PR_SET_PDEATHSIG is 1). The parent may be gone already, hence the check after it.
DIE_WITH_PARENT: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def spawn(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """
    Start a process that ends when this one does, in a session of its own: Ctrl-C in the terminal does not reach it.

    On systems other than Linux it survives a SIGKILL of this process.
    """
    tied = sys.platform == "linux" and bool(sys.executable)
    arguments = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command] if tied else command

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )

    return _Launcher.of_this_process().run(start) if tied else start()


class _Launcher:
    """
    The thread that starts the children.

    Linux sends the parent-death signal when the *thread* that made the child ends, and a test may well start an
    ensemble from a thread that ends before it. This one lasts as long as the process. A forked child gets its own.
    """

    _current: _Launcher | None = None  # guarded by _lock
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, name="zklock-launcher", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _Launcher:
        with cls._lock:
            if cls._current is None or cls._current._pid != os.getpid():
                cls._current = cls()
            return cls._current

    def run(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((job, future))
        return future.result()

    def _work(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - goes to the caller
                future.set_exception(error)
