"""
Measure how long work continues after its connection was cut, for each kind of work that can be aborted.

The work runs in a process of its own (`main`, in the child), the proxy that is cut in the test's (`measure`). So the
one does not compete with the other for an interpreter, and both read one monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost
from django_zklock.signals import lock_lost
from support.proxy import Proxy
from support.work import compute, sleep_in_pieces
from support.zoo import Zoo, eventually

GEVENT = "from gevent import monkey; monkey.patch_all()"
LONG = 30.0  # seconds of work, which nobody waits for
CROWD = 3  # threads or greenlets that work at once, each under a lock of its own

# --- the ways to work: what stops them, and what runs one round of them in the child ----------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of work."""

    how: str
    """The way of the abort, as in a receipt."""
    work: Callable[[float], None] | None
    """The work under the lock, for some seconds; None for a task, which sleeps."""
    crowd: int = 0
    """How many threads do it at once; 0: the main thread does."""
    first: str = ""
    """Code that the process runs before all else."""


WAYS = {
    "task sleeps": Way("task", None),
    "main thread sleeps": Way("signal", time.sleep),
    "main thread computes": Way("signal", compute),
    "threads compute": Way("thread", compute, crowd=CROWD),
    "thread sleeps in small pieces": Way("thread", sleep_in_pieces, crowd=1),
    "greenlets sleep": Way("greenlet", time.sleep, crowd=CROWD, first=GEVENT),
}


# --- in the test ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one way to work."""

    seconds: list[float]
    """From each cut to the exception inside the work."""
    receipts: list[dict[str, Any]]
    """The receipts of `lock_lost`: how, delivered, swallowed, stopped_after."""


def measure(zoo: Zoo, name: str, rounds: int) -> Measured:
    """Have a process work under locks and cut its connection, so many times."""
    way = WAYS[name]
    script = "from support.chaos.latency import main; main()"
    with Proxy(zoo.address) as proxy:
        child = zoo.spawn(script, name, str(rounds), first=way.first, hosts=proxy.address)
        try:
            measured = _direct(child.stdout, proxy, max(1, way.crowd), rounds)
            _, errors = child.communicate(timeout=20)  # it closes its session, so that nothing is left in the queues
        except EOFError:
            raise RuntimeError(f"{name}: {child.communicate()[1]}") from None
        finally:
            child.kill()
        if child.returncode:
            raise RuntimeError(f"{name}: {errors}")
        return measured


def _direct(stdout: Any, proxy: Proxy, crowd: int, rounds: int) -> Measured:
    seconds: list[float] = []
    for _ in range(rounds):
        for _ in range(crowd):
            assert _next(stdout) == "held"
        time.sleep(random.uniform(0.02, 0.06))  # the cut comes at any moment of the work, not at its first step
        cut_at = time.monotonic()
        assert proxy.cut_all() == 1
        seconds += [_next(stdout) - cut_at for _ in range(crowd)]
    return Measured(seconds, _next(stdout))


def _next(stdout: Any) -> Any:
    line = stdout.readline()
    if not line:
        raise EOFError("the process ended")
    return json.loads(line)


# --- in the child -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Work as the arguments say (the way, how many rounds); tell of each hold, each exception, and the receipts."""
    receipts: list[Any] = []

    def receive(receipt: Any, **_: Any) -> None:
        receipts.append(receipt)

    lock_lost.connect(receive)
    way, rounds = WAYS[sys.argv[1]], int(sys.argv[2])
    for _ in range(rounds):
        stopped: list[float] = []
        if way.work is None:
            asyncio.run(_work_in_task(stopped))
        elif way.crowd:
            threads = [threading.Thread(target=_work, args=(f"{n}", way.work, stopped)) for n in range(way.crowd)]
            for thread in threads:  # greenlets, where gevent has patched them
                thread.start()
            for thread in threads:
                thread.join()
        else:
            _work("main", way.work, stopped)
        assert len(stopped) == max(1, way.crowd), "an abort has not reached its work"
        for moment in stopped:
            _tell(moment)
    with zk_lock("end", timeout=20):
        pass  # connected again after the last cut, so that all is released before this process ends
    eventually(lambda: len(receipts) >= rounds * max(1, way.crowd), 10, "not every abort has its receipt")
    names = ("how", "delivered", "swallowed", "stopped_after")
    _tell([{name: getattr(receipt, name, None) for name in names} for receipt in receipts])


def _tell(something: Any) -> None:
    sys.stdout.write(json.dumps(something) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _noted(stopped: list[float]) -> Iterator[None]:
    """Note when the work in the block is stopped."""
    try:
        _tell("held")  # a thread that has told may wait for its next turn, and get the exception at once
        yield
    except BaseException:
        stopped.append(time.monotonic())
        raise


def _work(key: str, work: Callable[[float], None], stopped: list[float]) -> None:
    with contextlib.suppress(LockLost), zk_lock(key, timeout=20), _noted(stopped):
        work(LONG)


async def _work_in_task(stopped: list[float]) -> None:
    with contextlib.suppress(LockLost):
        async with zk_lock("task", timeout=20):
            with _noted(stopped):
                await asyncio.sleep(LONG)
