"""Calls that cannot be right say what to write instead."""

import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Unpack, get_type_hints

import pytest
import trio
from django.test import override_settings
from django.utils.safestring import mark_safe

import django_zklock
from django_zklock import (
    conf,
    zk_leader,
    zk_lock,
    zk_locked,
    zk_locks,
    zk_read,
)
from django_zklock.conf.arguments import KindOptions, LockArguments, LockedOptions, SideArguments
from django_zklock.core.locks.spec import LockSpec, Policy
from django_zklock.exceptions import InvalidLockName, ZkLockError

LETTERS = str.maketrans(string.digits, string.ascii_lowercase[:10])
WRONG_CALLS = Path(__file__).with_name("wrong_calls.txt")
"""Calls, each followed by its error."""
NAMES = {name: getattr(django_zklock, name) for name in django_zklock.__all__}


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


def test_strict_refuses_every_name_that_is_neither_an_entry_nor_the_path_of_one():
    with with_locks("inventory", STRICT=True):
        assert zk_lock("inventory", fields={"sku": "a"}).key == "inventory/a"
        assert zk_lock("inventory/{item.sku}", fields={"item": SimpleNamespace(sku="a")}).key == "inventory/a"
        assert zk_lock("inventory/a").key == "inventory/a"
        for _ in range(2):
            with pytest.raises(InvalidLockName, match=r"'inventry' is not an entry .*STRICT.* mean .inventory"):
                _ = zk_lock("inventry").key
        for name in ("inventry/{sku}", "Inventory/{sku}", "inventory_{sku}"):
            with pytest.raises(InvalidLockName, match=r"is not an entry .*STRICT.* mean .inventory/\{sku\}"):
                _ = zk_lock(name, fields={"sku": "a"}).key
        for name in ("some/path", "inventory/{sku}/{sku}/{sku}"):
            with pytest.raises(InvalidLockName, match=r"is not an entry .*STRICT.* is True"):
                _ = zk_lock(name, fields={"sku": "a"} if "{" in name else None).key
        with pytest.raises(InvalidLockName, match=r"'books' is not an entry .* is True\. Add it\."):
            zk_locked("books")(lambda: None)


@pytest.mark.parametrize("form", ["order-{}", "{}", "order/{}"])
def test_formatted_names_are_not_remembered_for_ever(form):
    with with_locks("inventory"):
        for number in range(3000):
            _ = zk_lock(form.format(str(number).translate(LETTERS))).key
        assert len(conf.current().checked_names) <= 1000


def test_trio_is_refused_with_the_way_out():
    lock = zk_lock("k")

    @zk_locked("k", on_conflict="raise")
    async def locked(): ...

    async def main():
        calls = [lock.__aenter__, lock.aacquire, lock.alocked, locked]
        calls.append(zk_leader("l").__aenter__)
        for call in calls:
            with pytest.raises(ZkLockError, match=r"only under asyncio.* await trio\.to_thread\.run_sync\(function\)"):
                await call()

    trio.run(main)


@pytest.mark.parametrize(("call", "given"), [(zk_lock, LockArguments), (zk_read, SideArguments)])
def test_a_signature_names_the_dict_that_has_its_options(call, given):
    """Editors and type checkers show its keys."""
    assert get_type_hints(call)["options"] == Unpack[given]
    assert get_type_hints(zk_locked)["given"] == Unpack[LockedOptions]


def test_each_option_of_a_lock_is_a_field_of_its_spec():
    assert KindOptions.__annotations__.keys() <= {*LockSpec.__dataclass_fields__, *Policy.__dataclass_fields__}


@pytest.mark.parametrize("method", ["apply_async", "enqueue"])
def test_a_task_is_refused(method):
    """Celery and Django give this method to their tasks. Only the sending would be under the lock."""

    def task(): ...

    setattr(task, method, task)
    with pytest.raises(TypeError, match=r"below the decorator that makes the task:\n    @shared_task\n    @zk_locked"):
        zk_locked("k")(task)


def test_a_decorated_function_may_have_arguments_that_no_name_uses():
    @zk_locked(["order/{pk}", "a/{day}"])
    def several(pk, day, amount=1): ...

    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/t"}):
        locked = several
        assert locked.zk_locked.context_of((7, 1), {}).lock.keys == ("a/1", "order/7")
        assert locked.zk_locked.key((7, 1), {}).startswith("several/")
