"""A site of locked views with streamed and rendered responses, and its URLconf."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from django.http import FileResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view, renderer_classes
from rest_framework.renderers import BaseRenderer
from rest_framework.response import Response
from rest_framework.views import APIView

from django_zklock import zk_locked, zk_locks
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockBusy
from support.faults import BackgroundCall

KEY = "report"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
FILE = Path(__file__)

events = []
locked = zk_locked(KEY, timeout=0)


def is_free(*keys):
    def acquire():
        try:
            with zk_locks(*keys, timeout=0):
                return True
        except LockBusy:
            return False

    return BackgroundCall(acquire).result()


class Parts:
    def __iter__(self):
        events.append("computed")
        yield b"part"

    def close(self):
        events.append("closed")


class AsyncParts:
    async def __aiter__(self):
        events.append("computed")
        yield b"part"

    def close(self):
        events.append("closed")


def stream(request):
    return StreamingHttpResponse(Parts())


async def async_stream(request):
    return StreamingHttpResponse(AsyncParts())


class Handler(View):
    body: Any = None

    @locked
    def get(self, request):
        response = self.body(request)
        return response


def page(request):
    template = engines["django"].from_string("{% if held %}held{% endif %}")
    return TemplateResponse(request, template, {"held": lambda: not is_free(KEY)})


async def async_page(request):
    return page(request)


class HeldRenderer(BaseRenderer):
    media_type = "text/plain"
    format = "txt"

    def render(self, data, accepted_media_type=None, renderer_context=None):
        return b"free" if is_free(KEY) else b"held"


@method_decorator(locked, name="dispatch")
class DispatchedApi(APIView):
    renderer_classes = (HeldRenderer,)

    def get(self, request):
        return Response("data")


class ApiHandler(APIView):
    renderer_classes = (HeldRenderer,)
    get = locked(DispatchedApi.get)


def data(request):
    return Response("data")


STREAMS = {
    "stream": locked(stream),
    "async-view": locked(async_stream),
    "handler": Handler.as_view(body=staticmethod(stream)),
}
PAGES = {
    "render": locked(page),
    "async-render": locked(async_page),
    "rendering-handler": Handler.as_view(body=staticmethod(page)),
    "dispatched-api": DispatchedApi.as_view(),
}
REST = {"api-handler": ApiHandler.as_view(), "api": api_view(["GET"])(renderer_classes([HeldRenderer])(locked(data)))}
FILES = {"file": locked(lambda request: FileResponse(FILE.open("rb")))}

urlpatterns = [path(f"{name}/", view) for name, view in {**STREAMS, **FILES, **PAGES, **REST}.items()]


@contextlib.contextmanager
def served():
    events.clear()
    with override_settings(ROOT_URLCONF="support.bodysite", TEMPLATES=TEMPLATES, ALLOWED_HOSTS=["*"]):
        yield
    assert not held_locks._guards
