"""Locks that are acquired in two orders are told before any deadlock, once, with the places and what to do."""

import asyncio
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    ExitStack,
    asynccontextmanager,
    contextmanager,
)

import pytest
from asgiref.sync import sync_to_async
from celery import Celery
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock import zk_lock, zk_locked, zk_locks, zk_read, zk_semaphore
from django_zklock.core.locks import order

pytestmark = pytest.mark.usefixtures("zoo")


def stock(sku):
    return zk_lock("stock/{sku}", fields={"sku": sku})


def orders(pk):
    return zk_lock("orders/{order}", fields={"order": pk})


def line():
    return sys._getframe(1).f_lineno


def test_two_orders_are_told_with_both_places_and_the_cure(caplog):
    with orders(1):
        first = line() + 1
        with stock("a"):
            pass
    assert not caplog.messages
    with stock("b"):
        last = line() + 1
        with orders(2):
            pass
    (text,) = caplog.messages
    file = "tests/contract/locks/test_lock_order.py"
    assert f"Always lock 'orders/{{order}}' before 'stock/{{sku}}': {file}:{first} does, {file}:{last} does not" in text


def test_a_circle_is_told_once(caplog):
    for pk in range(3):
        with orders(pk), stock(pk):
            pass
        with stock(pk), orders(pk):
            pass
    assert len(caplog.messages) == 1


def test_a_circle_of_three_is_told(caplog):
    for outer, inner in [("a", "b"), ("b", "c"), ("c", "a")]:
        assert not caplog.messages
        with zk_lock(outer), zk_lock(inner):
            pass
    (text,) = caplog.messages
    assert "Always lock 'a' before 'b' before 'c'" in text


def test_the_same_order_is_not_told(caplog):
    for pk in range(3):
        with orders(pk), stock(pk), zk_lock("till"):
            pass
        with orders(pk), zk_lock("till"):
            pass
    assert not caplog.messages


def test_two_keys_of_one_template_are_told_unless_they_are_acquired_together(caplog):
    with zk_locks("account/{a}", "account/{b}", fields={"a": 1, "b": 2}):
        pass
    assert not caplog.messages
    with stock(1), stock(1), stock(2):
        pass
    (text,) = caplog.messages
    assert "A lock of 'stock/{sku}' is acquired inside another one of 'stock/{sku}'" in text


def test_fields_with_other_names_are_the_same_template(caplog):
    with orders(1), stock(1):
        pass
    with zk_lock("stock/{pk}", fields={"pk": 1}), zk_lock("orders/{pk}", fields={"pk": 1}):
        pass
    (text,) = caplog.messages
    assert "Always lock 'orders/{order}' before 'stock/{sku}'" in text


def test_a_transfer_with_two_field_names_is_told(caplog):
    with zk_lock("account/{source}", fields={"source": 1}), zk_lock("account/{target}", fields={"target": 2}):
        pass
    (text,) = caplog.messages
    assert "A lock of 'account/{target}' is acquired inside another one of 'account/{source}'" in text


def test_a_meant_order_may_have_other_names_of_fields(zoo, caplog):
    outer, inner = (zk_lock(f"account/{{{name}}}", fields={name: name}) for name in ("source", "target"))
    with zoo.configured(LOCK_ORDER=[("account/{a}", "account/{b}")]), outer, inner:
        pass
    assert not caplog.messages


def test_locks_that_are_only_acquired_together_have_no_order(caplog):
    for tenant in ("x", "a"):  # sorted by key, the two templates come in both orders
        with zk_locks("{tenant}/a", "m/{row}", fields={"tenant": tenant, "row": 1}):
            pass
    assert not caplog.messages
    with zk_lock("m/{row}", fields={"row": 1}), zk_lock("{tenant}/a", fields={"tenant": "x"}):
        pass
    assert len(caplog.messages) == 1  # a single one inside another can meet them


def test_a_try_that_does_not_wait_is_not_told(caplog):
    with orders(1), stock(1):
        pass
    with stock(1):
        assert zk_lock("orders/{order}", fields={"order": 1}).acquire(timeout=0)
        zk_lock("orders/{order}", fields={"order": 1}).release()
        with zk_lock("orders/{order}", fields={"order": 1}, timeout=0):
            pass
    assert not caplog.messages


def test_readers_below_readers_are_not_told_and_a_writer_is(caplog):
    with zk_read("a"), zk_read("b"):
        pass
    with zk_read("b"), zk_read("a"):
        pass
    with zk_locks(zk_read("a"), zk_read("b")):
        pass
    with zk_lock("b"), zk_read("a"):
        pass
    assert not caplog.messages
    order.seen = order.LockOrder()
    with zk_read("a"), zk_lock("b"):
        pass
    with zk_read("b"), zk_lock("a"):
        pass
    assert len(caplog.messages) == 1


def test_a_hold_that_another_thread_may_release_is_not_told(caplog):
    with orders(1), stock(1):
        pass
    held = zk_lock("stock/{sku}", fields={"sku": 1})
    held.acquire()
    with orders(1):
        pass
    held.release()
    assert not caplog.messages


