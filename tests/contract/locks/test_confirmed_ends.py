"""A block that does not wait for its lock waits for the confirmed release. Any other block ends before that."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest
from django.db import transaction
from support.primitives import KEY, LOCK, Primitive
from support.proxy import DELETE, Proxy
from support.zoo import Zoo, next_line, settle

from django_zklock import zk_leader, zk_lock, zk_locked, zk_locks

pytestmark = pytest.mark.zookeeper

DELAY = 0.3  # seconds; less than a release waits at most


def block(timeout: float) -> None:
    with zk_lock(KEY, timeout=timeout):
        pass


def coroutine(timeout: float) -> None:
    async def use() -> None:
        async with zk_lock(KEY, timeout=timeout):
            pass

    asyncio.run(use())


def one_of_one(timeout: float) -> None:
    with zk_locks(KEY, timeout=timeout):
        pass


def skipped(timeout: float) -> None:
    with zk_lock(KEY, timeout=timeout, on_conflict="skip") as hold:
        assert hold is not None


def decorated(timeout: float) -> None:
    @zk_locked(KEY, timeout=timeout)
    def work() -> None:
        pass

    work()


def decorated_coroutine(timeout: float) -> None:
    @zk_locked(KEY, timeout=timeout)
    async def work() -> None:
        pass

    asyncio.run(work())


def committed(timeout: float) -> None:
    with transaction.atomic(), zk_lock(KEY, timeout=timeout, release_on="commit"):
        pass


def nested(timeout: float) -> None:
    with zk_lock(KEY, timeout=timeout), zk_lock(KEY):
        pass


def failed(timeout: float) -> None:
    with pytest.raises(KeyError), zk_lock(KEY, timeout=timeout):
        raise KeyError


BLOCKS = [block, coroutine, one_of_one, skipped, decorated, decorated_coroutine, committed, nested, failed]


def several(timeout: float) -> None:
    with zk_locks(KEY, "b", "c", timeout=timeout):
        pass


def released(timeout: float) -> None:
    lock = zk_lock(KEY, timeout=timeout)
    lock.acquire()
    lock.release()


def released_in_a_coroutine(timeout: float) -> None:
    async def use() -> None:
        lock = zk_lock(KEY, timeout=timeout)
        await lock.aacquire()
        await lock.arelease()

    asyncio.run(use())


def left(zoo: Zoo, warm_proxy: Proxy, use: Callable[[float], None], timeout: float) -> list[str]:
    """Return the contenders that another client sees just after a use whose delete is delayed."""
    warm_proxy.delay_op(DELETE, DELAY)
    use(timeout)
    names: list[str] = zoo.client.get_children(f"{zoo.base}/{KEY}")
    settle()
    return names


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("use", BLOCKS)
def test_a_block_that_does_not_wait_ends_when_its_release_is_confirmed(
    zoo: Zoo, warm_proxy: Proxy, use: Callable[[float], None]
) -> None:
    """Such code expects that busy means busy, and so do its rivals."""
    assert left(zoo, warm_proxy, use, 0) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("use", BLOCKS)
def test_a_block_that_waits_ends_before_its_release_is_confirmed(
    zoo: Zoo, warm_proxy: Proxy, use: Callable[[float], None]
) -> None:
    assert len(left(zoo, warm_proxy, use, 5)) == 1


@pytest.mark.parametrize("timeout", [0, 5])
@pytest.mark.parametrize("use", [several, released, released_in_a_coroutine])
def test_a_call_and_several_locks_always_end_when_the_release_is_confirmed(
    zoo: Zoo, warm_proxy: Proxy, use: Callable[[float], None], timeout: float
) -> None:
    assert left(zoo, warm_proxy, use, timeout) == []


def test_a_leader_resigns_when_that_is_confirmed(zoo: Zoo, warm_proxy: Proxy) -> None:
    def lead(timeout: float) -> None:
        with zk_leader(KEY):
            pass

    assert left(zoo, warm_proxy, lead, 0) == []


def test_another_process_that_is_told_finds_the_lock_free(zoo: Zoo, primitive: Primitive) -> None:
    """Each of many times, with a timeout of 0 in both processes."""
    options = {**primitive.options, "linger": 0}
    script = f"""
import sys
for line in sys.stdin:
    with zk_lock({KEY!r}, timeout=0, **{options!r}):
        pass
    print("free", flush=True)
"""
    with zoo.running(script) as process:
        assert isinstance(process, subprocess.Popen)
        for _ in range(200 if primitive is LOCK else 20):
            with zk_lock(KEY, timeout=0, **options):
                pass
            assert process.stdin is not None
            process.stdin.write("told\n")
            process.stdin.flush()
            assert next_line(process) == "free"
