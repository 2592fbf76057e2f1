"""A site of locked views that write to a database with ATOMIC_REQUESTS: this module is its URLconf."""

import contextlib
import threading

from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.viewsets import ViewSet

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.locks.hold import held_of

then = []  # calls that a view makes with its hold after it has written
locked = zk_locked("stock")
locked_with_its_own = zk_locked("stock", atomic="ledger")
in_block = transaction.atomic(using="ledger")
opted_out = transaction.non_atomic_requests("ledger")  # it marks the function that it gets


def lose_unnoticed(hold):
    """Mark a hold as lost in a way that the work does not notice."""
    done = threading.Event()
    with contextlib.suppress(BaseException):
        held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
        held_of(hold).grant.session.post(done.set)
        assert done.wait(5)
        threading.Event().wait(0.5)


def write(request, alias="ledger"):
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES ('x')")
    for call in then:
        call(current_hold())
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse(f"{len(connection.atomic_blocks)}")


@zk_locked("stock", atomic="audit")
def both(request):
    write(request, "audit")
    return write(request)


def write_outside(request):
    return write(request)


def calls_helper(request):
    return locked(write)(request)


async def async_view(request):
    return HttpResponse("async")


def acquires_a_lock(request):
    with zk_lock("stock"):
        return write(request)


class Plain(View):
    def get(self, request):
        return write(request)


class Handler(View):
    get = locked(Plain.get)


class HandlerInBlock(View):
    get = in_block(locked(Plain.get))


@method_decorator(locked, name="get")
class DecoratedHandler(Plain): ...


@method_decorator(locked, name="dispatch")
class Dispatched(Plain): ...


class OwnDispatch(Plain):
    @locked
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


def of_request(request):
    return write(request._request)


class Actions(ViewSet):
    @locked
    def buy(self, request):
        return of_request(request)


@method_decorator(opted_out, name="dispatch")
class OptedOutActions(ViewSet):
    @locked_with_its_own
    def buy(self, request):
        return of_request(request)

    @in_block
    def cancel(self, request):
        return of_request(request)


kept = zk_locked("stock", release_on="commit")
api = NinjaAPI(urls_namespace="ledgersite", docs_url=None)
api.get("stock/")(kept(write))

VIEWS = {
    "plain": locked(write),
    "wrapped": csrf_exempt(locked(write)),
    "twice": zk_locked("outer")(locked(write)),
    "both": both,
    "opted_out_above": opted_out(locked(write)),
    "opted_out_below": locked(opted_out(write_outside)),
    "opted_out_with_its_own": opted_out(locked_with_its_own(write)),
    "atomic_above": in_block(locked(write)),
    "atomic_below": locked(in_block(write)),
    "async_view": locked(async_view),
    "async_view_opted_out": opted_out(locked(async_view)),
    "calls_helper": calls_helper,
    "acquires_a_lock": acquires_a_lock,
    "handler": Handler.as_view(),
    "handler_in_block": HandlerInBlock.as_view(),
    "decorated_handler": DecoratedHandler.as_view(),
    "handler_opted_out": opted_out(Handler.as_view()),
    "api_function": api_view(["GET"])(kept(of_request)),
    "api_function_opted_out": opted_out(api_view(["GET"])(locked_with_its_own(of_request))),
    "action": Actions.as_view({"get": "buy"}),
    "action_opted_out": OptedOutActions.as_view({"get": "buy"}),
    "other_action_opted_out": OptedOutActions.as_view({"get": "cancel"}),
    "dispatched": Dispatched.as_view(),
    "own_dispatch": OwnDispatch.as_view(),
}

urlpatterns = [*(path(f"{name}/", view) for name, view in VIEWS.items()), path("ninja/", api.urls)]
