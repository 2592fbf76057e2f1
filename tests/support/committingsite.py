"""A site of views that write one note each, and meet an error of a lock after that: this module is its URLconf."""

import asyncio
import contextlib
import functools
import threading

from asgiref.sync import sync_to_async
from celery import shared_task
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from ninja import NinjaAPI
from rest_framework.decorators import api_view

from django_zklock import zk_lock, zk_locked
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.http.responses import answer
from support import viewkinds
from support.ledgersite import lose_unnoticed, write
from support.work import lose

BUSY = "busy"
in_ledger = functools.partial(transaction.atomic, using="ledger")
done = HttpResponse  # what a view returns


@shared_task
@zk_locked("invoice/{pk}", unique="until_done")
def send_invoice(pk): ...


def helper():
    with zk_lock(BUSY, timeout=0, release_on="exit"):
        raise AssertionError


def lost_helper():
    with zk_lock("other") as hold:
        lose_unnoticed(hold)
        hold.check()


def call_later(function=helper, alias="ledger"):
    transaction.on_commit(function, using=alias)


def order(request, fail=helper):
    write(request)
    call_later(fail)
    return done()


def unique_task(request):
    return order(request, lambda: send_invoice.delay(1))


def lost_lock(request):
    return order(request, lost_helper)


def own_block(request):
    with in_ledger():
        return order(request)


def nested_blocks(request):
    with in_ledger(), in_ledger(), in_ledger():
        return order(request)


def block_of_the_lock(request):
    with zk_lock("stock", atomic="ledger"):
        return order(request)


def kept_lock(request):
    with in_ledger(), zk_lock("stock", release_on="commit"):
        return order(request)


def caught_and_raised_again(request):
    try:
        return own_block(request)
    except LockNotAcquired as error:
        raise ZooKeeperUnavailable from error


def aborted_in_a_callback(request):
    with zk_lock("stock") as hold, in_ledger():
        write(request)
        call_later(lambda: lose(hold))
        call_later(lambda: threading.Event().wait(10))
    return done()


def two_databases(request):
    """The transaction around the one that is committed is rolled back."""
    with transaction.atomic(using="audit"):
        write(request, "audit")
        with in_ledger():
            return order(request)


def lost_between_two_commits(request):
    with zk_lock("stock", atomic=["audit", "ledger"]) as hold:
        write(request)
        write(request, "audit")
        call_later(lambda: lose_unnoticed(hold))
    return done()


def kept_and_lost_between_two_commits(request):
    with transaction.atomic(using="audit"), in_ledger(), zk_lock("stock", release_on="commit") as hold:
        write(request)
        write(request, "audit")
        call_later(lambda: lose_unnoticed(hold))
    return done()


def aborted_after_a_commit(request):
    with zk_lock("stock", release_on="exit") as hold:
        with in_ledger():
            write(request)
        lose(hold)
        threading.Event().wait(10)
    return done()


def checked_after_a_commit(request):
    with zk_lock("stock", release_on="exit") as hold:
        with in_ledger():
            write(request)
        lose_unnoticed(hold)
        hold.check()
    return done()


async def async_block_aborted(request):
    async with zk_lock("stock") as hold:
        await sync_to_async(write)(request)
        lose(hold)
        await asyncio.sleep(10)
    return done()


def lost_at_the_end(request):
    with zk_lock("stock") as hold:
        with in_ledger():
            write(request)
        lose_unnoticed(hold)
    return done()


def lost_at_the_end_of_several(request):
    with zk_lock("order"), zk_lock("stock") as hold:
        write(request)
        lose_unnoticed(hold)
    return done()


def lost_at_the_release(request):
    lock = zk_lock("stock")
    hold = lock.acquire()
    write(request)
    lose_unnoticed(hold)
    lock.release()
    return done()


def lost_at_the_release_of_the_hold(request):
    hold = zk_lock("stock").acquire()
    write(request)
    lose_unnoticed(hold)
    hold.release()
    return done()


def rendered_after_the_view(request):
    write(request)
    return TemplateResponse(request, engines["django"].from_string("{{ helper }}"), {"helper": helper})


def busy_before_the_commit(request):
    with in_ledger():
        write(request)
        helper()
    return done()


async def async_view(request):
    return await sync_to_async(own_block)(request)


async def async_block_lost_at_its_end(request):
    async with zk_lock("stock", abort_on="lost") as hold:
        await sync_to_async(write)(request)
        with contextlib.suppress(BaseException):
            await sync_to_async(lose_unnoticed)(hold)
    return done()


api = NinjaAPI(urls_namespace="committingsite", docs_url=None)
api.post("order/")(lambda request: own_block(request).status_code)
handling = NinjaAPI(urls_namespace="committingsite-handling", docs_url=None)
handling.post("order/")(lambda request: own_block(request).status_code)
for kind in (LockLost, LockNotAcquired, ZooKeeperUnavailable):
    handling.add_exception_handler(kind, answer)


class LateAdmin(admin.ModelAdmin):
    def save_model(self, request, obj, form, change):
        super().save_model(request, obj, form, change)
        transaction.on_commit(helper)


saving = admin.AdminSite(name="admin")
saving.register(Group, LateAdmin)

VIEWS = {
    view.__name__: view
    for view in (
        own_block,
        nested_blocks,
        block_of_the_lock,
        kept_lock,
        caught_and_raised_again,
        aborted_in_a_callback,
        two_databases,
        lost_between_two_commits,
        kept_and_lost_between_two_commits,
        lost_at_the_end,
        lost_at_the_end_of_several,
        lost_at_the_release,
        lost_at_the_release_of_the_hold,
        async_view,
        async_block_lost_at_its_end,
        aborted_after_a_commit,
        checked_after_a_commit,
        async_block_aborted,
    )
}
"""Views that are in no transaction of the request."""
VIEWS |= {
    "in_autocommit": order,
    "function_of_rest_framework": api_view(["POST"])(lambda request: own_block(request._request)),
}
ATOMIC = {view.__name__: view for view in (unique_task, lost_lock, order, own_block, rendered_after_the_view)} | {
    "locked_view": zk_locked("stock")(order),
    "locked_atomic_view": zk_locked("stock", atomic="ledger")(order),
    "function_of_rest_framework": api_view(["POST"])(lambda request: order(request._request)),
}
"""Views under ATOMIC_REQUESTS."""
urlpatterns = [
    *(path(f"{name}/", view) for name, view in {**VIEWS}.items()),
    *(path(f"atomic/{name}/", view) for name, view in ATOMIC.items()),
    path("busy/", busy_before_the_commit),
    path("atomic/aborted_after_a_commit/", aborted_after_a_commit),
    path("atomic/checked_after_a_commit/", checked_after_a_commit),
    path("ninja/", api.urls),
    path("ninja-handling/", handling.urls),
    path("admin/", saving.urls),
]
SETTINGS = {**viewkinds.SETTINGS, "ROOT_URLCONF": __name__}
