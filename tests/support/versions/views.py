"""The web site of the project: locked views, signed tokens for the other site, and views that send tasks."""

from __future__ import annotations

import uuid

from celery.result import AsyncResult
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.fencing import require_fence
from support.versions import balancer
from support.versions.keys import HANDED
from support.versions.record import Stay, note, recorded, work
from support.versions.shop import TASKS, adopt

STALE_TRIES = 3


@recorded(lambda request, key: key)
@zk_locked("{key}")
def stay(request: HttpRequest, key: str) -> HttpResponse:
    """Work under the lock."""
    with work(current_hold(), request.GET["ref"], "view"):
        return HttpResponse("done")


@recorded(lambda request, key: key)
@zk_locked("{key}")
def pay(request: HttpRequest, key: str) -> HttpResponse:
    """Send a request to another site, with the token of the lock."""
    hold = current_hold()
    sites, order = request.GET["to"].split(","), f"/book/{key}?ref={request.GET['ref']}"
    with work(hold, request.GET["ref"], "pay"):
        for tries_left in reversed(range(STALE_TRIES)):
            try:
                return HttpResponse(balancer.get(sites, order, lambda: {"X-Fencing-Token": hold.signed_token()}))
            except balancer.Stale:  # on a busy machine, the lease that is in the token may be over when it is read
                hold.check()
                if not tries_left:
                    raise
        raise AssertionError


@csrf_exempt
@require_fence("{key}")
def book(request: HttpRequest, key: str) -> HttpResponse:
    """Accept the request of a site whose token is not older than the last."""
    ref = request.GET["ref"]
    note("unit", ref=f"{ref}-booked", kind="book")
    note("accepted", about=ref)
    return HttpResponse("booked")


def send(request: HttpRequest, task: str, key: str) -> JsonResponse:
    """Send a task; say which one does the work, as that of an earlier call may."""
    return _queued(TASKS[task].delay(key))


def hand(request: HttpRequest) -> JsonResponse:
    """Hand the lock over to a task."""
    stay, ref = Stay(HANDED), uuid.uuid4().hex
    with stay.around(), zk_lock(HANDED) as hold:
        with stay.inside(hold, handed=ref):
            pass
        return _queued(adopt.delay(hold.hand_over(within=60), ref))


def _queued(result: AsyncResult[None]) -> JsonResponse:
    note("queued", about=result.id)
    return JsonResponse({"ref": result.id})


urlpatterns = [
    path("stay/<str:key>", stay),
    path("hand", hand),
    path("pay/<str:key>", pay),
    path("book/<str:key>", book),
    path("send/<str:task>/<str:key>", send),
]
