"""Start child processes that end with this one, on Linux also when it is killed. Ctrl-C does not reach them."""

from __future__ import annotations

import functools
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from django_zklock.management import child


def spawn(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """
    Start a process that ends when this one does, in its own session: Ctrl-C in the terminal does not reach it.

    On systems other than Linux it survives a SIGKILL of this process.
    """
    start = functools.partial(
        child.start, command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    return _Launcher.of_this_process().run(start)


class _Launcher:
    """
    The thread that starts the children.

    Linux sends the parent-death signal when the *thread* that started the child ends, and tests start ensembles from
    short-lived threads. This thread lives as long as the process. A forked child gets its own.
    """

    _current: _Launcher | None = None  # guarded by _lock
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, name="zklock-launcher", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _Launcher:
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
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
            except BaseException as error:
                future.set_exception(error)
