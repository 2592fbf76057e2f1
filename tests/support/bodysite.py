"""A site of locked views with streamed and rendered responses, and its URLconf."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from asgiref.sync import markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_zklock import zk_lock, zk_locked, zk_locks
from django_zklock.exceptions import LockBusy
from django_zklock.locks.table import held_locks
from support.faults import BackgroundCall

LOCK = "report/{name}"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
PARTS = [b"one ", b"two ", b"three"]
FILE = Path(__file__)

events: list[str] = []
"""What the bodies did, in their order."""
inside = threading.Event()
"""Set by a body, or a middleware, that is in the middle of its work."""
go_on = threading.Event()
"""Awaited by those that linger."""


def is_free(*keys: str) -> bool:
    """Return whether another thread can acquire all of these locks at once."""

    def look() -> bool:
        try:
            with zk_locks(*keys, timeout=0):
                return True
        except LockBusy:
            return False

    return BackgroundCall(look).result()


def note(name: str, event: str) -> None:
    """Note an event, if the caller owns the lock: then it can acquire it again without waiting."""
    with zk_lock(LOCK, fields={"name": name}, timeout=0):
        events.append(event)


def parts(name: str) -> Iterator[bytes]:
    try:
        for part in PARTS:
            note(name, "part")
            yield part
    finally:
        note(name, "end")


async def aparts(name: str) -> AsyncIterator[bytes]:
    mutex = zk_lock(LOCK, fields={"name": name}, timeout=0)
    try:
        for part in PARTS:
            async with mutex:
                events.append("part")
            yield part
            await asyncio.sleep(0)
    finally:
        async with mutex:
            events.append("end")


@zk_locked(LOCK, timeout=0)
def stream(request: HttpRequest, name: str) -> HttpResponseBase:
    return StreamingHttpResponse(parts(name))


@zk_locked(LOCK, timeout=0)
async def astream(request: HttpRequest, name: str) -> HttpResponseBase:
    return StreamingHttpResponse(aparts(name))


@zk_locked(LOCK, timeout=0)
def sync_astream(request: HttpRequest, name: str) -> HttpResponseBase:
    return StreamingHttpResponse(aparts(name))


@zk_locked(LOCK, timeout=0)
async def async_stream(request: HttpRequest, name: str) -> HttpResponseBase:
    return StreamingHttpResponse(parts(name))


@zk_locked(LOCK, timeout=0)
def send_file(request: HttpRequest, name: str) -> HttpResponseBase:
    return FileResponse(FILE.open("rb"))


@zk_locked(LOCK, timeout=0)
def send_buffer(request: HttpRequest, name: str) -> HttpResponseBase:
    return FileResponse(io.BytesIO(b"".join(PARTS)))


class Report(View):
    @zk_locked(LOCK, timeout=0)
    def get(self, request: HttpRequest, name: str) -> HttpResponseBase:
        return StreamingHttpResponse(parts(name))


@method_decorator(zk_locked(LOCK, timeout=0), name="dispatch")
class DispatchedReport(View):
    def get(self, request: HttpRequest, name: str) -> HttpResponseBase:
        return StreamingHttpResponse(parts(name))


class AsyncReport(View):
    @zk_locked(LOCK, timeout=0)
    async def get(self, request: HttpRequest, name: str) -> HttpResponseBase:
        return StreamingHttpResponse(aparts(name))


def rows(name: str) -> Iterator[int]:
    """Yield rows when the template asks for them, as a queryset does."""
    note(name, "rendered")
    yield 1


def page(request: HttpRequest, name: str) -> TemplateResponse:
    template = engines["django"].from_string("{% for row in rows %}row {{ row }}{% endfor %}")
    return TemplateResponse(request, template, {"rows": lambda: rows(name)})


@zk_locked(LOCK, timeout=0)
def render(request: HttpRequest, name: str) -> HttpResponseBase:
    return page(request, name)


@zk_locked(LOCK, timeout=0)
async def arender(request: HttpRequest, name: str) -> HttpResponseBase:
    return page(request, name)


@zk_locked(LOCK, timeout=0)
async def endless(request: HttpRequest, name: str) -> HttpResponseBase:
    """Send one part; compute the next one until the client disconnects."""

    async def ticks() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            inside.set()
            await asyncio.sleep(60)
        finally:
            async with zk_lock(LOCK, fields={"name": name}, timeout=0):
                events.append("end")

    return StreamingHttpResponse(ticks())


@zk_locked(LOCK, timeout=20)
async def patient(request: HttpRequest, name: str) -> HttpResponseBase:
    return HttpResponse("had it")


@zk_locked(LOCK, timeout=0)
def slow_sync(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return a sync body, which Django reads in a thread under ASGI. Its second part is slow."""

    def ticks() -> Iterator[bytes]:
        try:
            yield b"first"
            inside.set()
            go_on.wait(20)
            yield b"second"
        finally:
            note(name, "end")

    return StreamingHttpResponse(ticks())


kept: list[object] = []
"""Exceptions of a middleware, as error reporting keeps them, with their frames and what is in them; and responses."""


def lingering_middleware(get_response: Callable[..., Awaitable[HttpResponseBase]]) -> Callable[..., object]:
    """Wait after the view if the request says so, and keep its response."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        if "linger-after" in request.GET:
            inside.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                kept.append(error)
                raise
        return response

    markcoroutinefunction(middleware)
    return middleware


lingering_middleware.async_capable = True  # type: ignore[attr-defined]
lingering_middleware.sync_capable = False  # type: ignore[attr-defined]


def failing_middleware(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Fail after the view."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        try:
            raise RuntimeError(f"after {response}")
        except RuntimeError as error:
            kept.append(error)
            raise

    return middleware


def replacing_middleware(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Answer something else, and keep the response of the view without closing it."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        kept.append(get_response(request))
        return HttpResponse("something else")

    return middleware


urlpatterns = [
    path("stream/<name>/", stream),
    path("astream/<name>/", astream),
    path("sync-astream/<name>/", sync_astream),
    path("async-stream/<name>/", async_stream),
    path("file/<name>/", send_file),
    path("buffer/<name>/", send_buffer),
    path("class/<name>/", Report.as_view()),
    path("dispatched/<name>/", DispatchedReport.as_view()),
    path("async-class/<name>/", AsyncReport.as_view()),
    path("render/<name>/", render),
    path("arender/<name>/", arender),
    path("endless/<name>/", endless),
    path("patient/<name>/", patient),
    path("slow-sync/<name>/", slow_sync),
]


def application() -> ASGIHandler:
    """Return the site for a server, with the middleware of the settings."""
    return ASGIHandler()


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Use this site as that of the project, without anything of earlier tests."""
    for left in (events, kept, inside, go_on):
        left.clear()
    with override_settings(ROOT_URLCONF="support.bodysite", TEMPLATES=TEMPLATES, ALLOWED_HOSTS=["*"]):
        yield
    go_on.set()
    kept.clear()
    assert not held_locks._guards
