"""The user's view of the types: checked by mypy, never run."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from typing import Literal, assert_type

from celery import shared_task
from django.http import HttpRequest, HttpResponse
from django.views import View

from django_zklock import (
    Hold,
    Leader,
    Lock,
    ReadWriteLock,
    current_hold,
    zk_leader,
    zk_lock,
    zk_locked,
    zk_locks,
    zk_read,
    zk_semaphore,
    zk_write,
)
from django_zklock.contrib.tokens import FenceVerifier, require_fence
from django_zklock.contrib.tokens.signing import VerifiedToken
from django_zklock.contrib.tokens.stores import DatabaseTokens, TokenStore
from django_zklock.exceptions import LockNotAcquired, LockUpgradeRefused
from django_zklock.inspection import ContenderInfo
from django_zklock.locks.multi import MultiHold, MultiLock
from django_zklock.operations import ReleaseRequest
from django_zklock.testing import LockTester


@zk_locked(
    "inventory/{sku}",
    timeout=timedelta(seconds=2),
    on_conflict="raise",
    abort_on="lost",
    grace=1,
    max_conflicts=3,
    on_lost="retry",
)
def view(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(sku)


@zk_locked("inventory/{sku}")
async def async_view(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(sku)


@zk_locked(lambda sku: f"inventory/{sku}", timeout=None)
def function(sku: str, amount: int = 1) -> int:
    return amount


@zk_locked(["account/{source}", lambda source, target: f"account/{target}"])
def transfer(source: str, target: str) -> int:
    return 1


@zk_locked(lambda skus: [f"inventory/{sku}" for sku in skus])
async def restock(skus: list[str]) -> int:
    return len(skus)


assert_type(transfer("a", "b"), int)


@zk_locked("inventory/{sku}", unique="until_start", on_duplicate="raise", unique_for=timedelta(hours=1))
def task(sku: str) -> int:
    return 1


assert_type(task("a"), int)

zk_locked("a", on_lost="never")  # type: ignore[call-overload]
zk_locked("a", unique="until_end")  # type: ignore[call-overload]
zk_locked("a", uniqe="until_done")  # type: ignore[call-overload]  # codespell:ignore

assert_type(view(HttpRequest(), "a"), HttpResponse)
assert_type(function("a", amount=2), int)
function(1)  # type: ignore[arg-type]


def use() -> None:
    with zk_lock("invoice/2026-11", timeout=5) as hold:
        assert_type(hold, Hold)
        assert_type(hold.token, int)
        assert_type(hold.lost, bool)
        assert_type(hold.lease_remaining, float)
        hold.check()
        hold.add_lost_callback(lambda lost: lost.token)
        hold.wait_lost(timeout=0.1)
        assert_type(hold.release_requested, ReleaseRequest | None)
        assert_type(hold.wait_release_requested(timeout=0.1), ReleaseRequest | None)
        hold.add_release_request_callback(lambda asked: asked.token)
        with hold.fenced("ledger", using="default") as nothing:
            assert_type(nothing, None)
    with zk_lock("a", timeout=0, on_conflict="skip") as hold:
        assert_type(hold, Hold | None)
        hold.check()  # type: ignore[union-attr]
    with zk_lock("a", atomic=True), zk_lock("b", atomic=["x", "y"], release_on="commit"):
        assert_type(current_hold("a"), Hold)
    lock = Lock("a/{b}", fields={"b": 1})
    assert_type(lock.acquire(blocking=False), Hold | None)
    assert_type(lock.locked(), bool)
    lock.release()

    with zk_locks("a", zk_lock("b", kind="read"), fields={"b": 1}, timeout=5, atomic=True) as several:
        assert_type(several, MultiHold)
        assert_type(several["a"], Hold)
        assert_type([single.token for single in several], list[int])
        assert_type(several.keys, tuple[str, ...])
        assert_type(several.lost, bool)
        assert_type(several.lease_remaining, float)
        several.check()
    locks = zk_locks("a", "b")
    assert_type(locks, MultiLock)
    assert_type(locks.acquire(blocking=False), MultiHold | None)
    assert_type(locks.keys, tuple[str, ...])
    locks.release()


@zk_locked("catalogue/{shop}", kind="read", compat="kazoo")
def reader(shop: str) -> str:
    return shop


@zk_locked("reports/{name}", limit=3, max_hold=60, warn_after=timedelta(seconds=30), min_hold=1.5)
async def permit(name: str) -> int:
    return 1


def use_kinds() -> None:
    lock = ReadWriteLock("catalogue/{shop}", fields={"shop": "a"}, timeout=5, compat=None)
    assert_type(lock.read(), Lock)
    assert_type(lock.write().acquire(timeout=1), Hold | None)
    assert_type(lock.key, str)
    with lock.write() as hold:
        assert_type(hold.kind, str)
    with zk_lock("reports", limit=3), zk_lock("a", kind="write", limit=None):
        pass
    with zk_lock("a", linger=0.5), zk_write("a", linger=timedelta(seconds=2)), zk_locks("a", "b", linger=1):
        pass
    zk_lock("a", linger="1")  # type: ignore[arg-type]
    zk_read("a", grace=None)
    zk_read("a", grace="1")  # type: ignore[arg-type]
    zk_read("a", abort_on="now")  # type: ignore[arg-type]
    zk_leader("a", linger=1)  # type: ignore[call-arg]
    try:
        assert_type(reader("a"), str)
    except LockUpgradeRefused as error:
        assert_type(error.lock, str | None)
    Lock("a", kind=1)  # type: ignore[arg-type]
    Lock("a", limit="3")  # type: ignore[arg-type]


async def use_async() -> None:
    assert_type(await permit("a"), int)
    async with zk_locks("a", "b") as several:
        assert_type(several, MultiHold)
    assert_type(await zk_locks("a").aacquire(timeout=1), MultiHold | None)
    assert_type(await async_view(HttpRequest(), "a"), HttpResponse)
    async with zk_lock("a") as hold:
        assert_type(hold, Hold)
    lock = zk_lock("a")
    assert_type(await lock.aacquire(timeout=1), Hold | None)
    await current_hold().arelease()
    await lock.arelease()


async def work(hold: Hold) -> str:
    return "done"


async def lead() -> None:
    leader = zk_leader("reindex/{shard}", fields={"shard": 7}, abort_on="lost", max_hold=timedelta(hours=1))
    assert_type(leader, Leader)
    assert_type(leader.run(lambda hold: hold.token), int | None)
    assert_type(await leader.arun(work), str | None)
    with leader as hold:
        assert_type(hold, Hold)
    async with leader as hold:
        assert_type(hold.token, int)
    assert_type(leader.is_leader, bool)
    leader.stop(grace=5)


@require_fence("inventory/{sku}", store=DatabaseTokens("shared"), header="X-Fence", leeway=timedelta(seconds=2))
def guarded(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(sku)


assert_type(guarded(HttpRequest(), "a"), HttpResponse)


class OwnStore:
    def advance(self, key: str, token: int) -> None: ...


async def verify(hold: Hold) -> None:
    signed = hold.signed_token()
    assert_type(signed, str)
    stores: list[TokenStore] = [DatabaseTokens("other"), OwnStore()]
    verifier = FenceVerifier(stores[0], keys=["a", "b"], leeway=1.5)
    assert_type(verifier.verify(signed, key=hold.key), VerifiedToken)
    fence = await verifier.averify(signed, key=hold.key)
    assert_type(fence.token, int)
    assert_type(fence.holder.host, str)
    assert_type(fence.lease_until, float)


def test_with_a_tester(zklock: LockTester) -> None:
    with zklock.busy_by("a", {"b": 1}, kind="read"), zklock.busy_by("a", what="another", limit=3):
        zklock.assert_held("a", holders=2, timeout=1)
    first, *_ = zklock.queue("a")
    assert_type(first.holds, bool)
    assert_type(first.kind, str)


def catch() -> None:
    try:
        use()
    except LockNotAcquired as error:
        assert_type(error.ahead, ContenderInfo | None)
        assert_type(error.lock, str | None)
    except TimeoutError:
        pass


def refuse_wrong_options() -> None:
    zk_lock("a", on_conflict="wait")  # type: ignore[type-var]
    zk_lock("a", abort_on="ignore")  # type: ignore[arg-type]
    zk_read("a", limit=3)  # type: ignore[call-arg]
    zk_leader("a", timeout=3)  # type: ignore[call-arg]
    zk_locked("a", on_conflict="ignore")  # type: ignore[call-overload]
    assert_type(zk_semaphore("a", 3, timeout=1), Lock)
    assert_type(zk_write("a").owned(), bool)


def skipped(policy: Literal["raise", "skip"]) -> int:
    """Blocks that may run without their lock: a guard is no dead code, and a missing one is found."""
    with zk_lock("a", timeout=0, on_conflict="skip") as hold:
        if hold is None:
            return 0
        assert_type(hold, Hold)
    for lock in (zk_read("a", on_conflict="skip"), zk_semaphore("a", 3, on_conflict=policy)):
        with lock as shared:
            assert_type(shared, Hold | None)
    with ReadWriteLock("a", on_conflict="skip").write() as written, Lock("a", on_conflict=policy) as perhaps:
        assert_type(written, Hold | None)
        perhaps.check()  # type: ignore[union-attr]
    with zk_locks("a", zk_write("b"), on_conflict="skip") as several:
        several.check()  # type: ignore[union-attr]
        assert_type(several, MultiHold | None)
    zk_locks(zk_lock("a", on_conflict="skip"))  # type: ignore[arg-type]
    with zk_lock("a", on_conflict="raise") as sure, zk_locks(zk_lock("a")) as all_of_them:
        assert_type(all_of_them, MultiHold)
        return sure.token


def skipped_in_other_forms(policy: Literal["raise", "skip"], text: str) -> None:
    with (
        functools.partial(zk_lock, "a", on_conflict="skip")() as hold,
        functools.partial(zk_lock, timeout=0)("a") as sure,
    ):
        assert_type(hold, Hold | None)
        assert_type(sure, Hold)
    with zk_semaphore("a", 3, on_conflict="skip" if text else "raise") as hold:
        assert_type(hold, Hold | None)
    with contextlib.ExitStack() as stack:
        assert_type(stack.enter_context(zk_locks("a", on_conflict=policy)), MultiHold | None)
        assert_type(stack.enter_context(zk_read("a")), Hold)
    locks: list[Lock] = [zk_lock("a"), zk_write("b")]
    assert_type(zk_locks(*locks), MultiLock)
    zk_lock("a", on_conflict=text)  # type: ignore[type-var]
    zk_lock("a", timeot=1)  # type: ignore[call-arg]  # codespell:ignore


async def skipped_async() -> None:
    async with contextlib.AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(zk_lock("a", on_conflict="skip")), Hold | None)
    async with ReadWriteLock("a", on_conflict="skip").read() as shared, zk_semaphore("a", 3) as permit:
        assert_type(shared, Hold | None)
        assert_type(permit, Hold)
    async with zk_lock("a", on_conflict="skip") as hold, zk_locks("b", on_conflict="skip") as several:
        hold.check()  # type: ignore[union-attr]
        assert_type(hold, Hold | None)
        assert_type(several, MultiHold | None)


@zk_locked("report/{day}", on_conflict="skip")
def skipped_report(day: str) -> str:
    return day


@zk_locked("report/{day}", skip_value=False, on_conflict="skip")
def report_or_false(day: str) -> str:
    return day


@shared_task
@zk_locked("report/{day}", on_conflict="skip")
def skipped_task(day: str) -> str:
    return day


class Reports:
    @zk_locked("report/{self.pk}/{day}", on_conflict="skip")
    async def make(self, day: str) -> str:
        return day


@zk_locked("report/{day}", on_conflict="skip", skip_value=None)
def report_or_none(day: str) -> str:
    return day


class Page(View):
    @zk_locked("page/{pk}", on_conflict="skip", skip_value=HttpResponse("busy"))
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    @staticmethod
    @zk_locked("page/{pk}", on_conflict="skip")
    def count(pk: int) -> int:
        return pk


async def results_of_skipped_calls() -> None:
    assert_type(report_or_none("1"), str | None)
    assert_type(Page().get(HttpRequest(), 1), HttpResponse)
    assert_type(Page.count(1), int | None)
    skipped_task.delay(1)  # type: ignore[arg-type]
    assert_type(skipped_report("1"), str | None)
    assert_type(report_or_false("1"), str | bool)
    assert_type(skipped_task("1"), str | None)
    assert_type(await Reports().make("1"), str | None)
    skipped_report("1").upper()  # type: ignore[union-attr]
    skipped_report(1)  # type: ignore[arg-type]
    zk_locked("a", skip_value=1, on_conflict="never")  # type: ignore[call-overload]
