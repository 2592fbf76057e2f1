"""A site of views that write one note each, and meet an error of a lock after that: this module is its URLconf."""

import asyncio
import functools
import threading

from asgiref.sync import sync_to_async
from celery import shared_task
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


def block_of_the_lock(request):
    with zk_lock("stock", atomic="ledger"):
        return order(request)


def kept_lock(request):
    with in_ledger(), zk_lock("stock", release_on="commit"):
        return order(request)


def aborted_in_a_callback(request):
    with zk_lock("stock") as hold, in_ledger():
        write(request)
        call_later(lambda: lose(hold))
        call_later(lambda: threading.Event().wait(10))
    return done()


def lost_between_two_commits(request):
    with zk_lock("stock", atomic=["audit", "ledger"]) as hold:
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


def lost_at_the_release(request):
    lock = zk_lock("stock")
    hold = lock.acquire()
    write(request)
    lose_unnoticed(hold)
    lock.release()
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


api = NinjaAPI(urls_namespace="committingsite", docs_url=None)
api.post("order/")(lambda request: own_block(request).status_code)
handling = NinjaAPI(urls_namespace="committingsite-handling", docs_url=None)
handling.post("order/")(lambda request: own_block(request).status_code)
for kind in (LockLost, LockNotAcquired, ZooKeeperUnavailable):
    handling.add_exception_handler(kind, answer)


VIEWS = {
    view.__name__: view
    for view in (
        own_block,
        block_of_the_lock,
        kept_lock,
        aborted_in_a_callback,
        lost_between_two_commits,
        lost_at_the_end,
        lost_at_the_release,
        async_view,
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
]
SETTINGS = {**viewkinds.SETTINGS, "ROOT_URLCONF": __name__}
