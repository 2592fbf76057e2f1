"""The shop's pages: a sync view, an async view and a class-based view share the same locks."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views import View
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_POST

from django_zklock.exceptions import StaleToken
from shop import inventory, tasks
from shop.locking import locked
from shop.models import AbortReceipt, Item, Order


def answer(request: HttpRequest, text: str, *, status: int = 200) -> HttpResponse:
    """Answer programs with JSON, and browsers with a redirect to the previous page."""
    if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
        return JsonResponse({"result": text}, status=status)
    messages.info(request, text)
    return redirect("shop")


def ref_of(request: HttpRequest) -> str:
    """Return the request's reference, which makes a repeated request harmless."""
    return request.POST.get("ref") or str(uuid.uuid4())


@ensure_csrf_cookie
def shop(request: HttpRequest) -> HttpResponse:
    """Show stock, orders and aborts."""
    context = {
        "items": Item.objects.all(),
        "orders": Order.objects.all()[:10],
        "receipts": AbortReceipt.objects.all()[:10],
    }
    return render(request, "shop/shop.html", context)


@require_POST
@locked("inventory")
def buy(request: HttpRequest, sku: str) -> HttpResponse:
    """Sell one, or say that it is sold out."""
    try:
        inventory.sell(sku, 1, ref=ref_of(request), channel="view")
    except inventory.SoldOut:
        return answer(request, "sold out", status=410)
    except StaleToken:
        return answer(request, "another customer was faster", status=409)
    return answer(request, "sold")


@require_POST
@locked("inventory")
async def abuy(request: HttpRequest, sku: str) -> HttpResponse:
    """Sell one in an async view: waiting for the lock needs no thread."""
    try:
        await inventory.asell(sku, 1, ref=ref_of(request), channel="async view")
    except inventory.SoldOut:
        return answer(request, "sold out", status=410)
    except StaleToken:
        return answer(request, "another customer was faster", status=409)
    return answer(request, "sold")


class DeliveryView(View):
    """Deliveries. The lock is on the handler, because a GET does not need it."""

    @locked("inventory")
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        """Receive five."""
        item = inventory.receive(sku, 5, ref=ref_of(request))
        return answer(request, f"{item.stock} on the shelf")


@require_POST
def order(request: HttpRequest, sku: str) -> HttpResponse:
    """Let a worker sell one."""
    tasks.process_order.delay(sku, 1, ref_of(request))
    return answer(request, "ordered", status=202)
