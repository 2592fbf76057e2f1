"""The code in the how-tos about moving: whichever versions run together, one at a time is in."""

import re
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
from celery import Task
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from support.deadlock import rivals
from support.docs import files_of, run, text_of
from support.faults import BackgroundCall, acquire_once
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockDeadlock, LockInTransaction


def keeps_out(old, new):
    for first, second in ((old, new), (new, old)):
        entered, may_end = threading.Event(), threading.Event()
        done = []

        def work(entered=entered, may_end=may_end):
            entered.set()
            assert may_end.wait(20)

        working = BackgroundCall(partial(first, "4711", work))
        assert entered.wait(10)
        waiting = BackgroundCall(partial(second, "4711", partial(done.append, "second")))
        BackgroundCall(partial(first, "4712", partial(done.append, "another"))).result()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert done == ["another"]
        may_end.set()
        working.result()
        waiting.result()
        assert done == ["another", "second"]


# --- from kazoo -------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(zoo, monkeypatch):
    zoo.client.ensure_path(zoo.chroot)
    monkeypatch.setenv("ZOOKEEPER", f"{zoo.hosts}{zoo.chroot}")
    return f"{zoo.hosts}{zoo.chroot}"


@pytest.fixture
def kazoos(address):
    clients = []

    def make(code):
        names = run(code, "kazoos")
        clients.append(names["zookeeper"])
        restock = names["restock"]
        return restock

    yield make
    for client in clients:
        client.stop()
        client.close()


def test_the_move_from_kazoo_has_no_gap(kazoos):
    files = files_of("how-to/move-from-other-locks.md")
    before = kazoos(files["before.py"])
    first, own = (run(files[name], name)["ZKLOCK"] for name in ("first.py", "own.py"))

    after = run(files["after.py"], "after")["restock"]
    with override_settings(ZKLOCK=first):
        keeps_out(before, after)
    with override_settings(ZKLOCK={**own, "LOCKS": {"stock": {"path": "stock/{sku}", "compat": "kazoo"}}}):
        in_first = run(files["after.py"].replace('"stock/{sku}"', '"stock"'), "after")["restock"]
        keeps_out(in_first, after)


def test_the_key_shows_the_path_that_kazoo_must_use(zoo):
    page = text_of("how-to/move-from-other-locks.md")
    assert 'zk_lock("stock/{sku}", fields={"sku": sku}).spec.parent' in page
    (shown,) = re.findall(r"`(stock/1234567890)` is the path `(\S+)`", page)
    assert zk_lock("stock/{sku}", fields={"sku": "1234567890"}).spec.parent == f"{zoo.base}/{shown[1]}"


# --- from Redis -------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis_page(redis, monkeypatch):
    monkeypatch.setenv("REDIS", f"redis://127.0.0.1:{redis.port}/3")
    files = files_of("how-to/move-your-locks.md")
    clients = []

    def run_file(name):
        names = run(files[f"{name}.py"], name)
        clients.extend([names["redis"]] if "redis" in names else [])
        return names

    yield run_file
    for client in clients:
        client.close()


def test_the_move_from_redis_has_no_gap(zoo, redis_page):
    versions = {name: redis_page(name) for name in ("old", "both", "new")}
    for first, other in (("old", "both"), ("both", "both"), ("both", "new"), ("new", "new")):
        keeps_out(versions[first]["restock"], versions[other]["restock"])
    eventually(lambda: versions["old"]["redis"].dbsize() == 0)


@pytest.mark.parametrize(
    ("first", "other"), [("old_add", "both_add"), ("both_add", "both_add"), ("both_add", "new"), ("new", "new")]
)
def test_the_move_from_cache_add_has_no_gap(zoo, redis_page, first, other):
    done = []
    versions = [redis_page(name)["sync"] for name in (first, other)]
    with ThreadPoolExecutor(1) as another_owner:
        for outer, inner in (versions, reversed(versions)):
            call_inner = partial(another_owner.submit, inner, "a", lambda: done.append("worked"))
            outer("a", lambda call_inner=call_inner: call_inner().result())
            assert done == []
            call_inner().result()
            assert done.pop() == "worked"


def test_an_inner_busy_lock_is_no_reason_to_skip_the_work(zoo, redis_page):
    with zoo.hold_elsewhere("partner"), pytest.raises(LockBusy):
        redis_page("both_add")["sync"]("a", lambda: acquire_once("partner", timeout=0))


def test_the_gate_sees_a_process_of_the_old_version_and_no_other(zoo, redis_page):
    old_locks = redis_page("verify")["old_locks"]
    seen = []
    redis_page("both")["restock"]("7", lambda: seen.append(old_locks(0.5)))
    redis_page("old")["restock"]("8", lambda: seen.append({name for name, _ in old_locks(0.5)}))
    assert seen == [set(), {b"stock:8"}]


