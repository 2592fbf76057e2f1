"""Calls that cannot be right say what to write instead."""

import inspect
import re
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Unpack, get_type_hints
from uuid import uuid4

import pytest
import trio
from celery import Celery
from django.core.exceptions import SynchronousOnlyOperation
from django.test import override_settings
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

import django_zklock
from django_zklock import (
    ReadWriteLock,
    conf,
    zk_leader,
    zk_lock,
    zk_locked,
    zk_locks,
    zk_read,
    zk_semaphore,
    zk_write,
)
from django_zklock.conf.arguments import KindOptions, LockArguments, LockedOptions, Unset
from django_zklock.core.locks.spec import LockSpec, Policy
from django_zklock.exceptions import InvalidLockName, ZkLockError

LETTERS = str.maketrans(string.digits, string.ascii_lowercase[:10])
WRONG_CALLS = Path(__file__).with_name("wrong_calls.txt")
"""Calls, each followed by its error."""
NAMES = {**{name: getattr(django_zklock, name) for name in django_zklock.__all__}, "Path": Path, "lazy": gettext_lazy}


def error_of(call):
    try:
        eval(call, NAMES)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_each_wrong_call_says_what_to_write_instead():
    lines = WRONG_CALLS.read_text().splitlines()
    calls, errors = lines[::3], [line.strip() for line in lines[1::3]]
    assert calls == sorted(calls)
    with with_locks("pots"):
        assert dict(zip(calls, map(error_of, calls), strict=True)) == dict(zip(calls, errors, strict=True))


def test_a_bound_task_without_self_is_refused():
    app = Celery("mistakes", broker="memory://")

    @app.task(bind=True)
    @zk_locked("k")
    def without(sku): ...

    @app.task
    @zk_locked("k/{sku}")
    def unbound(self, sku): ...

    with pytest.raises(TypeError, match=r"without\(sku.*: too many .*bind=True gets itself first: add .*self"):
        without("lamp")
    with pytest.raises(TypeError, match=r"unbound\(self.*missing .*gets itself as self only with bind=True"):
        unbound("lamp")


def test_an_app_that_is_not_installed_is_named():
    code = """
import django; from django.conf import settings
settings.configure(ZKLOCK={"URL": "zk://127.0.0.1:1/x"}); django.setup()
from django_zklock import inspection, operations, zk_lock
for use in (
    zk_lock("k").acquire,
    inspection.snapshot,
    lambda: operations.break_lock("k", token=1, guid="x", reason="r", by="me"),
):
    try:
        use()
    except django.core.exceptions.ImproperlyConfigured as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.count('Locks need "django_zklock" in INSTALLED_APPS') == 3, result.stderr


def test_an_app_may_acquire_a_lock_when_it_is_ready():
    """The order of INSTALLED_APPS does not matter, and no error says that the package is missing."""
    code = """
import django; from django.apps import AppConfig; from django.conf import settings
class Early(AppConfig):
    name, path = "__main__", "/"
    def ready(self):
        from django_zklock import zk_lock
        with zk_lock("k"): pass
apps = ["__main__.Early", "django_zklock"]
settings.configure(ZKLOCK={"URL": "zk://127.0.0.1:1/x?connect_timeout=1"}, INSTALLED_APPS=apps); django.setup()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ZooKeeperUnavailable: No connection to ZooKeeper at 127.0.0.1:1" in result.stderr


def with_locks(*names, **more):
    locks = {name: {"path": f"{name}/{{sku}}"} for name in names}
    return override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": locks, **more})


def test_a_name_that_looks_like_an_entry_warns_once_at_the_callers_line():
    """It is another lock, which protects nothing. A path, a field or a number says that it is meant."""
    with with_locks("inventory", "report1"):
        with pytest.warns(UserWarning, match=r"'inventry' is not an entry .* Did you mean 'inventory'\?") as warned:
            assert zk_lock("inventry").key == "inventry"
        assert [warning.filename for warning in warned] == [__file__]
        for name in ("inventry", "inventory/x", "report2", "books"):
            assert zk_lock(name).key == name  # any warning would be an error
    with with_locks("inventory"), pytest.warns(UserWarning, match="'inventry'") as warned:

        @zk_locked("inventry")
        def sell(): ...

    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("name", ["nmaed", "namde", "anmed"])  # codespell:ignore
