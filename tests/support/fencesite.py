"""A service whose views accept only the newest holder of a lock. This module is its URLconf."""

from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.tokens import require_fence
from support.tokens import MemoryTokens

memory = MemoryTokens()
fenced, in_memory = require_fence("stock/{sku}"), require_fence("stock/{sku}", store=memory)


def answer(request, sku=""):
    return HttpResponse(f"{request.fence.key} {request.fence.token} {request.fence.holder.pid}")


async def aanswer(request, sku):
    return answer(request)


def write_row(request, sku):
    Fence.objects.update_or_create(name="row", defaults={"token": request.fence.token})
    return fail(request, sku) if "fail" in request.GET else answer(request)


def fail(request, sku):
    raise ZeroDivisionError


class Plain(View):
    def post(self, request, sku):
        return answer(request)


class AsyncPlain(View):
    async def post(self, request, sku):
        return answer(request)


class Write(View):
    post = in_memory(Plain.post)


class AsyncWrite(View):
    post = fenced(AsyncPlain.post)


VIEWS = {
    "function": in_memory(answer),
    "async-function": fenced(aanswer),
    "row": transaction.atomic(fenced(write_row)),
    "fail": fenced(fail),
    "named": require_fence("stock", store=memory, header="X-Stock-Fence")(answer),
    "braced": require_fence(lambda request, sku: f"{{{sku}}}", store=memory)(answer),
    "class": Write.as_view(),
    "dispatched": method_decorator(in_memory, name="dispatch")(Plain).as_view(),
    "async-class": AsyncWrite.as_view(),
    "async-dispatched": method_decorator(fenced, name="dispatch")(AsyncPlain).as_view(),
}

urlpatterns = [path(f"{name}/<str:sku>/", view) for name, view in VIEWS.items()]
