"""Which locks a test run sees inside which others, and where; see `unit/testing/test_order.py` for what it says."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from asgiref.sync import sync_to_async
from celery import Celery
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock import zk_lock, zk_locked, zk_locks, zk_read, zk_semaphore
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
    assert seen.edges["account/{a}", "account/{b}"].sorted


def test_a_try_that_does_not_wait_has_no_order(seen):
    inner = zk_lock("b", timeout=0)
    with zk_lock("a"), inner:
        pass
    with zk_lock("a"):
        assert inner.acquire(timeout=0)
        inner.release()
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
    assert seen.edges["a", "b"].location.endswith(" (its transaction keeps 'a')")


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


def test_a_task_that_runs_at_once_is_inside_the_block_that_calls_it(seen):
    app = Celery("shop", broker="memory://localhost", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task
    @zk_locked("b", on_conflict="raise", timeout=5)
    def task():
        pass

    with zk_lock("a"):
        task.delay()
    assert set(seen.edges) == {("a", "b")}


def test_a_generator_holds_its_lock_while_it_is_suspended(seen):
    def rows():
        with zk_lock("a"):
            yield 1

    for _ in rows():
        with zk_lock("b"):
            pass
    assert set(seen.edges) == {("a", "b")}


def test_an_order_that_is_meant_is_not_seen(zoo, seen):
    till, stock = zk_lock("till", fields={"till": 1}), zk_lock("stock/{sku}", fields={"sku": 1})
    locks = {"till": {"path": "tills/{till}"}}
    with zoo.configured(LOCKS=locks, LOCK_ORDER=[("till", "stock/{pk}")]), till, stock:
        pass
    assert not seen.edges


def test_names_that_are_no_templates_are_not_remembered_without_limit(seen, monkeypatch):
    monkeypatch.setattr(order, "MOST_PAIRS", 3)
    with zk_lock("outer"):
        for number in range(5):
            with zk_lock(f"row/{number}"):
                pass
    assert len(seen.edges) == 3


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
    edge = seen.edges["a", "b"]
    assert edge.location == f"{HERE}:{inside}"
    assert edge.callers[0] == f"{HERE}:{caller}"


def test_the_place_of_a_decorated_function_is_its_definition(seen):
    first = line() + 2

    @zk_locked("b")
    @transaction.atomic
    def inner():
        pass

    with zk_lock("a"), pytest.raises(Exception, match="Database access not allowed"):
        inner()
    assert seen.edges["a", "b"].location == f"{HERE}:{first}"


def test_the_place_of_a_view_is_its_handler_or_its_class(seen):
    @method_decorator(zk_locked("all"), name="dispatch")
    class Locked(View):
        @method_decorator(zk_locked("one"))
        def get(self, request):
            return HttpResponse()

    with zk_lock("a"):
        Locked.as_view()(RequestFactory().get("/"))
    assert seen.edges["a", "all"].location == f"{__name__}.{Locked.__qualname__}"
    handler = vars(Locked)["get"].__wrapped__.__code__
    assert seen.edges["a", "one"].location == f"{HERE}:{handler.co_firstlineno}"


def test_code_without_a_module_has_a_place(seen):
    exec("with lock('a'), lock('b'): pass", {"__name__": None, "lock": zk_lock})
    assert seen.edges["a", "b"].location == "<string>:1"
