"""Knows how to keep the signals that end a process from striking between two steps that belong together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

_Handler: TypeAlias = "Callable[[int, FrameType | None], Any] | int | signal.Handlers"

ENDINGS = (signal.SIGTERM, signal.SIGINT)


class HoldingBack:
    """
    Holds back the signals that end the process, from `begin` to `end`; a second one goes through at once.

    Only a main thread is ever struck, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._struck: list[int] = []

    def begin(self) -> None:
        """Hold them back from now on; harmless when they are."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in ENDINGS:
            handler = signal.getsignal(number)
            if handler is not None:  # else it was not set from Python, and could not be put back
                self._before[number] = handler
                signal.signal(number, self._note)

    def end(self) -> None:
        """Put the handlers back, and deliver what was held back."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        struck, self._struck = self._struck, []
        for number in struck:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._struck.append(number)
        if len(self._struck) > 1:
            self.end()