def test_a_lock_that_was_released_in_its_block_is_not_told(caplog):
    with orders(1), stock(1):
        pass
    with stock(1) as hold:
        hold.release()
        with orders(1):
            pass
    assert not caplog.messages


def test_orders_of_two_threads_are_told(caplog):
    def run(outer, inner):
        with zk_lock(outer), zk_lock(inner):
            pass

    for outer, inner in [("a", "b"), ("b", "a")]:
        with ThreadPoolExecutor(1) as pool:  # one after the other: no deadlock happens
            pool.submit(run, outer, inner).result()
    assert len(caplog.messages) == 1


def test_an_order_is_seen_across_coroutines_and_the_threads_that_work_for_them(
    caplog,
):
    def inner():
        with zk_lock("b"):
            pass

    async def run():
        async with zk_lock("a"):
            await sync_to_async(inner)()
        async with zk_lock("b"), zk_lock("a"):
            pass

    asyncio.run(run())
    (text,) = caplog.messages
    assert "Always lock 'a' before 'b'" in text


def test_a_task_that_may_outlive_a_block_is_not_inside_it(caplog):
    async def inner():
        async with zk_lock("b"):
            pass

    async def run():
        async with zk_lock("a"):
            task = asyncio.create_task(inner())
            await asyncio.sleep(0.1)
        await task
        async with zk_lock("b"), zk_lock("a"):
            pass

    asyncio.run(run())
    assert not caplog.messages


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_a_transaction_keeps_is_still_held(caplog):
    with transaction.atomic():
        with zk_lock("a", release_on="commit"):
            pass
        with zk_lock("b", release_on="commit"):
            pass
    with zk_lock("b"), zk_lock("a"):
        pass
    assert len(caplog.messages) == 1


@pytest.mark.django_db(transaction=True)
def test_a_place_says_that_a_transaction_keeps_the_other_lock(caplog):
    def both():
        with zk_lock("event", release_on="commit"), zk_lock("pool", release_on="commit"):
            pass

    both()
    with transaction.atomic():
        with zk_lock("pool", release_on="commit"):
            pass
        both()
    (text,) = caplog.messages
    both_at = f"tests/contract/locks/test_lock_order.py:{both.__code__.co_firstlineno + 1}"
    assert f"'event' before 'pool': {both_at} does, {both_at} (its transaction keeps 'pool') does not." in text


def test_blocks_of_an_exit_stack_and_permits_have_an_order(caplog):
    with ExitStack() as stack:
        stack.enter_context(zk_semaphore("a", 2))
        stack.enter_context(zk_lock("b"))
    with zk_lock("b"), zk_semaphore("a", 2):
        pass
    assert len(caplog.messages) == 1


def test_the_place_of_a_decorated_function_is_its_definition(caplog):
    first = line() + 2

    @zk_locked("b")
    def inner():
        pass

    with zk_lock("a"):
        inner()
    with zk_lock("b"), zk_lock("a"):
        pass
    (text,) = caplog.messages
    assert f"test_lock_order.py:{first} does" in text


def test_a_forked_child_is_not_inside_the_blocks_of_its_parent():
    with zk_lock("a"):
        child = os.fork()
        if not child:
            try:
                with zk_lock("b"):
                    pass
                os._exit(len(order.seen.edges))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.django_db(transaction=True)
def test_the_place_is_below_other_decorators():
    first = line() + 2

    @zk_locked("b")
    @transaction.atomic
    def inner():
        pass

    with zk_lock("a"):
        inner()
    assert order.seen.edges["a", "b"].location.endswith(f"test_lock_order.py:{first}")


def test_the_place_of_a_view_is_its_handler_or_its_class():
    @method_decorator(zk_locked("all"), name="dispatch")
    class Locked(View):
        @method_decorator(zk_locked("one"))
        def get(self, request):
            return HttpResponse()

    with zk_lock("a"):
        Locked.as_view()(RequestFactory().get("/"))
    assert order.seen.edges["a", "all"].location == f"{__name__}.{Locked.__qualname__}"
    handler = vars(Locked)["get"].__wrapped__.__code__
    assert order.seen.edges["a", "one"].location.endswith(f"test_lock_order.py:{handler.co_firstlineno}")


def test_the_place_in_an_exit_stack_is_that_of_its_caller():
    with ExitStack() as stack:
        stack.enter_context(zk_lock("a"))
        last = line() + 1
        stack.enter_context(zk_lock("b"))
    assert order.seen.edges["a", "b"].location.endswith(f"test_lock_order.py:{last}")


class OwnLock:
    """A context manager of a project around a lock."""

    def __init__(self, name):
        self.lock = zk_lock(name)

    def acquire(self):
        self.lock.__enter__()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.lock.__exit__(*error)

    async def __aenter__(self):
        await self.lock.__aenter__()

    async def __aexit__(self, *error):
        await self.lock.__aexit__(*error)


class OwnOfAnotherKind(OwnLock):
    def __enter__(self):
        super().__enter__()


@contextmanager
def own_lock(name):
    with zk_lock(name):
        yield


