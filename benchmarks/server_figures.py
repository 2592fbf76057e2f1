"""Measure servers from outside, and run a normal client meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
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
from support.ensemble import Ensemble, Server, four_letter

Figures = dict[str, Any]


def cpu_seconds(server: Server) -> float:
    """Return the processor time that a server has used."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def heap_bytes(server: Server) -> int:
    """Return what is left in use of a server's heap after a collection; 0 without the JDK's `jcmd`."""
    if shutil.which("jcmd") is None:
        return 0
    subprocess.run(["jcmd", str(server.pid), "GC.run"], check=True, capture_output=True)  # noqa: S607
    info = subprocess.run(["jcmd", str(server.pid), "GC.heap_info"], check=True, capture_output=True, text=True)  # noqa: S607
    used = re.search(r"total \d+K, used (\d+)K", info.stdout)
    return int(used[1]) * 1024 if used else 0


def znodes(server: Server) -> int:
    """Return how many znodes a server has."""
    match = re.search(r"zk_znode_count\s+(\d+)", four_letter("127.0.0.1", server.port, "mntr", timeout=60.0))
    assert match is not None
    return int(match[1])


def snapshot_bytes(server: Server) -> int:
    """Return the size of the largest snapshot file of a server."""
    size: int = max(file.stat().st_size for file in (server.directory / "data").glob("version-2/snapshot.*"))
    return size


def replace(server: Server) -> float:
    """Stop a server and start it without data; return the seconds until it has all data again and serves clients."""
    began = time.monotonic()
    server.stop()
    shutil.rmtree(server.directory / "data" / "version-2")
    server.start()
    server.wait_ready(300.0)
    return time.monotonic() - began


def percentiles(seconds: Sequence[float]) -> Figures:
    """Return the median and others, in milliseconds."""
    ordered = sorted(seconds) or [float("nan")]
    places = {"p50 ms": 0.5, "p99 ms": 0.99, "max ms": 1.0}
    return {name: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in places.items()}


async def until(condition: Callable[[], object], seconds: float) -> float:
    """Wait for a condition, and return how long it took. Raises TimeoutError."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        if time.monotonic() > began + seconds:
            raise TimeoutError(f"{condition} is not true after {seconds:g} s")
        await asyncio.sleep(0.1)
    return time.monotonic() - began


@asynccontextmanager
async def client(ensemble: Ensemble, *work: str) -> AsyncIterator[Callable[[], Awaitable[Figures]]]:
    """Start a normal client on a follower; yield what waits for its figures."""
    url = f"zk://{ensemble.followers[0].address}/scale"
    command = [sys.executable, str(Path(__file__).with_name("scale_client.py")), url, *work]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent, limit=2**24
    )
    assert process.stdout is not None
    if work[0] == "locks":
        await process.stdout.readline()

    async def figures() -> Figures:
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the client failed: {work}")
        data: Figures = json.loads(output)
        return data

    try:
        yield figures
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def repeated(*calls: Awaitable[None]) -> AsyncIterator[None]:
    """Run these meanwhile; if one fails, raise its error at the end."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
