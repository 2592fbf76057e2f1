"""Ten thousand coroutines of one process wait for one key while its connection breaks and its session ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.chaos.report import Figures
from support.faults import connected, expire, proxied, session
from support.proxy import Proxy
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.core.protocol.local_queue import MAX_WAITING
from django_zklock.exceptions import LockLost

pytestmark = [pytest.mark.timeout(240)]

KEY = "crowd"
WAITERS = 10_000
SERVED = 300  # grants between two faults
SESSION = 10.0  # seconds
TIMEOUT = 60.0

#: Another process that competes for the key all the time. The file says whether two are inside.
RIVAL = f"""
import fcntl, sys, time
until = time.monotonic() + 120
while time.monotonic() < until:
    with zk_lock({KEY!r}, timeout=None):
        with open(sys.argv[1]) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("in", flush=True)
"""


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Fail if another coroutine is inside, in any process."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def drop(zoo: Zoo, proxy: Proxy) -> None:
    """Cut the connection."""
    proxy.cut_all()


def hang(zoo: Zoo, proxy: Proxy) -> None:
    """Let nothing through for half of the time that a lease lasts."""
    proxy.hang = True
    time.sleep(0.2 * SESSION)
    proxy.hang = False


def end_session(zoo: Zoo, proxy: Proxy) -> None:
    """End the session, as its time would."""
    before = connected().session_id
    expire(zoo)
    eventually(lambda: session().session_id not in (None, before), TIMEOUT)


FAULTS: tuple[tuple[Callable[[Zoo, Proxy], None], bool], ...] = (
    (drop, True),
    (hang, True),
    (drop, True),
    (end_session, False),
)
"""The faults of the process, and whether a lock with `abort_on="lost"` survives them."""


async def test_a_crowd_is_granted_the_lock_through_cuts(zoo: Zoo, tmp_path: Path, figure: Figures) -> None:
    """No two are inside, other locks are kept, few nodes are in the queue, and grants go on soon after each fault."""
    path = tmp_path / "inside"
    path.touch()
    grants = 0
    lost = 0
    changed = asyncio.Event()

    async def acquire() -> None:
        nonlocal grants, lost
        try:
            async with zk_lock(KEY, timeout=None):
                with alone(path):
                    grants += 1
                    changed.set()
                    await asyncio.sleep(0)
        except LockLost:
            lost += 1

    async def served(count: int) -> None:
        while grants < count:
            changed.clear()
            await asyncio.wait_for(changed.wait(), TIMEOUT)

    with proxied(zoo, SESSION) as proxy:
        crowd = [asyncio.create_task(acquire()) for _ in range(WAITERS)]
        rival = zoo.spawn(RIVAL, str(path))
        try:
            await served(SERVED)
            for fault, survives in FAULTS:
                unrelated = await zk_lock("unrelated", abort_on="lost").aacquire()
                assert unrelated is not None
                await asyncio.to_thread(fault, zoo, proxy)
                began = time.monotonic()
                await served(grants + 10)
                figure(f"seconds to ten grants after {fault.__name__}", round(time.monotonic() - began, 2))
                assert (not unrelated.lost) is survives
                await zk_lock("unrelated").arelease()
                await served(grants + SERVED)
                assert len(await asyncio.to_thread(zoo.children, KEY)) <= MAX_WAITING + 3
        finally:
            rival.kill()
            output, complaints = await asyncio.to_thread(rival.communicate)
            for task in crowd:
                task.cancel()
            ends = await asyncio.gather(*crowd, return_exceptions=True)
        await asyncio.to_thread(zoo.assert_empty, 20.0)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    assert complaints == ""
    assert output.count("in") > len(FAULTS), "the other process was not served"
    assert lost <= len(FAULTS)
    figure("grants", grants)
    figure("grants of the rival", output.count("in"))