def test_two_swapped_letters_look_like_an_entry(name):
    with with_locks("named", "order2026"), pytest.warns(UserWarning, match=r"Did you mean 'named'\?"):
        _ = zk_lock(name).key


def test_another_word_with_the_same_letters_does_not_warn():
    with with_locks("pot", "stream", "order12"):
        for name in ("top", "master", "order21", "dream", "streets"):
            assert zk_lock(name).key == name


def test_names_are_not_remembered_for_ever():
    with with_locks():
        for number in range(1500):
            assert zk_lock(f"order/{number}").key == f"order/{number}"
        assert len(conf.current().specs) <= 1000


def test_a_name_that_is_safe_for_html_makes_no_other_text_safe():
    with with_locks():
        assert zk_lock(mark_safe("order")).spec.template == "order"
        assert type(zk_lock("order").spec.template) is str


def test_several_locks_share_the_values_of_their_fields():
    with with_locks("pots"):
        assert zk_locks("order/{pk}", "pots", fields={"pk": 7, "sku": 8}).keys == ("order/7", "pots/8")


@pytest.mark.parametrize("name", ["order/None", "None", "None/{sku}", "a/None/b"])
def test_a_missing_value_in_a_name_warns_once(name):
    """All orders without a number would share a lock. Fields refuse None."""
    fields = {"sku": "7"} if "{" in name else None
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x"}):
        with pytest.warns(UserWarning, match=f"'{name}' has the part 'None'.* refuses None") as warned:
            _ = zk_lock(name, fields=fields).key
        assert [warning.filename for warning in warned] == [__file__]
        _ = zk_lock(name, fields=fields).key
        _ = zk_lock("order/Nonesuch").key
        _ = zk_lock("another/None").key  # formatted names are many
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/y"}), pytest.warns(UserWarning, match="'k/None' has the"):
        zk_locked(lambda: f"k/{None}")(len).zk_locked.key((), {})
    with with_locks("None"):
        assert zk_lock("None", fields={"sku": "7"}).key == "None/7"


def test_strict_refuses_every_name_that_is_neither_an_entry_nor_the_path_of_one():
    with with_locks("inventory", STRICT=True):
        assert zk_lock("inventory", fields={"sku": "a"}).key == "inventory/a"
        assert zk_lock("inventory/{item.sku}", fields={"item": SimpleNamespace(sku="a")}).key == "inventory/a"
        assert zk_lock("inventory/a").key == "inventory/a"
        for _ in range(2):
            with pytest.raises(InvalidLockName, match=r"'inventry' is not an entry .*STRICT.* mean 'inventory'\?"):
                _ = zk_lock("inventry").key
        for name in ("inventry/{sku}", "Inventory/{sku}", "inventory_{sku}"):
            with pytest.raises(InvalidLockName, match=r"is not an entry .*STRICT.* mean 'inventory/\{sku\}'\?"):
                _ = zk_lock(name, fields={"sku": "a"}).key
        for name in ("some/path", "inventory/{sku}/{sku}"):
            with pytest.raises(InvalidLockName, match=r"is not an entry .*STRICT.* is True\.$"):
                _ = zk_lock(name, fields={"sku": "a"} if "{" in name else None).key
        with pytest.raises(InvalidLockName, match=r"'books' is not an entry .* is True\.$"):
            zk_locked("books")(lambda: None)


@pytest.mark.parametrize("name", ["inventry/{sku}", "Inventory/{sku}", "inventories/{sku}", "inventory:{sku}"])
def test_a_template_that_looks_like_the_path_of_an_entry_warns_once(name):
    with with_locks("inventory"):
        with pytest.warns(UserWarning, match=r"separate lock\. Did you mean 'inventory/\{sku\}'\?") as warned:
            _ = zk_lock(name, fields={"sku": "a"}).key
        assert [warning.filename for warning in warned] == [__file__]
        _ = zk_lock(name, fields={"sku": "b"}).key


def test_a_template_of_its_own_does_not_warn():
    with with_locks("inventory", "report1"):
        for name in ("inventory/{sku}/count", "orders/{sku}", "{sku}", "report2/{sku}", "inventory/{sku.pk}"):
            _ = zk_lock(name, fields={"sku": SimpleNamespace(pk=1) if "pk" in name else "a"}).key


