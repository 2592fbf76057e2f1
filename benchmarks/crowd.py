"""
How a process fares with a crowd of coroutines on one key: hand-offs, memory, deadlines, a dropped connection, load.

One real ZooKeeper server, which syncs every write to disk. Each part runs in a process of its own. The rate of
hand-offs with the crowd is compared with that of eight coroutines on the same key, measured just before.

`--check` fails if a figure is over its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psutil
from support.ensemble import Ensemble

KEY = "crowd"
FEW = 8  # coroutines that hand the lock to each other where there is no crowd
HELD = 0.05  # seconds that each holds the lock under load
TIMEOUT = 5.0  # seconds that each waits for it under load

#: Part, figure, budget, and whether that is the most (or else the least) that it may be.
BUDGETS = [
    ("handoffs", "ratio", 0.9, False),
    ("handoffs", "other key, slowest (s)", 1.0, True),
    ("memory", "KiB per waiter", 6.5, True),
    ("dropped", "settled after (s)", 2.0, True),
    ("dropped", "locks lost", 0, True),
    ("deadlines", "latest (s)", 1.0, True),
    ("load 150/s", "grants per second", 19.0, False),
    ("load 150/s", "other key, slowest (s)", 1.0, True),
    ("load 300/s", "grants per second", 19.0, False),
    ("load 300/s", "other key, slowest (s)", 1.0, True),
]


async def handoffs(waiters: int) -> dict[str, float]:
    """Compare the rate of hand-offs among few waiters with that among many."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    async def pass_on(seconds: float) -> int:
        grants = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            async with zk_lock(KEY, timeout=None):
                grants += 1
        return grants

    await pass_on(0.5)
    alone = sum(await asyncio.gather(*(pass_on(5.0) for _ in range(FEW)))) / 5.0
    granted: list[float] = []

    async def once() -> None:
        async with zk_lock(KEY, timeout=None):
            granted.append(time.monotonic())

    async with zk_lock(KEY):
        crowd = await gathered(once, waiters)
        async with other_key() as slowest:
            began = time.monotonic()
            await asyncio.sleep(1.0)
            waited = time.monotonic() - began
    async with other_key() as under_way:
        began = time.monotonic()
        await until(lambda: len(granted) >= waiters * 0.8, 5.0)
        rate = len(granted) / (time.monotonic() - began)
    await disperse(crowd)
    return {
        "few (1/s)": alone,
        "crowd (1/s)": rate,
        "ratio": rate / alone,
        "event loop, late (s)": waited - 1.0,
        "other key, slowest (s)": max(slowest + under_way),
    }


async def memory(waiters: int) -> dict[str, float]:
    """Measure the memory of the waiters, and of as many plain tasks that wait with a timeout."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    async def once() -> None:
        async with zk_lock(KEY, timeout=600):
            pass

    forever = asyncio.get_running_loop().create_future()

    async def bare() -> None:
        await asyncio.wait((forever,), timeout=600)

    async with zk_lock(KEY):
        before = psutil.Process().memory_info().rss
        tasks = await gathered(bare, waiters)
        between = psutil.Process().memory_info().rss
        crowd = await gathered(once, waiters)
        after = psutil.Process().memory_info().rss
        await disperse(crowd)
    forever.set_result(None)
    await asyncio.gather(*tasks)
    return {
        "KiB per waiter": (after - between) / waiters / 1024,
        "KiB per bare task": (between - before) / waiters / 1024,
    }


async def dropped(waiters: int) -> dict[str, float]:
    """Cut the connection of the waiters, and measure the time until all wait again."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.core.zk import process  # noqa: PLC0415

    granted: list[float] = []

    async def once() -> None:
        async with zk_lock(KEY, timeout=None):
            granted.append(time.monotonic())

    async with zk_lock("unrelated", abort_on="lost") as unrelated:
        lock = zk_lock(KEY, abort_on="lost")
        hold = await lock.aacquire()
        assert hold is not None
        crowd = await gathered(once, waiters)
        session = process.current()
        client = session._client
        assert client is not None
        client.drop_connection()
        began = time.monotonic()
        await until(lambda: session.suspect, 60.0)
        await until(lambda: not session.suspect, 60.0)
        async with zk_lock("another", timeout=60):
            pass
        lost = float(hold.lost)
        if not hold.lost:
            await lock.arelease()
        await until(lambda: len(granted) >= min(50, waiters), 60.0)
        settled = time.monotonic() - began
        await disperse(crowd)
        return {
            "settled after (s)": settled,
            "locks lost": lost + float(unrelated.lost),
        }


