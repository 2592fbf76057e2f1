"""A service whose views accept only the newest holder of a lock. This module is its URLconf."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock.contrib.fences.models import Fence
from django_zklock.fencing import require_fence
from support.tokens import MemoryTokens

memory = MemoryTokens()


def answer(request: Any) -> HttpResponse:
    return HttpResponse(f"{request.fence.key} {request.fence.token} {request.fence.holder.pid}")


@require_fence("stock/{sku}", store=memory)
def write(request: HttpRequest, sku: str) -> HttpResponse:
    return answer(request)


@require_fence("stock/{sku}")
async def awrite(request: HttpRequest, sku: str) -> HttpResponse:
    return answer(request)


@transaction.atomic
@require_fence("stock/{sku}")
def write_row(request: HttpRequest, sku: str) -> HttpResponse:
    Fence.objects.update_or_create(name="row", defaults={"token": request.fence.token})  # type: ignore[attr-defined]
    if "fail" in request.GET:
        raise ZeroDivisionError
    return answer(request)


@require_fence("stock/{sku}")
def fail(request: HttpRequest, sku: str) -> HttpResponse:
    raise ZeroDivisionError


@require_fence("stock", store=memory, header="X-Stock-Fence")
def write_named(request: HttpRequest, sku: str) -> HttpResponse:
    return answer(request)


@require_fence(lambda request, sku: f"{{{sku}}}", store=memory)
def write_braced(request: HttpRequest, sku: str) -> HttpResponse:
    return answer(request)


class Write(View):
    @require_fence("stock/{sku}", store=memory)
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return answer(request)


@method_decorator(require_fence("stock/{sku}", store=memory), name="dispatch")
class WriteDispatched(View):
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return answer(request)


class AsyncWrite(View):
    @require_fence("stock/{sku}")
    async def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return answer(request)


@method_decorator(require_fence("stock/{sku}"), name="dispatch")
class AsyncWriteDispatched(View):
    async def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return answer(request)


urlpatterns = [
    path("function/<str:sku>/", write),
    path("async-function/<str:sku>/", awrite),
    path("row/<str:sku>/", write_row),
    path("fail/<str:sku>/", fail),
    path("named/<str:sku>/", write_named),
    path("braced/<str:sku>/", write_braced),
    path("class/<str:sku>/", Write.as_view()),
    path("dispatched/<str:sku>/", WriteDispatched.as_view()),
    path("async-class/<str:sku>/", AsyncWrite.as_view()),
    path("async-dispatched/<str:sku>/", AsyncWriteDispatched.as_view()),
]
