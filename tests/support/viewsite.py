"""A site of locked views, for the tests of the decorator: this module is its URLconf."""

import threading

from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock import zk_lock, zk_locked

inside = threading.Event()  # set by a view that is in the middle of its work
go_on = threading.Event()  # awaited by the views that are told to linger


@zk_locked("stock/{sku}")
def buy(request, sku, quantity=1):
    if "linger" in request.GET:
        inside.set()
        while not go_on.wait(0.01):  # an abort stops a thread between two bytecodes
            pass
    return HttpResponse(f"bought {quantity} of {sku}")


@zk_locked("stock/{sku}", timeout=0)
def buy_now(request, sku):
    return HttpResponse("bought")


@zk_locked("order/{sku}")
def ship(request, sku):
    inside.set()
    go_on.wait(20)
    with zk_lock(f"stock/{sku}", timeout=40):
        return HttpResponse("shipped")


@method_decorator(zk_locked("stock/{sku}"), name="dispatch")
class AsyncBuyDispatched(View):
    async def post(self, request, sku):
        return HttpResponse("bought")


class AsyncBuyOverridden(View):
    @zk_locked("stock/{sku}")
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)

    async def post(self, request, sku):
        return HttpResponse("bought")


urlpatterns = [
    path("buy/<str:sku>/", buy),
    path("ship/<str:sku>/", ship),
    path("buy-now/<str:sku>/", buy_now),
    path("async-class-dispatched/<str:sku>/", AsyncBuyDispatched.as_view()),
    path("async-class-overridden/<str:sku>/", AsyncBuyOverridden.as_view()),
]
