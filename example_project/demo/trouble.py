"""Inject faults: kill a worker while it holds a lock, and stop ZooKeeper for longer than a lease."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from support.ensemble import Ensemble

from demo import books
from demo.queues import Queues
from demo.services import Site


class NoChance(RuntimeError):
    """The expected moment did not come in time."""


def kill_a_holder(site: Site, queues: Queues, skus: Sequence[str], *, within: float = 20.0) -> tuple[str, datetime]:
    """
    Kill -9 a worker's process that holds the lock of an item while somebody waits for it; return the item and the time.

    The process is stopped (SIGSTOP) before the last look, so that it cannot release the lock between look and kill.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for sku in random.sample(skus, len(skus)):
            line = queues.line(sku)
            if len(line) < 2 or not site.is_worker_child(line[0].pid):
                continue
            with suppress(ProcessLookupError):
                os.kill(line[0].pid, signal.SIGSTOP)
                if queues.line(sku)[:1] == line[:1] and len(queues.line(sku)) > 1:
                    now = datetime.now(UTC)
                    os.kill(line[0].pid, signal.SIGKILL)
                    return sku, now
                os.kill(line[0].pid, signal.SIGCONT)
        time.sleep(0.02)
    raise NoChance(f"no worker held a lock that somebody waited for, in {within:g} s")


def wait_of_the_next(sku: str, killed: datetime, *, within: float) -> float:
    """Return the seconds from a kill until the next purchase of the item."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if began := books.next_at_work(sku, killed):
            return (began - killed).total_seconds()
        time.sleep(0.05)
    raise NoChance(f"nobody bought {sku} within {within:g} s of the kill")


def stop_zookeeper(ensemble: Ensemble, queues: Queues, skus: Sequence[str], *, seconds: float) -> int:
    """Stop the server for some seconds while locks are held; return how many were."""
    deadline = time.monotonic() + 20
    while (held := sum(bool(queues.line(sku)) for sku in skus)) < 3:
        if time.monotonic() > deadline:
            raise NoChance("three locks were never held at once")
        time.sleep(0.02)
    server = ensemble.servers[0]
    server.kill()
    time.sleep(seconds)
    server.start()
    server.wait_ready()
    return held
