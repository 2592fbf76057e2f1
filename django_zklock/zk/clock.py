"""Knows the time that a lease is measured with."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """
        Return seconds on the boot-time clock, which goes on while the machine is suspended.

        The monotonic clock stops during a suspend on Linux; a lease measured with it would still look valid on
        resume, long after the server gave the lock away.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now() -> float:
        """Return seconds on the monotonic clock, the best there is on this platform."""
        return time.monotonic()
