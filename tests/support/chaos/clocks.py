"""Clocks that jump under a running process, and processes whose monotonic clock has another origin."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.chaos.preload import ToolFailed, compiled, preloading

if TYPE_CHECKING:
    from typing_extensions import Self

SHIFTS = struct.Struct("=qq")  # nanoseconds: of the wall clock, of the boot-time clock


class ClockShim:
    """
    The wall clock and the boot-time clock of processes that are started with `env`, for the length of a with block.

        with ClockShim() as clocks:
            process = subprocess.Popen([...], env={**os.environ, **clocks.env})
            clocks.jump(realtime=3600)         # an administrator sets the clock
            with clocks.suspended(process.pid, 100):
                ...                            # the machine sleeps for 100 s; both clocks counted them

    The monotonic clock is left alone: it is the one that histories are written by, and it does not count a suspend.
    This process's own clocks do not jump.
    """

    def __init__(self) -> None:
        library = compiled(Path(__file__).with_name("clocks.c"))
        self._folder = tempfile.TemporaryDirectory(prefix="zklock-clocks-")
        shifts = Path(self._folder.name) / "shifts"
        shifts.write_bytes(SHIFTS.pack(0, 0))
        with shifts.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SHIFTS.size)
        self.env = {**preloading(library), "CLOCKSHIFT": str(shifts)}

    def jump(self, *, realtime: float = 0.0, boottime: float = 0.0) -> None:
        """Move clocks by so many seconds, from where they are. The boot-time clock cannot go back."""
        if boottime < 0:
            raise ValueError("the boot-time clock cannot go back")
        before = SHIFTS.unpack(self._map[:])
        moved = (value + round(by * 1e9) for value, by in zip(before, (realtime, boottime), strict=True))
        self._map[:] = SHIFTS.pack(*moved)

    @contextlib.contextmanager
    def suspended(self, pid: int, seconds: float) -> Iterator[None]:
        """
        Stop a process as a sleeping machine would, and let it find `seconds` more on both clocks when it goes on.

        The time that the block takes is passed too, on all clocks. A lease that should have run out meanwhile for
        the others as well needs a block that takes that long.
        """
        os.kill(pid, signal.SIGSTOP)
        try:
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                os.sched_yield()
            yield
        finally:
            self.jump(realtime=seconds, boottime=seconds)
            os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self._prove()
        return self

    def __exit__(self, *about: object) -> None:
        self._map.close()
        self._folder.cleanup()

    def _prove(self) -> None:
        """See that this Python asks the C library for the time; one that asks the kernel would see nothing of it."""
        script = "import time; t = time.clock_gettime; print(time.time(), t(time.CLOCK_BOOTTIME), time.monotonic())"
        self._map[:] = SHIFTS.pack(10**15, 10**16)
        said = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **self.env},
        )
        self._map[:] = SHIFTS.pack(0, 0)
        read = [float(word) for word in said.stdout.split()]
        true = [time.time() + 1e6, time.clock_gettime(time.CLOCK_BOOTTIME) + 1e7, time.monotonic()]
        if len(read) != 3 or any(abs(first - other) > 1000 for first, other in zip(read, true, strict=True)):
            raise ToolFailed(f"the clocks of {sys.executable} cannot be moved: {said.stdout}{said.stderr}")
