"""A server that tests start from Debian's package. It has its own directory and ends with the tests."""

from __future__ import annotations

import abc
import atexit
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import ClassVar

TIMEOUT = 60  # seconds to come up on a busy machine


class Served(abc.ABC):
    """One server for the length of a with block; on Linux it ends with this process, even when that is killed."""

    end: ClassVar[signal.Signals] = signal.SIGKILL  # at once: nobody will read its files

    def __init__(self, parent=None):
        self._directory = Path(tempfile.mkdtemp(prefix=f"zklock-{type(self).__name__.lower()}-", dir=parent))
        self._log = self._directory / "log"
        self._processes = []

    @abc.abstractmethod
    def _launch(self): ...

    @abc.abstractmethod
    def _answers(self): ...

    def __enter__(self):
        try:
            self._launch()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)
        return self

    def __exit__(self, *error):
        self.stop()

    def _start(self, command, **how):
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **how,
            )
        self._processes.append(process)

    def _wait_ready(self):
        deadline = time.monotonic() + TIMEOUT
        while not self._answers():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise AssertionError(f"{type(self).__name__} did not come up:\n{self._log.read_text()}")
            time.sleep(0.02)

    @contextlib.contextmanager
    def down(self):
        self._end()
        yield
        self._launch()
        self._wait_ready()

    def restart(self):
        with self.down():
            pass

    def _end(self):
        while self._processes:
            process = self._processes.pop()
            process.send_signal(self.end)
            process.wait(TIMEOUT)

    def stop(self):
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.stop)
