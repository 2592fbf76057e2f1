"""`@zk_locked` on plain functions, and what it refuses."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import threading
from dataclasses import dataclass
from unittest.mock import MagicMock

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.test import override_settings
from django.utils.functional import SimpleLazyObject
from support.faults import acquire_once, caught_up

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.exceptions import InvalidLockName, LockBusy


@dataclass
class Order:
    pk: int


async def _coroutine(): ...


def _numbers():
    yield 1


async def _async_numbers():
    yield 1


_block, _async_block = contextlib.contextmanager(_numbers), contextlib.asynccontextmanager(_async_numbers)


def test_fields_come_from_bound_arguments_with_defaults(zoo):
    seen = []

    @zk_locked("order/{order.pk}/{kind}/{extra}")
    def work(order, /, kind="full", **more):
        seen.append(zoo.contenders())

    work(Order(7), extra="a/b")
    assert seen[0][0].rpartition("/")[0] == f"{zoo.base}/order/7/full/a%2Fb"


def test_a_parameter_names_the_lock_also_if_a_keyword_has_its_name():
    @zk_locked("order/{pk}/{colour}")
    def update(pk, /, **columns): ...

    assert update.zk_locked.key((7,), {"pk": 8, "colour": "red"}) == "order/7/red"


def test_an_optional_argument_may_be_none():
    @zk_locked("report/{shop}/{region}/{full}")
    def report(shop, region=None, *, full=False): ...

    @zk_locked("order/{order.pk}")
    def pay(order=None): ...

    def key_of(function, *args):
        return str(function.zk_locked.key(args, {}))

    keys = [key_of(report, 7, region) for region in (None, "null", "none", "[]")]
    assert keys[0] == "report/7/%5Bnull%5D/0"
    assert len(set(keys)) == len(keys)
    for function, argument in ((report, None), (pay, Order(None)), (pay, None)):
        with pytest.raises(InvalidLockName, match=r"NoneArgument.* has no|NoneType"):
            key_of(function, argument)


def test_a_callable_names_the_lock(zoo):
    @zk_locked(lambda sku, **_: f"callable/{sku}")
    def work(sku, *, amount):
        return zoo.contenders()

    assert work("{x}", amount=1)[0].rpartition("/")[0] == f"{zoo.base}/callable/%7Bx%7D"


def test_settings_name_path_and_options(zoo):
    locks = {"inventory": {"path": "inventory/{sku}", "timeout": 0, "on_conflict": "skip"}}
    with override_settings(ZKLOCK=zoo.settings(LOCKS=locks)):

        @zk_locked("inventory")
        def work(sku):
            return "done"

        @zk_locked("inventory", skip_value="busy")
        def work_or_say(sku):
            return "done"

        @zk_locked("inventory", on_conflict="raise")
        def work_or_raise(sku):
            return "done"

        assert work("7") == "done"
        with zoo.hold_elsewhere("inventory/7"):
            assert work("7") is None
            assert work_or_say("7") == "busy"
            with pytest.raises(LockBusy):
                work_or_raise("7")


async def test_a_skipped_function_returns_its_skip_value(zoo):
    @zk_locked("busy", on_conflict="skip", timeout=0, skip_value="busy")
    def work():
        return None

    @zk_locked("busy", on_conflict="skip", timeout=0, skip_value="busy")
    async def awork():
        return None

    assert await asyncio.to_thread(work) is await awork() is None
    with zoo.hold_elsewhere("busy"):
        assert await asyncio.to_thread(work) == await awork() == "busy"


async def test_an_async_function_is_locked_while_it_runs(zoo):
    seen = []

    @zk_locked("async", timeout=60)
    async def work():
        seen.append(0)
        if len(seen) == 1:
            await asyncio.to_thread(zoo.wait_contenders, "async", 2)
            await asyncio.to_thread(caught_up)  # the second would begin now
            assert len(seen) == 1
        seen[-1] = len(await asyncio.to_thread(zoo.children, "async"))

    assert inspect.iscoroutinefunction(work)
    await asyncio.gather(work(), work())
    assert seen == [2, 1]


def test_an_error_from_inside_is_not_taken_for_a_conflict(zoo):
    @zk_locked("outer", on_conflict="skip")
    def work():
        acquire_once("inner", timeout=0)

    with zoo.hold_elsewhere("inner"), pytest.raises(LockBusy):
        work()


def test_a_locked_function_may_call_itself(zoo):
    @zk_locked("recursive", timeout=0)
    def work(depth):
        return len(zoo.children("recursive")) if depth == 0 else work(depth - 1)

    assert work(3) == 1


def test_the_signature_is_kept(zoo):
    def work(a, b="x", *, c=False):
        """Docstring."""

    locked = zk_locked("signature")(work)
    assert inspect.signature(locked) == inspect.signature(work)
    assert inspect.getfullargspec(locked).args == ["a", "b"]
    assert (locked.__name__, locked.__doc__) == ("work", "Docstring.")


def test_an_unknown_field_is_refused_where_it_is_written(zoo):
    with pytest.raises(InvalidLockName, match="sku"):

        @zk_locked("inventory/{skuu}")
        def work(sku): ...


def test_generators_and_anything_but_one_function_are_refused():
    """The body of a generator would run after the release. The error says what to do."""
    context_managers = [_block, _async_block]
    for function in (_numbers, _async_numbers, *context_managers):
        with pytest.raises(TypeError, match="inside it"):
            zk_locked("x")(function)
    with pytest.raises(TypeError, match="method_decorator"):
        zk_locked("x")(Order)


def test_a_decorator_that_runs_a_generator_to_its_end_is_locked(zoo):
    def listed(function):
        return functools.wraps(function)(lambda: list(function()))

    @zk_locked("cm")
    @listed
    def work():
        yield zk_lock("cm").owned()

    @zk_locked("cm")
    @_block()
    def inside():
        return zk_lock("cm").owned()

    assert work() == [True]
    assert inside()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("argument",), {}), ((1, 2), {}), ((), {"sku": 1})],
    ids=repr,
)
def test_a_decorator_without_a_name_is_refused(args, kwargs):
    def function(): ...

    work = zk_locked(function)
    with pytest.raises(TypeError, match=r"with parentheses, locks functions, not|zk_locked.*decorate\(\)"):
        work(*args, **kwargs)


UNFINISHED = {
    "generator": lambda: (number for number in (1, 2)),
    "map": lambda: map(str, (1, 2)),
    "filter": lambda: filter(None, (1, 2)),
    "async_generator": _async_numbers,
    "coroutine": _coroutine,
    "Future": concurrent.futures.Future,
    "zip": lambda: zip((1, 2), (3, 4), strict=True),
    "QuerySet": lambda: ContentType.objects.order_by("pk"),
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_a_result_whose_work_has_not_run_is_refused(zoo, kind):
    make = UNFINISHED[kind]

    @zk_locked("work")
    def work():
        return make()

    @zk_locked("work")
    async def in_coroutine():
        return make()

    for call in (work, lambda: asyncio.run(in_coroutine())):
        with pytest.raises(TypeError, match=f"returned a {kind}, whose work would run after the lock is released"):
            call()
    zoo.assert_empty()


class Rows:
    """A container as many are: its iterator is a generator, over what it has."""

    def __iter__(self):
        yield from (1, 2)


@pytest.mark.parametrize("result", [len, functools.partial(int, "7"), Rows(), threading.current_thread()], ids=range(4))
def test_a_result_that_others_may_use_later_is_returned(zoo, result):
    """A decorator returns a function, and Django's forms are iterated when they are rendered."""
    assert zk_locked("work")(lambda: result)() is result


