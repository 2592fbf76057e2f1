"""`@zk_locked` with several locks: functions, views, rendered responses, and transactions."""

import asyncio

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.urls import path
from support.bodysite import TEMPLATES, is_free

from django_zklock import current_hold, zk_locked, zk_locks
from django_zklock.exceptions import InvalidLockName, LockInTransaction, LockLost
from django_zklock.locks.hold import held_of

pytestmark = pytest.mark.django_db(databases=[])

LOCKS = ["b/{name}", "a/{name}"]


def held(name):
    return not any(current_hold(f"{folder}/{name}").lost for folder in "ab")


def test_a_function_runs_under_all_its_locks(zoo):
    @zk_locked(["pay/{source}", lambda source, target: f"pay/{target}"])
    def transfer(source, target):
        return sorted(path.split("/")[-2] for path in zoo.contenders())

    @zk_locked(lambda *keys: list(keys))
    async def touch(*keys):
        await asyncio.sleep(0)
        return sorted(path.split("/")[-2] for path in zoo.contenders())

    assert transfer(2, 1) == ["1", "2"]
    assert transfer(2, 2) == ["2"]
    assert asyncio.run(touch("y", "{x}")) == ["%7Bx%7D", "y"]
    with pytest.raises(InvalidLockName):
        asyncio.run(touch())


def test_fields_are_checked_when_the_function_is_decorated(zoo):
    with pytest.raises(InvalidLockName, match="but the call has sku"):

        @zk_locked(["a/{sku}", "b/{skuu}"])
        def work(sku): ...

    for names in ([], [3], {"a": 1}, None):
        with pytest.raises(TypeError, match="needs the name"):
            zk_locked(names)


def test_each_of_several_locks_has_the_options_of_its_entry(zoo):
    locks = {"stock": {"path": "stock/{sku}", "abort_on": "never", "grace": 2, "on_conflict": "skip", "timeout": 60}}
    with zoo.configured(LOCKS=locks, DEFAULTS={"timeout": 0}):

        @zk_locked(["stock", "till"], grace=1)
        def work(sku):
            return tuple(held_of(current_hold(key)).policy for key in (f"stock/{sku}", "till"))

        stock, till = work(1)
        assert (stock.abort_on, stock.grace) == ("never", 1)
        assert (till.abort_on, till.grace) == ("suspended", 1)
        with zoo.hold_elsewhere("till"):
            assert work(1) is None  # the shortest timeout, and the policy, of the locks


def test_several_entries_that_want_different_policies_are_refused(zoo):
    locks = {"stock": {"path": "stock", "on_conflict": "skip"}, "till": {"path": "till", "on_conflict": "raise"}}
    with zoo.configured(LOCKS=locks):
        with pytest.raises(ImproperlyConfigured, match=r"whose entries differ in on_conflict\. Give on_conflict to"):
            zk_locked(["stock", "till"])(lambda: None)()
        assert zk_locked(["stock", "till"], on_conflict="raise")(lambda: 1)() == 1


@zk_locked(LOCKS, timeout=0)
def view(request, name):
    if "lose" in request.GET:
        raise LockLost("The lock was taken away.", lock=f"b/{name}")
    return HttpResponse(str(held(name)))


@zk_locked(LOCKS, timeout=0)
def rendered(request, name):
    template = engines["django"].from_string("{{ held }}")
    return TemplateResponse(request, template, {"held": lambda: held(name)})


urlpatterns = [path("view/<name>/", view), path("rendered/<name>/", rendered)]


@pytest.fixture(autouse=True)
def site(zoo):
    with override_settings(ROOT_URLCONF=__name__, TEMPLATES=TEMPLATES):
        yield


@pytest.mark.parametrize("name", ["view", "rendered"])
def test_a_view_answers_409_if_any_of_its_locks_is_busy(zoo, client, name):
    for key in ("a/7", "b/7"):
        with zoo.hold_elsewhere(key):
            assert client.get(f"/{name}/7/").status_code == 409
    response = client.get(f"/{name}/7/")
    assert response.status_code == 200
    assert response.getvalue().startswith(b"True")
    response.close()
    assert is_free("a/7", "b/7")
    assert client.get("/view/7/?lose=1").status_code == 503


def test_one_transaction_is_inside_all_locks(zoo, ledger):
    seen = []
    with zk_locks("a/1", "b/1", atomic="ledger"):
        assert len(connections["ledger"].atomic_blocks) == 1
        transaction.on_commit(lambda: seen.append(held("1")), using="ledger")
    assert seen == [True]
    with pytest.raises(LockInTransaction), transaction.atomic("ledger"), zk_locks("a/1", "b/1"):
        pass
    with transaction.atomic("ledger"):
        with zk_locks("a/1", "b/1", release_on="commit"):
            pass
        assert not is_free("a/1")
        assert not is_free("b/1")
    assert is_free("a/1", "b/1")


@pytest.mark.parametrize("key", ["a/1", "b/1"])
def test_nothing_is_committed_if_any_lock_is_lost_by_then(zoo, ledger, key):
    seen = []
    with pytest.raises(LockLost) as caught, zk_locks("a/1", "b/1", atomic="ledger") as hold:
        transaction.on_commit(lambda: seen.append("committed"), using="ledger")
        held_of(hold[key]).grant.lost_reason = "the test says so"
    assert caught.value.lock == key
    assert seen == []
    assert not connections["ledger"].in_atomic_block
