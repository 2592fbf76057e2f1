"""A site of locked views that write to a database with ATOMIC_REQUESTS: this module is its URLconf."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.viewsets import ViewSet

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.locks.hold import Hold

then: list[Callable[[Hold], object]] = []
"""Calls that a view makes with its hold after it has written."""


def lose_unnoticed(hold: Hold) -> None:
    """Mark a hold as lost in a way that the work does not notice."""
    done = threading.Event()
    try:
        hold._held.grant.session.post(hold._held.grant.lose, "taken away")
        hold._held.grant.session.post(done.set)
        assert done.wait(5)
        threading.Event().wait(0.5)
    except BaseException:
        pass


def write(request: HttpRequest, alias: str = "ledger") -> HttpResponse:
    """Do the work of a view; say whether it is in a transaction."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES ('x')")
    for call in then:
        call(current_hold())
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse(f"{len(connection.atomic_blocks)}")


@zk_locked("stock")
def plain(request: HttpRequest) -> HttpResponse:
    return write(request)


@csrf_exempt
@zk_locked("stock")
def wrapped(request: HttpRequest) -> HttpResponse:
    return write(request)


@zk_locked("outer")
@zk_locked("stock")
def twice(request: HttpRequest) -> HttpResponse:
    return write(request)


@zk_locked("stock", atomic="audit")
def both(request: HttpRequest) -> HttpResponse:
    write(request, "audit")
    return write(request)


@transaction.non_atomic_requests("ledger")
@zk_locked("stock")
def opted_out_above(request: HttpRequest) -> HttpResponse:
    return write(request)


@zk_locked("stock")
@transaction.non_atomic_requests("ledger")
def opted_out_below(request: HttpRequest) -> HttpResponse:
    return write(request)


@transaction.non_atomic_requests("ledger")
@zk_locked("stock", atomic="ledger")
def opted_out_with_its_own(request: HttpRequest) -> HttpResponse:
    return write(request)


@transaction.atomic(using="ledger")
@zk_locked("stock")
def atomic_above(request: HttpRequest) -> HttpResponse:
    return write(request)


@zk_locked("stock")
@transaction.atomic(using="ledger")
def atomic_below(request: HttpRequest) -> HttpResponse:
    return write(request)


@zk_locked("stock")
async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("async")


@transaction.non_atomic_requests("ledger")
@zk_locked("stock")
async def async_view_opted_out(request: HttpRequest) -> HttpResponse:
    return HttpResponse("async")


@zk_locked("stock")
def helper(request: HttpRequest) -> HttpResponse:
    return write(request)


def calls_helper(request: HttpRequest) -> HttpResponse:
    return helper(request)


def acquires_a_lock(request: HttpRequest) -> HttpResponse:
    with zk_lock("stock"):
        return write(request)


class Handler(View):
    @zk_locked("stock")
    def get(self, request: HttpRequest) -> HttpResponse:
        return write(request)


class HandlerInBlock(View):
    @transaction.atomic(using="ledger")
    @zk_locked("stock")
    def get(self, request: HttpRequest) -> HttpResponse:
        return write(request)


@method_decorator(zk_locked("stock"), name="get")
class DecoratedHandler(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return write(request)


@method_decorator(zk_locked("stock"), name="dispatch")
class Dispatched(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return write(request)


class OwnDispatch(View):
    @zk_locked("stock")
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        return write(request)


@api_view(["GET"])
@zk_locked("stock", release_on="commit")
def api_function(request: Request) -> HttpResponse:
    return write(request._request)


@transaction.non_atomic_requests("ledger")
@api_view(["GET"])
@zk_locked("stock", atomic="ledger")
def api_function_opted_out(request: Request) -> HttpResponse:
    return write(request._request)


class Actions(ViewSet):
    @zk_locked("stock")
    def buy(self, request: Request) -> HttpResponse:
        return write(request._request)


@method_decorator(transaction.non_atomic_requests("ledger"), name="dispatch")
class OptedOutActions(ViewSet):
    @zk_locked("stock", atomic="ledger")
    def buy(self, request: Request) -> HttpResponse:
        return write(request._request)

    @transaction.atomic(using="ledger")
    def cancel(self, request: Request) -> HttpResponse:
        return write(request._request)


api = NinjaAPI(urls_namespace="ledgersite", docs_url=None)


@api.get("stock/")
@zk_locked("stock", release_on="commit")
def operation(request: HttpRequest) -> HttpResponse:
    return write(request)


urlpatterns = [
    path("plain/", plain),
    path("wrapped/", wrapped),
    path("twice/", twice),
    path("both/", both),
    path("opted_out_above/", opted_out_above),
    path("opted_out_below/", opted_out_below),
    path("opted_out_with_its_own/", opted_out_with_its_own),
    path("atomic_above/", atomic_above),
    path("atomic_below/", atomic_below),
    path("async_view/", async_view),
    path("async_view_opted_out/", async_view_opted_out),
    path("calls_helper/", calls_helper),
    path("acquires_a_lock/", acquires_a_lock),
    path("handler/", Handler.as_view()),
    path("handler_in_block/", HandlerInBlock.as_view()),
    path("decorated_handler/", DecoratedHandler.as_view()),
    path("handler_opted_out/", transaction.non_atomic_requests("ledger")(Handler.as_view())),
    path("api_function/", api_function),
    path("api_function_opted_out/", api_function_opted_out),
    path("action/", Actions.as_view({"get": "buy"})),
    path("action_opted_out/", OptedOutActions.as_view({"get": "buy"})),
    path("other_action_opted_out/", OptedOutActions.as_view({"get": "cancel"})),
    path("ninja/", api.urls),
    path("dispatched/", Dispatched.as_view()),
    path("own_dispatch/", OwnDispatch.as_view()),
]
