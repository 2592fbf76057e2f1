"""
How a process fares with a crowd of coroutines on one key: hand-offs, memory, deadlines, a dropped connection, load.

One real ZooKeeper server, which does not sync to disk. Each part runs in a process of its own. The rate of
hand-offs with the crowd is compared with that of eight coroutines in another process, in turns of half a second.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs
import psutil
from support.ensemble import Ensemble

KEY = "crowd"
FEW = 8  # coroutines that hand the lock to each other where there is no crowd
TURN = 0.5  # seconds
RATE = 300  # acquisitions that start in a second, under load
HELD = 0.05  # seconds that each holds the lock under load
TIMEOUT = 5.0  # seconds that each waits for it under load

HAND_OFFS = 0.87  # of the rate of few, at least
OTHER_KEY = 1.0  # seconds for another key, at most
#: Part, figure, its budget, and whether that is the least that it may be. Others are only shown.
BUDGETS = [
    ("memory", "KiB per waiter", 7.0, False),
    ("dropped", "settled after (s)", 1.0, False),
    ("dropped", "locks lost", 0.0, False),
    ("deadlines", "latest (s)", 1.5, False),
    ("load", "grants per second", 17.0, True),
    ("load", "other errors", 0.0, False),
    ("load", "other key, slowest (s)", OTHER_KEY, False),
]


async def hand_offs(waiters: int, slower: float) -> None:
    """Hand the lock on among these, for a turn whenever the parent sends a line; report to the parent."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    may_run = asyncio.Event()
    granted = [time.monotonic()]

    async def pass_on() -> None:
        while True:
            async with zk_lock(KEY, timeout=None):
                now = time.monotonic()
                while slower and time.monotonic() < now + (now - granted[-1]) * slower / 100:
                    pass
                granted.append(now)
                await may_run.wait()

    crowd = await gathered(pass_on, waiters)
    async with other_key() as slowest:
        while await asyncio.to_thread(sys.stdin.readline):
            granted[:] = [time.monotonic()]
            may_run.set()
            await asyncio.sleep(TURN)
            may_run.clear()
            grants = len(granted) - 1
            sys.stdout.write(json.dumps({"grants": grants, "other key, slowest (s)": max(slowest)}) + "\n")
            sys.stdout.flush()
    await disperse(crowd)


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


async def load(waiters: int) -> dict[str, float]:
    """Start many acquisitions a second, far more than can be served."""
    del waiters
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
            due = began + number / RATE
            if due > began + 15:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(once()))
    await asyncio.gather(*tasks)
    counted = [moment for moment in granted if began + 5 <= moment < began + 15]
    return {"grants per second": len(counted) / 10, "other errors": len(other), "other key, slowest (s)": max(slowest)}


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
    "memory": memory,
    "dropped": dropped,
    "deadlines": deadlines,
    "load": load,
}


def run_part(part: str, address: str, waiters: int, slower: float) -> None:
    """Measure one part in this process, and report to the parent."""
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    url = f"zk://{address}/{part}?session_timeout=10"
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": url})
    django.setup()
    if part in PARTS:
        json.dump(asyncio.run(PARTS[part](waiters)), sys.stdout)  # type: ignore[arg-type]
    else:
        asyncio.run(hand_offs(waiters, slower))


@contextlib.contextmanager
def hand_offs_apart(command: Sequence[str], part: str, *more: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a process that hands the lock on; yield what measures it for a turn."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--part", part, *more], stdin=pipe, stdout=pipe, text=True) as process:

        def turn() -> dict[str, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            figures: dict[str, float] = json.loads(process.stdout.readline())
            return figures

        try:
            yield turn
        finally:
            process.kill()


def measure_hand_offs(command: Sequence[str], waiters: int, seconds: float, slower: float) -> list[pairs.Figure]:
    """Compare a crowd with few, in turns."""
    ratio = pairs.Figure(f"hand-offs among {waiters:,} / those among {FEW}", HAND_OFFS, least=True)
    other = pairs.Figure("hand-offs: another key, slowest (s)", OTHER_KEY, exact=True)
    crowd = hand_offs_apart(command, "crowd", f"--waiters={waiters}", f"--slower={slower}")
    with crowd as of_many, hand_offs_apart(command, "few", f"--waiters={FEW}") as of_few:

        def measure_round() -> None:
            figures = {turn: turn() for turn in random.SystemRandom().sample([of_many, of_few], 2)}
            ratio.values.append(figures[of_many]["grants"] / max(1, figures[of_few]["grants"]))
            other.values.append(figures[of_many]["other key, slowest (s)"])

        measure_round()  # warms up
        ratio.values.clear()
        for _ in pairs.rounds([ratio, other], seconds):
            measure_round()
    return [ratio, other]


def measure(command: Sequence[str], part: str, *more: str) -> list[pairs.Figure]:
    """Measure one part in a new process, and return its figures."""
    done = subprocess.run([*command, "--part", part, *more], check=True, stdout=subprocess.PIPE, timeout=300)
    budgets = {name: (budget, least) for of, name, budget, least in BUDGETS if of == part}
    figures = []
    for name, value in json.loads(done.stdout).items():
        budget, least = budgets.get(name, (None, False))
        figures.append(pairs.Figure(f"{part}: {name}", budget, least, exact=True, values=[value]))
    return figures


def main() -> int:
    """Run the benchmark."""
    parser = pairs.parser(__doc__, seconds=25)
    parser.add_argument("--waiters", type=int, default=10_000, help="coroutines on one key (default: 10000)")
    parser.add_argument("--part", choices=[*PARTS, "crowd", "few"], help=pairs.HIDDEN)  # measure in this process
    parser.add_argument("--address", help=pairs.HIDDEN)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.address, options.waiters, options.slower)
        return 0
    with Ensemble(nodes=1, **pairs.ENSEMBLE) as ensemble:
        command = [sys.executable, __file__, "--address", ensemble.hosts]
        figures = measure_hand_offs(command, options.waiters, options.seconds, options.slower)
        for part in PARTS:
            figures += measure(command, part, f"--waiters={options.waiters}")
    return pairs.finish(figures, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