@pytest.mark.parametrize("name", ["inventry/7", "Inventory/7", "inventory:a/b", "cron/nightley", "cron/Nightly"])
def test_a_formatted_name_that_looks_like_the_path_of_an_entry_warns_once(name):
    locks = {"sku": {"path": "inventory/{sku}"}, "two": {"path": "inventory/{a}/{b}"}, "job": {"path": "cron/nightly"}}
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": locks}):
        with pytest.warns(UserWarning, match=r"so it is a separate lock\. Did you mean '") as warned:
            _ = zk_lock(name).key
        assert [warning.filename for warning in warned] == [__file__]
        _ = zk_lock(name.replace("7", "8")).key


def test_formatted_names_of_their_own_do_not_warn_and_are_not_remembered_for_ever():
    with with_locks("inventory"):
        for number in range(3000):
            _ = zk_lock(f"order/{str(number).translate(LETTERS)}/{number}").key
        for name in ("inventory/7", "inventory/7/count", "orders/7"):
            _ = zk_lock(name).key
        assert len(conf.current().checked_names) <= 1000


def test_a_field_without_its_digest_looks_like_the_path_of_an_entry():
    locks = {"feed": {"path": "feed/{url:digest}"}}
    with (
        override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": locks}),
        pytest.warns(UserWarning, match=r"Did you mean 'feed/\{url:digest\}'\?"),
    ):
        _ = zk_lock("feed/{url}", fields={"url": "a"}).key


@pytest.mark.parametrize("form", ["order-{}", "{}", "order/{}"])
def test_formatted_names_without_digits_are_not_remembered_for_ever(form):
    with with_locks("inventory"):
        for number in range(3000):
            _ = zk_lock(form.format(str(number).translate(LETTERS))).key
        assert len(conf.current().checked_names) <= 1000


# --- the path of an entry instead of its name -------------------------------------------------------------------------

OPTIONS = {"timeout": 3, "max_hold": 60}


def with_entries(**entries):
    return override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": entries})


def with_order(**options):
    return with_entries(order={"path": "order/{pk}", **options})


def used(lock):
    """Resolve a lock, as its first acquisition does. A warning is an error in these tests."""
    _ = lock.specs if hasattr(lock, "specs") else lock.key


@pytest.mark.parametrize(
    "make",
    [
        lambda: zk_lock("order/{pk}", fields={"pk": 7}),
        lambda: zk_lock("order/{order.pk}", fields={"order": SimpleNamespace(pk=7)}),
        lambda: zk_lock("order/7"),
        lambda: zk_lock("order/{pk}", fields={"pk": 7}, timeout=1),
        lambda: zk_locks("order/{pk}", "stock", fields={"pk": 7}, timeout=1),
        lambda: zk_read("order/{pk}", fields={"pk": 7}),
        lambda: zk_write("order/{pk}", fields={"pk": 7}),
        lambda: zk_semaphore("order/{pk}", 3, fields={"pk": 7}),
        lambda: ReadWriteLock("order/{pk}", fields={"pk": 7}),
        lambda: zk_leader("order/{pk}", fields={"pk": 7}),
        lambda: zk_lock(mark_safe("order/7")),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_the_path_of_an_entry_warns_once_that_its_options_are_lost(make, strict):
    locks = {"order": {"path": "order/{pk}", **OPTIONS}, "stock": {"path": "stock"}}
    expected = r"^'order/.*' is the path of an entry .*not its name.*: max_hold.*\. Write the name, 'order', or"
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": locks, "STRICT": strict}):
        with pytest.warns(UserWarning, match=expected) as warned:
            used(make())
        assert [warning.filename for warning in warned] == [__file__]
        used(make())
        used(zk_lock("order", fields={"pk": 7}))


def test_the_warning_names_the_lost_options_and_what_to_write():
    text = (
        "'order/{order.pk}' is the path of an entry of ZKLOCK[\"LOCKS\"], not its name, so the lock does not have the "
        "options of the entry: max_hold. Write the name, 'order', or give these options here."
    )
    with with_order(**OPTIONS), pytest.warns(UserWarning, match=re.escape(text)):
        used(zk_lock("order/{order.pk}", fields={"order": SimpleNamespace(pk=7)}, timeout=1))


def test_a_decorator_with_the_path_of_an_entry_warns_at_its_line():
    with with_order(on_conflict="retry"):
        with pytest.warns(UserWarning, match=r": on_conflict\. Write the name, 'order', or") as warned:

            @zk_locked("order/{pk}")
            def ship(pk): ...

        assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({}, lambda: zk_lock("order/{pk}", fields={"pk": 7})),
        (OPTIONS, lambda: zk_lock("order/{pk}", fields={"pk": 7}, timeout=5, max_hold=9)),
        (OPTIONS, lambda: zk_locks("order/{pk}", "stock", fields={"pk": 7}, timeout=5, max_hold=9)),
        (OPTIONS, lambda: zk_lock("order/{pk}/lines", fields={"pk": 7})),
        (OPTIONS, lambda: zk_lock("order/{pk}:{line}", fields={"pk": 7, "line": 1})),
        ({"on_conflict": "skip", "skip_value": 1}, lambda: zk_lock("order/{pk}", fields={"pk": 7})),
        ({"kind": "read"}, lambda: zk_read("order/{pk}", fields={"pk": 7})),
        ({"limit": 3}, lambda: zk_semaphore("order/{pk}", 3, fields={"pk": 7})),
        ({"compat": None}, lambda: zk_lock("order/{pk}", fields={"pk": 7}, compat=None)),
    ],
)
def test_a_path_that_loses_no_option_does_not_warn(options, make):
    with with_order(**options):
        for _ in range(2):
            used(make())


