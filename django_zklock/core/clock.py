"""
The clock of leases, deadlines and durations.

The package measures time by this clock only. Libraries that freeze the time of a test (freezegun, time-machine) replace
`time.monotonic()`, and the wall clock. They do not replace this one, so a wait ends and a lease runs out as it should.
Dates that people read come from the wall clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

now: Callable[[], float] = (
    functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    if hasattr(time, "clock_gettime")
    else functools.partial(time.monotonic)  # in a partial, freezegun does not find it
)
"""
Return seconds on the boot-time clock, which goes on while the machine is suspended.

The monotonic clock stops during a suspend on Linux. A lease measured with it would still look valid after the resume,
long after the server gave the lock away. Where there is no boot-time clock, this is the monotonic clock.
"""