@pytest.mark.django_db(transaction=True)
def test_the_first_settings_are_those_of_a_lock_in_a_cache(zoo):
    page = "how-to/move-your-locks.md"
    defaults = run(files_of(page)["settings.py"])["ZKLOCK"]["DEFAULTS"]
    with override_settings(ZKLOCK={**settings.ZKLOCK, "DEFAULTS": defaults}), transaction.atomic(), zk_lock("a"):
        pass
    with transaction.atomic(), pytest.raises(LockInTransaction, match=page), zk_lock("a"):
        pass


# --- from packages that are not installed here: stand-ins with the names that the pages use ---------------------------


@pytest.fixture
def stand_in(monkeypatch):
    def make(name, **names):
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)

    return make


def test_the_move_from_celery_once_has_no_gap(zoo, stand_in):
    caller = threading.local()

    class QueueOnce(Task):
        abstract = True

    stand_in("celery_once", QueueOnce=QueueOnce)
    stand_in("reports", build=lambda shop, day: caller.work())
    files = files_of("how-to/move-from-other-locks.md")

    def restock(task):
        def call(sku, work):
            caller.work = work
            return task.run(sku, "monday")

        return call

    both, new = (restock(run(files[f"{name}_once.py"], name)["report"]) for name in ("both", "new"))
    keeps_out(both, new)


def test_the_move_from_advisory_locks_has_no_gap(zoo, stand_in):
    locks = defaultdict(threading.Lock)

    def advisory(name, **options):
        return locks[name]

    stand_in("pglock", advisory=advisory, Raise=object())
    both = run(files_of("how-to/move-from-other-locks.md")["both_pglock.py"], "both")["restock"]
    new = run(files_of("how-to/move-your-locks.md")["new.py"], "new")["restock"]

    def old(sku, work):
        with advisory(f"stock/{sku}"):
            return work()

    for first, other in ((old, both), (both, new)):
        keeps_out(first, other)


def test_a_class_of_the_project_keeps_its_error(zoo):
    page = run(files_of("how-to/move-your-locks.md")["own_locks.py"])
    order, invoice = (page[name](SimpleNamespace(pk=7)) for name in ("OrderLock", "InvoiceLock"))
    with zoo.hold_elsewhere("order/7"), pytest.raises(page["ObjectLocked"]), order:
        pass
    with order as hold, invoice as other:
        assert (hold.key, other.key) == ("order/7", "invoice/7")
    assert not order.lock.owned()


def test_a_wrapper_gives_a_bool(zoo):
    advisory_lock = run(files_of("how-to/move-from-other-locks.md")["advisory.py"])["advisory_lock"]
    try_lock = run(files_of("how-to/move-your-locks.md")["acquired.py"])["try_lock"]
    with zoo.hold_elsewhere("advisory/7"), advisory_lock(7, wait=False) as acquired, try_lock("advisory/7") as other:
        assert acquired is other is False
    for lock_id in ("feeds", 7, (7, 8)):
        with advisory_lock(lock_id) as acquired, advisory_lock(lock_id, wait=False) as again:
            assert acquired is again is True

    def try_elsewhere(shared):
        with advisory_lock("a", shared=shared, wait=False) as acquired:
            return acquired

    with advisory_lock("a", shared=True), ThreadPoolExecutor(1) as another_owner:
        assert [another_owner.submit(try_elsewhere, shared).result() for shared in (True, False)] == [True, False]
    with ExitStack() as stack, zk_lock("advisory/b"):
        stack.enter_context(rivals(zoo, {"advisory/a": "advisory/b"}))
        with pytest.raises(LockDeadlock), advisory_lock("a"):
            pass  # calls that wait do not look at the result


@pytest.mark.django_db(transaction=True)
def test_a_lock_of_viewflow_keeps_others_out(zoo, stand_in):
    class FlowLockFailed(Exception):
        pass

    stand_in("viewflow.workflow.exceptions", FlowLockFailed=FlowLockFailed)
    code = files_of("how-to/move-from-other-locks.md")["flow_lock.py"].replace("timeout=10", "timeout=0")
    lock = run(code)["ZkLock"]()
    flow = SimpleNamespace(instance=SimpleNamespace(flow_label="shop/order"))
    with lock(flow, 7), lock(flow, 7):
        assert connection.in_atomic_block
    with zoo.hold_elsewhere("flow/shop%2Forder/7"), pytest.raises(FlowLockFailed), lock(flow, 7):
        pass


def test_a_handle_that_is_released_late_frees_no_newer_one(zoo):
    handle = run(files_of("how-to/move-from-other-locks.md")["handles.py"])["Handle"]
    expired = handle("a", 0.2)
    eventually(lambda: expired.hold.lost)
    newer = handle("a", 60)
    for _ in range(2):
        expired.release()
        with pytest.raises(RuntimeError, match="a is busy"):
            handle("a", 60)
    BackgroundCall(newer.release).result()
    handle("a", 60).release()