def test_a_call_that_gives_all_options_hides_no_other_call():
    with with_order(**OPTIONS):
        used(zk_lock("order/{pk}", fields={"pk": 7}, **OPTIONS))
        with pytest.warns(UserWarning, match=": max_hold, timeout. Write"):
            used(zk_lock("order/{pk}", fields={"pk": 7}))


def test_a_block_that_loses_nothing_hides_no_decorator():
    with with_order(on_conflict="retry"):
        used(zk_lock("order/{pk}", fields={"pk": 7}))
        with pytest.warns(UserWarning, match=": on_conflict. Write"):
            zk_locked("order/{pk}")(lambda pk=7: None)


def test_an_option_that_all_locks_have_is_not_lost():
    locks = {"order": {"path": "order/{pk}", "timeout": 3}}
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": locks, "DEFAULTS": {"timeout": 3}}):
        used(zk_lock("order/{pk}", fields={"pk": 7}))


def test_of_two_entries_with_a_path_the_call_needs_the_options_of_one():
    sides = {"shared": {"path": "k", "kind": "read"}, "alone": {"path": "k", "timeout": 3}}
    with with_entries(**sides):
        used(zk_read("k"))
        used(zk_lock("k", timeout=3))
        with pytest.warns(UserWarning, match=": kind, timeout. Write the name, 'shared' or 'alone', or"):
            used(zk_lock("k"))


def test_a_path_of_fields_only_is_not_the_path_of_each_name():
    with with_entries(any={"path": "{name}", **OPTIONS}, two={"path": "{app}/{pk}", **OPTIONS}):
        for name in ("nightly", "cron/nightly"):
            used(zk_lock(name))
        used(zk_lock("cron/{job}", fields={"job": "a"}))
        with pytest.warns(UserWarning, match="the name, 'two', or"):
            used(zk_lock("{a}/{b}", fields={"a": 1, "b": 2}))


def test_a_path_with_a_value_in_place_of_a_field_warns():
    with with_entries(order={"path": "shop/{shop}/order/{pk}", **OPTIONS}):
        with pytest.warns(UserWarning, match="'shop/7/order/{pk}' is the path"):
            used(zk_lock("shop/7/order/{pk}", fields={"pk": 1}))
        used(zk_lock("shop/7/order/{pk}:{line}", fields={"pk": 1, "line": 2}))


def test_formatted_names_warn_once_for_each_entry():
    with with_order(**OPTIONS):
        with pytest.warns(UserWarning, match="'order/a' is the path"):
            used(zk_lock("order/a"))
        for name in ("order/b", "order/7", "order/c-d"):
            used(zk_lock(name))