@pytest.mark.parametrize("own", [OwnLock, OwnOfAnotherKind, own_lock])
def test_the_place_of_a_context_manager_around_a_lock_is_the_block(
    own,
):
    with zk_lock("a"):
        last = line() + 1
        with own("b"):
            pass
    assert order.seen.edges["a", "b"].location.endswith(f"test_lock_order.py:{last}")


def test_so_is_that_of_an_asynchronous_context_manager():
    @asynccontextmanager
    async def own_async_lock(name):
        async with zk_lock(name):
            yield

    async def work():
        lines = []
        kinds = {"b": OwnLock, "c": own_async_lock}
        for name, own in kinds.items():
            async with zk_lock("a"):
                lines.append(line() + 1)
                async with own(name):
                    pass
        return lines

    lines = asyncio.run(work())
    locations = [order.seen.edges["a", inner].location for inner in "bc"]
    assert locations == [f"tests/contract/locks/test_lock_order.py:{number}" for number in lines]


def test_code_without_a_module_has_a_place():
    exec("with lock('a'), lock('b'): pass", {"__name__": None, "lock": zk_lock})
    assert order.seen.edges["a", "b"].location == "<string>:1"


class _Locks(logging.Handler):
    """A handler that locks, and fails."""

    def emit(self, record):
        with zk_lock("log"):
            raise RuntimeError("a handler failed")


def test_no_handler_of_logging_disturbs_a_caller(capsys):
    handler = _Locks()
    logging.getLogger("django_zklock.locks").addHandler(handler)
    try:
        for outer, inner in [("a", "b"), ("b", "a"), ("log", "a")]:
            with zk_lock(outer), zk_lock(inner):
                pass
    finally:
        logging.getLogger("django_zklock.locks").removeHandler(handler)
    assert ("a", "log") not in order.seen.edges
    assert "a handler failed" in capsys.readouterr().err


def test_an_order_that_is_meant_is_not_told(zoo, caplog):
    locks = {"till": {"path": "tills/{till}"}}
    with zoo.configured(LOCKS=locks, LOCK_ORDER=[("till", "stock/{sku}")]):
        with stock(1), zk_lock("till", fields={"till": 1}):
            pass
        with zk_lock("till", fields={"till": 1}), stock(1):
            pass
    assert not caplog.messages


def test_it_can_be_turned_off(zoo, caplog):
    with zoo.configured(LOCK_ORDER="off"):
        with stock(1), orders(1):
            pass
        with orders(1), stock(1):
            pass
    assert not caplog.messages


def test_names_that_are_no_templates_are_not_remembered_without_limit():
    with zk_lock("outer"):
        for number in range(order.MOST_EDGES + 5):
            order.seen.add(order.Edge("outer", f"row/{number}", "here:1"))
        with zk_lock("one/more"):
            pass
    assert ("outer", "one/more") not in order.seen.edges


def test_a_lock_that_lingers_has_an_order(caplog):
    for _ in range(2):
        with zk_lock("a", linger=5), zk_lock("b", linger=5):
            pass
    with zk_lock("b", linger=5), zk_lock("a", linger=5):
        pass
    assert len(caplog.messages) == 1


def test_a_lock_that_is_acquired_again_is_not_told(caplog):
    with orders(1), stock(1), orders(1), zk_lock("till"), stock(1):
        pass
    assert not caplog.messages
    assert order.location_of("orders/{pk}", "till")
    assert not order.location_of("stock/{sku}", "orders/{pk}")


@pytest.mark.django_db(transaction=True)
def test_a_callback_of_on_commit_is_not_inside_the_locks_of_its_transaction():
    def callback():
        with zk_lock("b"):
            pass

    with transaction.atomic():
        with zk_lock("a", release_on="commit"):
            pass
        transaction.on_commit(callback)
    assert not order.seen.edges


def test_a_task_that_runs_at_once_is_inside_the_block_that_calls_it():
    app = Celery("shop", broker="memory://localhost", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task
    @zk_locked("b", on_conflict="raise", timeout=5)
    def task():
        pass

    with zk_lock("a"):
        task.delay()
    assert set(order.seen.edges) == {("a", "b")}


def test_a_generator_holds_its_lock_while_it_is_suspended(caplog):
    def rows():
        with zk_lock("a"):
            yield 1

    for _ in rows():
        with zk_lock("b"):
            pass
    with zk_lock("b"), zk_lock("a"):
        pass
    assert len(caplog.messages) == 1


def test_a_function_that_acquires_all_locks_is_told_with_its_callers(caplog):
    def lock(stack, name):
        stack.enter_context(zk_lock(name))

    inside = lock.__code__.co_firstlineno + 1
    with ExitStack() as stack:
        lock(stack, "a")
        first = line() + 1
        lock(stack, "b")
    with ExitStack() as stack:
        lock(stack, "b")
        last = line() + 1
        lock(stack, "a")
    (text,) = caplog.messages
    file = "tests/contract/locks/test_lock_order.py"
    does, does_not = (f"{file}:{inside} (called at {file}:{number})" for number in (first, last))
    assert f"Always lock 'a' before 'b': {does} does, {does_not} does not." in text