@pytest.mark.django_db
def test_rows_that_were_read_under_the_lock_are_returned(zoo):
    def read():
        rows = ContentType.objects.order_by("pk")
        len(rows)
        return rows

    assert zk_locked("work")(read)()._result_cache is not None


@pytest.mark.parametrize(
    "make", [ContentType.objects.none, lambda: ContentType.objects.all()[:0], lambda: MagicMock(name="x")]
)
def test_a_result_without_work_is_returned(zoo, make):
    assert zk_locked("work")(make)() is not None


async def test_a_task_that_is_not_done_is_refused(zoo):
    """A coroutine function that starts its work and does not await it holds the lock for nothing. The work goes on."""
    tasks = []

    @zk_locked("work")
    async def start(seconds):
        tasks.append(asyncio.create_task(asyncio.sleep(seconds)))
        if not seconds:
            await tasks[-1]
        return tasks[-1]

    with pytest.raises(TypeError, match="returned a Task, "):
        await start(60)
    assert tasks[0].cancel()
    assert (await start(0)).done()


def test_a_callable_without_a_key_is_told_with_the_function(zoo):
    @zk_locked(lambda skus: [f"stock/{sku}" for sku in skus])
    def restock(skus): ...

    with pytest.raises(InvalidLockName, match=r"restock got no lock: the callable in its @zk_locked returned no key"):
        restock([])


