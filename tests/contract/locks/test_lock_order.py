"""Which locks a test run sees inside which others, and where; see `unit/testing/test_order.py` for what it says."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from django_zklock import Lock, zk_leader, zk_lock, zk_locked, zk_locks, zk_read, zk_semaphore, zk_write
from django_zklock.testing import flush_logs, order

HERE = "tests/contract/locks/test_lock_order.py"

pytestmark = pytest.mark.usefixtures("zoo")


def line():
    return sys._getframe(1).f_lineno


# --- which --------------------------------------------------------------------------------------------------------


def test_locks_inside_a_block_are_inside_its_lock(seen):
    with zk_lock("orders/{order}", fields={"order": 1}), zk_lock("till"), zk_semaphore("permits", 2):
        pass
    pairs = {("orders/{order}", "till"), ("orders/{order}", "permits"), ("till", "permits")}
    assert set(seen.edges) == pairs


def test_a_pair_is_written_once(seen):
    for pk in range(3):
        with zk_lock("orders/{order}", fields={"order": pk}), zk_lock("till"):
            pass
    assert len(seen.path.read_text().splitlines()) == 1


def test_locks_that_are_acquired_together_are_sorted(seen):
    with zk_locks("account/{a}", "account/{b}", fields={"a": 1, "b": 2}):
        pass
    assert seen.edges["account/{a}", "account/{b}"].is_sorted


def test_a_try_that_does_not_wait_has_no_order(seen):
    inner = zk_lock("b", timeout=0)
    with zk_lock("a"), inner:
        pass
    with zk_lock("a"):
        assert inner.acquire(timeout=0)
        inner.release()
    with zk_lock("a"), zk_lock("c", max_waiters=0, timeout=5), zk_locks("d", "e", max_waiters=0, timeout=5):
        pass
    assert not seen.edges


def test_a_reader_inside_a_reader_has_no_order_and_a_writer_has(seen):
    with zk_read("a"), zk_read("b"):
        pass
    with zk_locks(zk_read("a"), zk_read("b")):
        pass
    assert not seen.edges
    with zk_read("a"), zk_lock("b"), zk_read("c"):
        pass
    assert set(seen.edges) == {("a", "b"), ("b", "c")}


def test_a_hold_that_another_thread_may_release_is_around_nothing(seen):
    held = zk_lock("a")
    held.acquire()
    with zk_lock("b"):
        pass
    held.release()
    assert not seen.edges


def test_a_lock_that_was_released_in_its_block_is_around_nothing(seen):
    with zk_lock("a") as hold:
        hold.release()
        with zk_lock("b"):
            pass
    assert not seen.edges


def test_a_lock_that_is_acquired_again_is_inside_nothing_more(seen):
    with zk_lock("a"), zk_lock("b"), zk_lock("a"), zk_lock("b"):
        pass
    assert set(seen.edges) == {("a", "b")}


def test_orders_of_several_threads_are_seen(seen):
    def run(outer, inner):
        with zk_lock(outer), zk_lock(inner):
            pass

    for outer, inner in [("a", "b"), ("b", "a")]:
        with ThreadPoolExecutor(1) as pool:  # one after the other: no deadlock happens
            pool.submit(run, outer, inner).result()
    assert set(seen.edges) == {("a", "b"), ("b", "a")}


def test_a_thread_that_works_for_a_coroutine_is_inside_its_block(seen):
    def inner():
        with zk_lock("b"):
            pass

    async def run():
        async with zk_lock("a"):
            await sync_to_async(inner)()

    asyncio.run(run())
    assert set(seen.edges) == {("a", "b")}


def test_a_task_that_outlives_a_block_is_not_inside_it(seen):
    async def inner(entered):
        async with zk_lock("b"):
            entered.set()

    async def run():
        entered = asyncio.Event()
        async with zk_lock("a"):
            task = asyncio.create_task(inner(entered))
            await entered.wait()
        await task

    asyncio.run(run())
    assert not seen.edges


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_a_transaction_keeps_is_around_those_after_its_block(seen):
    with transaction.atomic():
        with zk_lock("a", release_on="commit"):
            pass
        with zk_lock("b", release_on="commit"):
            pass
    assert set(seen.edges) == {("a", "b")}


@pytest.mark.django_db
def test_in_a_test_case_the_transaction_of_the_code_keeps_its_locks(seen):
    def work(*names):
        with transaction.atomic():
            for name in names:
                with transaction.atomic(), zk_lock(name, release_on="commit"):
                    pass

    work("a", "b")
    work("c")
    with zk_lock("d", release_on="commit"):
        pass
    assert set(seen.edges) == {("a", "b")}


@pytest.mark.django_db(transaction=True)
def test_a_callback_of_on_commit_is_not_inside_the_locks_of_its_transaction(seen):
    def callback():
        with zk_lock("b"):
            pass

    with transaction.atomic():
        with zk_lock("a", release_on="commit"):
            pass
        transaction.on_commit(callback)
    assert not seen.edges


def test_a_forked_child_is_not_inside_the_blocks_of_its_parent(seen):
    with zk_lock("a"):
        child = os.fork()
        if not child:
            try:
                with zk_lock("b"):
                    pass
                os._exit(len(seen.edges))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_that_lingers_has_an_order(seen):
    for _ in range(2):
        with zk_lock("b", linger=5):
            pass
    with zk_lock("a", linger=5), zk_lock("b", linger=5):
        pass
    assert set(seen.edges) == {("a", "b")}


MEANT = [("till", "stock/{pk}"), ("tills/{pk}", "stock/7"), ("tills/7", "stock")]


@pytest.mark.parametrize("pair", MEANT, ids=["entry and path", "path and key", "key and entry"])
def test_an_order_that_is_meant_is_not_seen(zoo, seen, pair):
    till, stock = zk_lock("till", fields={"till": 1}), zk_lock("stock/{sku}", fields={"sku": 1})
    locks = {"till": {"path": "tills/{till}"}, "stock": {"path": "stock/{sku}"}}
    with zoo.configured(LOCKS=locks, LOCK_ORDER=[pair]), till, stock:
        pass
    assert not seen.edges


@zk_locked(lambda skus: [f"stock/{sku}" for sku in skus])
def of_a_callable(skus):
    pass


def of_a_block(lock):
    with lock:
        pass


WAYS = {
    "entry": lambda: of_a_block(zk_lock("stock", fields={"sku": 1})),
    "path": lambda: of_a_block(zk_lock("stock/{sku}", fields={"sku": 1})),
    "another field": lambda: of_a_block(zk_lock("stock/{pk}", fields={"pk": 1})),
    "literal": lambda: of_a_block(zk_lock("stock/1")),
    "key": lambda: of_a_block(Lock.of_key("stock/1")),
    "callable": lambda: of_a_callable([1]),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_lock_belongs_to_its_entry_however_it_is_named(zoo, seen, way):
    with zoo.configured(LOCKS={"stock": {"path": "stock/{sku}"}, "other": {"path": "{any}/x/{y}"}}), zk_lock("till"):
        way()
    assert [edge.pair for edge in seen.edges.values()] == [("till", "stock/{}")]


# --- gates --------------------------------------------------------------------------------------------------------


def gate_of_a_block():
    return zk_lock("gate")


def gate_of_a_writer():
    return zk_write("gate")


def gate_of_a_leader():
    return zk_leader("gate")


@contextmanager
def gate_of_acquire():
    gate = zk_lock("gate")
    gate.acquire()
    try:
        yield
    finally:
        gate.release()


@pytest.mark.parametrize("gate", [gate_of_a_block, gate_of_a_writer, gate_of_a_leader, gate_of_acquire])
def test_an_exclusive_lock_around_both_is_their_gate(gate, seen):
    with gate(), zk_lock("a"), zk_lock("b"):
        pass
    assert seen.edges["a", "b"].gates == ["gate"]


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_a_transaction_keeps_is_a_gate(seen):
    with transaction.atomic():
        with zk_lock("gate", release_on="commit"):
            pass
        with zk_lock("a", release_on="commit"), zk_lock("b", release_on="commit"):
            pass
    assert seen.edges["a", "b"].gates == ["gate"]


def test_a_task_that_a_block_starts_is_behind_its_gate(seen):
    async def inner():
        async with zk_lock("a"), zk_lock("b"):
            pass

    async def run():
        async with zk_lock("gate"):
            await asyncio.create_task(inner())

    asyncio.run(run())
    assert seen.edges["a", "b"].gates == ["gate"]


def test_a_lock_that_others_may_hold_at_the_same_time_is_no_gate(seen):
    with zk_semaphore("permits", 1), zk_read("rates"), zk_lock("a"), zk_lock("b"):
        pass
    assert seen.edges["a", "b"].gates == []


def test_a_pair_is_written_again_without_its_gate(seen):
    with zk_lock("gate"), zk_lock("a"), zk_lock("b"):
        pass
    with zk_lock("a"), zk_lock("b"):
        pass
    assert seen.edges["a", "b"].gates == []


def test_a_file_that_cannot_be_written_disturbs_no_caller(seen, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(order.FILE, str(tmp_path))
    with zk_lock("a"), zk_lock("b"):
        pass
    flush_logs()
    assert "the order of locks is not in the file" in caplog.text


# --- where --------------------------------------------------------------------------------------------------------


def test_the_place_is_the_line_of_the_project_and_its_callers_are_known(seen):
    def lock(stack, name):
        stack.enter_context(zk_lock(name))

    inside = lock.__code__.co_firstlineno + 1
    with ExitStack() as stack:
        lock(stack, "a")
        caller = line() + 1
        lock(stack, "b")
    assert seen.edges["a", "b"].lines[:2] == [f"{HERE}:{inside}", f"{HERE}:{caller}"]
