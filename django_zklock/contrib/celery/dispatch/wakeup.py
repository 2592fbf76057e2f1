"""A pipe that wakes the thread that waits for it to be readable."""

from __future__ import annotations

import contextlib
import os


class WakeupPipe:
    """Woken by any thread, and by the processes that are forked after it was made."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reading

    def wake(self) -> None:
        """Make it readable."""
        with contextlib.suppress(BlockingIOError):  # it is full, so it will be read
            os.write(self._writing, b"!")

    def drain(self) -> None:
        """Empty it. What was done before `wake` is visible afterwards."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._reading, 4096)) == 4096:
                pass
