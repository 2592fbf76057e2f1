"""Handlers of signals, set where Python allows it."""

from __future__ import annotations

import signal
from typing import Any


def set_handler(number: int, handler: Any) -> bool:
    """
    Set the handler of a signal. Return False where Python refuses it: outside the main thread.

    It refuses handlers also outside the main interpreter (uWSGI with several mounts), and if `threading` was first
    imported on another thread than the main one (embedded Python). `threading` tells of neither.
    """
    try:
        signal.signal(number, handler)
    except ValueError:
        return False
    return True