async def deadlines(waiters: int) -> dict[str, float]:
    """Let all of them time out at the same moment."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.exceptions import LockTimeout  # noqa: PLC0415

    late: list[float] = []

    async def once() -> None:
        began = time.monotonic()
        try:
            async with zk_lock(KEY, timeout=TIMEOUT):
                pass
        except LockTimeout:
            late.append(time.monotonic() - began - TIMEOUT)

    async with zk_lock(KEY):
        await asyncio.gather(*(once() for _ in range(waiters)))
    return {"latest (s)": max(late), "earliest (s)": min(late), "timed out": len(late)}


async def load(rate: int) -> dict[str, float]:
    """Start many acquisitions a second, far more than can be served."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.exceptions import LockTimeout  # noqa: PLC0415

    granted: list[float] = []
    other: list[str] = []

    async def once() -> None:
        try:
            async with zk_lock(KEY, timeout=TIMEOUT):
                granted.append(time.monotonic())
                await asyncio.sleep(HELD)
        except LockTimeout:
            pass
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            other.append(repr(error))

    began = time.monotonic()
    tasks = []
    async with other_key() as slowest:
        for number in itertools.count():
            due = began + number / rate
            if due > began + 25:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(once()))
    await asyncio.gather(*tasks)
    counted = [moment for moment in granted if began + 5 <= moment < began + 25]
    return {"grants per second": len(counted) / 20, "other errors": len(other), "other key, slowest (s)": max(slowest)}


async def until(condition: Callable[[], object], seconds: float) -> None:
    """Wait for a condition, with a limit in seconds."""
    end = time.monotonic() + seconds
    for _ in itertools.count():
        if condition() or time.monotonic() > end:
            return
        await asyncio.sleep(0.002)


async def gathered(work: Callable[[], Awaitable[None]], count: int) -> list[asyncio.Task[None]]:
    """Start tasks; return when they have begun and the process is idle."""
    tasks = [asyncio.ensure_future(work()) for _ in range(count)]
    await asyncio.sleep(0)
    before, used = time.monotonic(), -1.0
    while time.monotonic() < before + 60:
        now = time.process_time()
        if used >= 0 and now - used < 0.1:
            break
        used = now
        await asyncio.sleep(0.5)
    return tasks


async def disperse(crowd: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks that still wait."""
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


@asynccontextmanager
async def other_key() -> AsyncIterator[list[float]]:
    """Acquire and release another lock repeatedly meanwhile, and record the durations."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    took = [0.0]

    async def acquire() -> None:
        while True:
            began = time.monotonic()
            try:
                async with zk_lock("other", timeout=30):
                    pass
            except Exception:  # noqa: BLE001 - as bad as it can be
                took.append(60.0)
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.1)

    task = asyncio.ensure_future(acquire())
    try:
        yield took
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


PARTS: dict[str, Callable[[int], Awaitable[dict[str, float]]]] = {
    "handoffs": handoffs,
    "memory": memory,
    "dropped": dropped,
    "deadlines": deadlines,
    "load 150/s": lambda _: load(150),
    "load 300/s": lambda _: load(300),
}


def run_part(part: str, address: str, waiters: int) -> dict[str, float]:
    """Measure one part in this process."""
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    url = f"zk://{address}/{part.split()[0]}?session_timeout=10"
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": url})
    django.setup()

    async def run() -> dict[str, float]:
        return await PARTS[part](waiters)

    return asyncio.run(run())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiters", type=int, default=10_000, help="coroutines on one key (default: 10000)")
    parser.add_argument("--check", action="store_true", help="fail if something is over its budget")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="measure this part only")
    parser.add_argument("--address", help=argparse.SUPPRESS)  # with --part: measure in this process
    options = parser.parse_args(arguments)
    if options.address:
        json.dump(run_part(options.part[0], options.address, options.waiters), sys.stdout)
        return 0
    over = False
    with Ensemble(nodes=1, tick=2.0, container_check=60.0, max_session_timeout=60) as ensemble:
        for part in options.part or PARTS:
            over = measure(part, ensemble.hosts, options.waiters) or over
    return 1 if options.check and over else 0


def measure(part: str, address: str, waiters: int) -> bool:
    """Measure one part in a new process, print its figures, and return whether one is over its budget."""
    command = [sys.executable, __file__, "--part", part, "--address", address, "--waiters", str(waiters)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.stdout.write(f"{part}: failed\n{done.stderr[-2000:]}\n")
        return True
    figures: dict[str, Any] = json.loads(done.stdout)
    over = False
    for name, value in figures.items():
        budget, wrong = "", False
        for _, _, bound, most in (budget for budget in BUDGETS if budget[:2] == (part, name)):
            wrong = value > bound if most else value < bound
            budget = f"at {'most' if most else 'least'} {bound:g}  {'OVER BUDGET' if wrong else 'ok'}"
        over = over or wrong
        sys.stdout.write(f"{part:12}{name:28}{value:10.2f}  {budget}".rstrip() + "\n")
    sys.stdout.flush()
    return over


if __name__ == "__main__":
    sys.exit(main())