def test_a_coroutine_function_that_was_made_sync_is_locked(zoo):
    @zk_locked("order/{pk}")
    @async_to_sync
    async def pay(pk):
        return zoo.contenders()

    assert pay(7)[0].startswith(f"{zoo.base}/order/7/")
    assert repr(pay.zk_locked).endswith("pay")


def test_a_result_that_is_there_is_returned(zoo, tmp_path):
    class Pool:
        """A pool of a database driver, which is usable and can be awaited as well."""

        def __await__(self):
            yield

    done = concurrent.futures.Future()
    done.set_result(1)
    with (tmp_path / "file").open("w") as file:
        results = [[], {}.items(), range(3), iter([1]), done, file, "x", None]
        for result in results:
            assert zk_locked("work")(lambda result=result: result)() is result

        @zk_locked("work")
        async def connect():
            return Pool()

        assert isinstance(asyncio.run(connect()), Pool)


class Shop:
    @zk_locked()
    def restock(self, zoo):
        return zoo.contenders()


@zk_locked(timeout=60)
async def nightly(zoo):
    return zoo.contenders()


def test_without_a_name_the_function_names_its_lock(zoo):
    where = f"{zoo.base}/{__name__}"
    assert Shop().restock(zoo)[0].rpartition("/")[0] == f"{where}.Shop.restock"
    assert asyncio.run(nightly(zoo))[0].rpartition("/")[0] == f"{where}.nightly"
    assert len(zk_locked()(zoo.contenders)()) == 1
    scripts = {name: {"__name__": name} for name in ("__main__", "__mp_main__")}
    scripts["none"] = {}
    for script in scripts.values():
        exec("def main(): pass", script)
    nameless = [lambda: None, functools.partial(len), *(script["main"] for script in scripts.values())]

    def inside(): ...

    for function in [*nameless, inside]:
        with pytest.raises(TypeError, match=r"needs the name of a lock first.* no name of its own, as a function of"):
            zk_locked()(function)
        zk_locked("named")(function)
    nothings = [None, "", []]
    for wrong in nothings:
        with pytest.raises((TypeError, InvalidLockName)):
            zk_locked(wrong)(_coroutine)


def test_strict_refuses_a_function_that_names_its_lock():
    strict = {**settings.ZKLOCK, "STRICT": True, "LOCKS": {}}
    with override_settings(ZKLOCK=strict), pytest.raises(InvalidLockName, match=r"_coroutine' is not an entry of"):
        zk_locked()(_coroutine)


# --- objects of the caller ------------------------------------------------------------------------------------------


class Untouchable:
    """A lazy object that must not be loaded: its row would be read before the lock, or in a coroutine."""

    def __getattribute__(self, name):
        raise AssertionError(f"{name} was asked for")


@zk_locked("a")
def first(argument):
    return current_hold() is not None


@zk_locked("a")
def second(_, argument):
    return current_hold() is not None


@zk_locked("a")
def returned(argument):
    return [argument, {"key": argument}]


@zk_locked("a")
async def in_a_coroutine(argument):
    return [argument]


@pytest.mark.parametrize("call", [first, lambda value: second(None, value), returned])
def test_no_attribute_of_an_argument_or_a_result_is_read(zoo, call):
    assert call(Untouchable())


async def test_no_attribute_of_an_argument_of_a_coroutine_is_read(zoo):
    assert await in_a_coroutine(Untouchable())


def test_a_lazy_argument_is_loaded_by_the_work_alone(zoo):
    """It would else be a row of before the lock."""
    loaded = []
    argument = SimpleLazyObject(lambda: loaded.append(current_hold() is not None))

    @zk_locked("a")
    def work(account):
        bool(account)

    work(argument)
    assert loaded == [True]