def test_the_key_of_a_unique_task_needs_no_options():
    with with_order(timeout=3):

        @zk_locked("order/{pk}", timeout=3)
        def ship(pk): ...

        wrapper = ship
        assert wrapper.zk_locked.key((7,), {}) == "order/7"


# --- texts of missing values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("user", text) for text in ("None", "[object Object]")),
        *(("pk", text) for text in ("None", "undefined", "null", "NaN", "nan", "[object Object]")),
        *((field, "undefined") for field in ("id", "order_id", "order.pk", "uuid", "order_uuid:digest")),
    ],
)
def test_the_text_of_a_missing_value_in_a_field_warns_once(field, value):
    """All requests without a user would share a lock. Python and JavaScript make such texts."""
    name = f"{uuid4().hex}/{{{field}}}"
    root = field.partition(".")[0].partition(":")[0]
    fields = {root: SimpleNamespace(pk=value) if "." in field else value}
    with with_locks("inventory"):
        with pytest.warns(
            UserWarning, match=rf"is the text '{re.escape(value)}', as of a value that is missing"
        ) as warned:
            used(zk_lock(name, fields=fields))
        assert [warning.filename for warning in warned] == [__file__]
        used(zk_lock(name, fields=fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [("category", "undefined"), ("language", "nan"), ("surname", "null"), ("user", "none"), ("pk", "Nonesuch")],
)
def test_a_text_that_may_be_a_value_does_not_warn(field, value):
    with with_locks("inventory"):
        used(zk_lock(f"list/{{{field}}}", fields={field: value}))


def test_trio_is_refused_with_the_way_out():
    """Coroutines of trio cannot wait for a lock, and a blocking call would stop them all. Both errors name a thread."""
    lock = zk_lock("k")

    @zk_locked("k", on_conflict="raise")
    async def locked(): ...

    @zk_locked("k", on_conflict="raise")
    def locked_in_a_thread(): ...

    async def main():
        calls = [lock.__aenter__, lock.aacquire, lock.alocked, locked]
        calls += [zk_leader("l").__aenter__, zk_leader("l").acurrent_leader]
        for call in calls:
            with pytest.raises(ZkLockError, match=r"only under asyncio.* await trio\.to_thread\.run_sync\(function\)"):
                await call()
        for call in (lock.__enter__, lock.acquire, lock.locked, locked_in_a_thread):
            with pytest.raises(SynchronousOnlyOperation, match=r"await trio\.to_thread\.run_sync\(function\)"):
                call()

    trio.run(main)


def test_a_signature_that_is_written_out_has_each_option_with_its_type():
    """`help()` shows it. An option that it lacks would be ignored."""
    parameters = inspect.signature(zk_lock).parameters.values()
    types = get_type_hints(zk_lock)
    written = {
        parameter.name: getattr(types[parameter.name], "__bound__", types[parameter.name]) | Unset
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert written == {name: kind | Unset for name, kind in get_type_hints(LockArguments).items()}


def test_the_signature_of_the_decorator_names_the_dict_that_has_its_options():
    """Editors and type checkers show its keys."""
    assert get_type_hints(zk_locked)["given"] == Unpack[LockedOptions]


def test_each_option_of_a_lock_is_a_field_of_its_spec():
    assert KindOptions.__annotations__.keys() <= {*LockSpec.__dataclass_fields__, *Policy.__dataclass_fields__}


@pytest.mark.parametrize("method", ["apply_async", "enqueue", "send_with_options", "defer", "call_local"])
def test_the_task_of_any_framework_is_refused(method):
    """Each of these frameworks gives this method to its tasks. Only the sending would be under the lock."""

    def task(): ...

    setattr(task, method, task)
    maker = "@shared_task" if method == "apply_async" else "@task"
    with pytest.raises(TypeError, match=rf"below the decorator that makes the task:\n    {maker}\n    @zk_locked"):
        zk_locked("k")(task)


def test_a_decorated_function_may_have_arguments_that_no_name_uses():
    @zk_locked(["order/{pk}", "a/{day}"])
    def several(pk, day, amount=1): ...

    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/t"}):
        locked = several
        assert locked.zk_locked.context_of((7, 1), {}).lock.keys == ("a/1", "order/7")
        assert locked.zk_locked.key((7, 1), {}).startswith("several/")
