"""A process that acquires locks with long keys until it is refused, and crashes; then its servers must go on."""

from __future__ import annotations

from support.ensemble import Ensemble
from support.zoo import Zoo, eventually

FILL = """
import os
from contextlib import ExitStack
from django_zklock.exceptions import TooManyLocks
long = "/".join(["k" * 190] * 4)
with ExitStack() as stack:
    try:
        for number in range({locks}):
            stack.enter_context(zk_lock(f"{{long}}/{{number}}", timeout=30, abort_on="never"))
    except TooManyLocks as error:
        print(number, error, flush=True)
    os._exit(0)
"""


def fill_and_crash(zoo: Zoo, ensemble: Ensemble, locks: int, session_timeout: float = 4, query: str = "") -> int:
    """
    Have a process acquire so many locks, and crash when it is refused. Return how many it had.

    Its session is over when this returns.
    """
    environment = zoo.environment(session_timeout=session_timeout)["ZKLOCK_URL"] + query
    process = zoo.spawn(FILL.format(locks=locks), ZKLOCK_URL=environment)
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "Use shorter keys" in printed, (printed, errors)
    had = int(printed.split()[0])
    assert len(zoo.contenders()) == had
    eventually(lambda: not zoo.contenders(), 10 * session_timeout, "the session of the crashed process does not end")
    return had


def restart(ensemble: Ensemble) -> None:
    """Restart all servers; they read their transactions again. Raises `ServerFailed` if one cannot."""
    for server in ensemble.servers:
        server.stop()
    for server in ensemble.servers:
        server.start()
    for server in ensemble.servers:
        server.wait_ready(60)
