"""Locks of responses that real servers send: completely, to a client that disconnects, or cut off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
import uvicorn
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.test import RequestFactory, override_settings
from support import bodysite
from support.bodysite import PARTS
from support.zoo import Zoo, eventually

from django_zklock import zk_lock

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.django_db(databases=[]),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),
]

KEY = "report/7"
VIEWS = ["stream", "astream", "sync-astream", "async-stream", "buffer", "class", "dispatched", "async-class"]


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with bodysite.served():
        yield


@contextlib.contextmanager
def asgi_server(*middleware: str) -> Iterator[int]:
    """Serve the site with uvicorn in a thread; yield the port."""
    with override_settings(MIDDLEWARE=list(middleware)), socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            bodysite.application(), lifespan="off", log_level="critical", http="h11", ws="none", loop="asyncio"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def wsgi_server() -> Iterator[int]:
    """Serve the site with the server of the standard library in a thread."""
    server = make_server("127.0.0.1", 0, WSGIHandler(), WSGIServer, _Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        connections.close_all()


@contextlib.contextmanager
def asked(port: int, path: str) -> Iterator[http.client.HTTPResponse]:
    """Return the answer of a server so far."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            yield response


def ask(port: int, path: str) -> bytes:
    with asked(port, path) as response:
        return response.read()


@contextlib.contextmanager
def visitor(port: int, path: str) -> Iterator[socket.socket]:
    """A client that disconnects at the end of the block."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield client
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not half closed


@pytest.mark.parametrize("view", VIEWS)
def test_a_server_sends_the_body_under_the_lock(zoo: Zoo, view: str) -> None:
    """Under ASGI and WSGI, each kind of body is complete, and the lock is free afterwards."""
    for serve in (asgi_server, wsgi_server):
        bodysite.events.clear()
        with serve() as port:
            assert ask(port, f"/{view}/7/") == b"".join(PARTS)
            zoo.wait_contenders(KEY, 0)
        assert bodysite.events == ([] if view == "buffer" else ["part"] * 3 + ["end"])


@pytest.mark.parametrize("view", ["render", "arender"])
def test_a_server_sends_what_was_rendered_under_the_lock(zoo: Zoo, view: str) -> None:
    """Under ASGI, a sync view is rendered in another thread than the handler's."""
    for serve in (asgi_server, wsgi_server):
        with serve() as port:
            assert ask(port, f"/{view}/7/") == b"row 1"
            zoo.wait_contenders(KEY, 0)
    assert bodysite.events == ["rendered"] * 2


def test_a_disconnect_during_a_part_releases_the_lock(zoo: Zoo) -> None:
    """The `finally` of the generator runs under the lock before."""
    with asgi_server() as port:
        with visitor(port, "/endless/7/"):
            assert bodysite.inside.wait(10)
            assert len(zoo.children(KEY)) == 1
        zoo.wait_contenders(KEY, 0)
    assert bodysite.events == ["end"]


@pytest.mark.parametrize("view", ["stream", "astream", "endless"])
async def test_a_disconnect_between_two_parts_releases_the_lock(zoo: Zoo, view: str) -> None:
    """Then the server waits to send a part, and Django's handler is cancelled there."""
    scope = {"type": "http", "method": "GET", "path": f"/{view}/7/", "headers": [], "query_string": b""}
    sending = asyncio.Event()
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, str]:
        message = next(messages)
        if message["type"] == "http.disconnect":
            await sending.wait()
        return message

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.sleep(60)

    await bodysite.application()(scope, receive, send)
    while await zk_lock(KEY, timeout=0).alocked():
        await asyncio.sleep(0.001)
    assert bodysite.events[-1] == "end"


@pytest.mark.parametrize("view", ["stream", "astream", "async-stream", "buffer", "render"])
def test_a_disconnect_before_the_body_releases_the_lock(zoo: Zoo, view: str) -> None:
    """
    Django does not close a response if the client disconnects in a middleware after the view: only the request ends.
    The test keeps the exception, which refers to the response, like an error report does.
    """
    with asgi_server("support.bodysite.lingering_middleware") as port:
        with visitor(port, f"/{view}/7/?linger-after"):
            assert bodysite.inside.wait(10)
            if view != "render":  # which the view's handler has done by now
                assert len(zoo.children(KEY)) == 1
        zoo.wait_contenders(KEY, 0)
        eventually(lambda: bodysite.kept)


def test_a_disconnect_while_a_thread_computes_keeps_the_lock(zoo: Zoo) -> None:
    """A sync body is read in a thread under ASGI. It cannot be stopped, so it keeps the lock until it is done."""
    with asgi_server() as port:
        with visitor(port, "/slow-sync/7/"):
            assert bodysite.inside.wait(10)
        (node,) = zoo.children(KEY)
        with zoo.spawn("with zk_lock('report/7', timeout=20): print('next')") as other:
            zoo.wait_contenders(KEY, 2)
            assert zoo.children(KEY)[0] == node
            bodysite.go_on.set()
            output, errors = other.communicate(timeout=20)
    assert output == "next\n", errors
    assert bodysite.events == ["end"]


def test_a_disconnect_in_the_queue_leaves_it(zoo: Zoo) -> None:
    """The view is cancelled. A later grant would never be released."""
    with asgi_server() as port, zoo.hold_elsewhere(KEY):
        with visitor(port, "/patient/7/"):
            zoo.wait_contenders(KEY, 2)
        zoo.wait_contenders(KEY, 1)


@pytest.mark.filterwarnings("ignore:Unclosed file <tempfile")  # of Django's handler, when a body fails
def test_a_body_that_loses_its_lock_is_cut_off(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    """The client can see it: the connection ends before the body."""
    with asgi_server() as port, asked(port, "/endless/7/") as response:
        assert response.status == 200
        assert bodysite.inside.wait(10)
        (name,) = zoo.children(KEY)
        zoo.client.delete(f"{zoo.base}/{KEY}/{name}")
        with pytest.raises(http.client.IncompleteRead):
            response.read()
    gc.collect()
    assert any("cut off in its body" in record.getMessage() for record in caplog.records)


def test_an_error_in_a_middleware_releases_the_lock_of_the_response(zoo: Zoo, rf: RequestFactory) -> None:
    """At once, although the exception, which is kept, refers to the response."""
    with override_settings(MIDDLEWARE=["support.bodysite.failing_middleware"]):
        answer: Any = WSGIHandler()(rf.get("/stream/7/").environ, lambda *_: None)
    zoo.wait_contenders(KEY, 0)
    assert b"Server Error" in b"".join(answer)
    answer.close()
    assert bodysite.kept


def test_an_answer_of_a_middleware_releases_the_lock_of_the_response(zoo: Zoo, rf: RequestFactory) -> None:
    """At the end of the request, although the response is kept."""
    with override_settings(MIDDLEWARE=["support.bodysite.replacing_middleware"]):
        answer: Any = WSGIHandler()(rf.get("/stream/7/").environ, lambda *_: None)
    assert len(zoo.children(KEY)) == 1
    assert b"".join(answer) == b"something else"
    answer.close()
    zoo.wait_contenders(KEY, 0)
    assert bodysite.kept
