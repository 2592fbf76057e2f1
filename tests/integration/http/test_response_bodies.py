"""The lock of a view is held until the body of its response is complete: streamed, or rendered later."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from support import bodysite
from support.bodysite import FILE, PARTS, is_free
from support.resolving import resolved
from support.zoo import Zoo, eventually

from django_zklock import signals, zk_lock, zk_locked
from django_zklock.exceptions import LockBusy, LockLost, LockNotHeld
from django_zklock.http.streaming import ResponseLock
from django_zklock.locks.hold import Hold

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.django_db(databases=[]),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),
]

KEY = "report/7"
STREAMS = ["stream", "async-stream", "class", "dispatched", "buffer"]
ASTREAMS = ["astream", "sync-astream", "async-class"]


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with bodysite.served():
        yield


@pytest.fixture
def ends() -> Iterator[list[str]]:
    """The names of the `lock_released` and `lock_lost` signals during the test."""
    found: list[str] = []

    def released(**kwargs: Any) -> None:
        found.append("released")

    def lost(**kwargs: Any) -> None:
        found.append("lost")

    signals.lock_released.connect(released)
    signals.lock_lost.connect(lost)
    yield found
    signals.lock_released.disconnect(released)
    signals.lock_lost.disconnect(lost)


def delete_node(zoo: Zoo, key: str = KEY) -> None:
    """Delete the znode of the holder, so that it loses the lock."""
    (name,) = zoo.children(key)
    zoo.client.delete(f"{zoo.base}/{key}/{name}")


def view_of(parts: Callable[[], Iterator[bytes]], **options: Any) -> HttpResponseBase:
    """Call a locked view that streams these parts."""

    @zk_locked(KEY, timeout=0, **options)
    def view(request: HttpRequest) -> HttpResponseBase:
        return StreamingHttpResponse(parts())

    return view(RequestFactory().get("/"))


def three() -> Iterator[bytes]:
    yield from PARTS


# --- until the body is done -------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", STREAMS + ASTREAMS)
def test_a_streamed_response_keeps_the_lock_until_its_body_is_done(zoo: Zoo, client: Client, view: str) -> None:
    """The lock is released after the last part, not before, for every kind of view and body."""
    response = client.get(f"/{view}/7/")
    assert not is_free(KEY)
    assert b"".join(response) == b"".join(PARTS)
    assert is_free(KEY)
    assert bodysite.events == ([] if view == "buffer" else ["part"] * 3 + ["end"])


@pytest.mark.parametrize("view", ["astream", "async-class", "async-stream"])
async def test_an_async_client_reads_a_body_under_the_lock(zoo: Zoo, view: str) -> None:
    """The same for a response that is read in an event loop."""
    response: Any = await AsyncClient().get(f"/{view}/7/")
    assert len(zoo.children(KEY)) == 1
    assert b"".join([part async for part in response]) == b"".join(PARTS)
    assert await zk_lock("report/7", timeout=0).alocked() is False
    assert bodysite.events == ["part"] * 3 + ["end"]


def test_a_file_is_sent_under_the_lock_by_django_itself(zoo: Zoo, client: Client) -> None:
    """The file sending of a server would continue after a loss. Headers do not change."""
    response: Any = client.get("/file/7/")
    assert not is_free(KEY)
    assert int(response["Content-Length"]) == FILE.stat().st_size
    assert response.file_to_stream is None
    assert b"".join(response) == FILE.read_bytes()
    assert is_free(KEY)


def test_a_function_that_is_no_view_transfers_its_lock_too(zoo: Zoo) -> None:
    """Any locked function may return a streamed response."""

    @zk_locked("report/{name}")
    def make(name: str) -> HttpResponseBase:
        return StreamingHttpResponse(three())

    response: Any = make("7")
    assert not is_free(KEY)
    assert list(response) == PARTS
    assert is_free(KEY)


def test_the_next_request_in_the_thread_does_not_own_the_lock_of_the_body(zoo: Zoo, client: Client) -> None:
    """Between two parts the lock has no owner, so the thread cannot acquire it again as its own."""
    body = iter(client.get("/stream/7/"))
    next(body)
    assert client.get("/stream/7/").status_code == 409
    with pytest.raises(LockBusy), zk_lock(KEY, timeout=0):
        pass
    assert next(body) == PARTS[1]
    assert len(list(body)) == 1
    with zk_lock(KEY, timeout=0):
        pass


def test_a_body_read_in_another_thread_owns_its_lock_there(zoo: Zoo, client: Client) -> None:
    """The thread that computes a part owns the lock meanwhile, and may acquire it again."""
    response: Any = client.get("/stream/7/")
    got: list[bytes] = [next(iter(response))]
    thread = threading.Thread(target=lambda: got.extend(response))
    thread.start()
    thread.join()
    assert got == PARTS
    assert bodysite.events == ["part"] * 3 + ["end"]
    assert is_free(KEY)


def test_a_body_outlives_the_block_around_its_view(zoo: Zoo, ends: list[str]) -> None:
    """The lock is released when the block and all bodies are over."""
    with zk_lock(KEY) as hold:
        first: Any = view_of(three)
        second: Any = view_of(three)
        assert next(iter(first)) == PARTS[0]
        with zk_lock(KEY, timeout=0):
            pass
    assert not is_free(KEY)
    hold.check()
    assert hold.lease_remaining > 0
    assert len(list(first)) == 2
    assert not is_free(KEY)
    assert ends == []
    assert list(second) == PARTS
    assert is_free(KEY)
    with pytest.raises(LockNotHeld):
        hold.check()


def test_a_body_that_is_complete_leaves_the_lock_to_the_block_around_it(zoo: Zoo) -> None:
    """The end of the body releases only the hold of the body."""
    with zk_lock(KEY) as hold:
        response: Any = view_of(three)
        assert list(response) == PARTS
        assert not is_free(KEY)
        hold.check()
    assert is_free(KEY)


def test_the_release_is_signalled_once_and_after_the_body(zoo: Zoo, ends: list[str]) -> None:
    """`lock_released` is sent at the end of the grant, and the body is part of it."""
    lock = zk_lock(KEY)
    response: Any = view_of(three)
    assert lock.locked()
    assert ends == []
    assert list(response) == PARTS
    eventually(lambda: ends)
    assert is_free(KEY)  # whose own release is told after
    eventually(lambda: len(ends) > 1)
    assert ends == ["released"] * 2


# --- a body that ends early -------------------------------------------------------------------------------------


def test_a_body_that_fails_releases_its_lock(zoo: Zoo) -> None:
    """At once, although the exception and all it refers to stay alive."""

    def broken() -> Iterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    response: Any = view_of(broken)
    assert next(iter(response)) == b"first"
    with pytest.raises(ZeroDivisionError):
        next(iter(response))
    assert is_free(KEY)


@pytest.mark.parametrize("view", STREAMS)
def test_a_response_that_is_closed_releases_its_lock(zoo: Zoo, client: Client, view: str) -> None:
    """A WSGI server closes it when the client disconnects. The `finally` of a generator runs under the lock before."""
    response = client.get(f"/{view}/7/")
    next(iter(response))
    response.close()
    assert is_free(KEY)
    assert bodysite.events == ([] if view == "buffer" else ["part", "end"])


def test_a_response_that_was_closed_is_not_sent_without_its_lock(zoo: Zoo) -> None:
    """Reading on raises `LockNotHeld`."""
    response: Any = view_of(three)
    assert next(iter(response)) == PARTS[0]
    response.close()
    with pytest.raises(LockNotHeld):
        next(iter(response))
    assert is_free(KEY)


@pytest.mark.parametrize("view", STREAMS + ASTREAMS)
def test_a_response_that_is_not_read_releases_its_lock_when_closed(zoo: Zoo, client: Client, view: str) -> None:
    """This happens with HEAD requests."""
    response = client.get(f"/{view}/7/")
    assert not is_free(KEY)
    response.close()
    assert is_free(KEY)


@pytest.mark.parametrize("view", STREAMS + ASTREAMS + ["render", "arender"])
def test_a_response_that_is_deleted_releases_its_lock(zoo: Zoo, rf: RequestFactory, view: str) -> None:
    """A middleware may answer something else and close nothing."""
    response = Client().get(f"/{view}/7/") if "render" not in view else bodysite.render(rf.get("/"), "7")
    assert not is_free(KEY)
    del response
    gc.collect()
    eventually(lambda: is_free(KEY))


def test_a_response_is_read_once(zoo: Zoo, client: Client) -> None:
    """A second iteration is empty and needs no lock."""
    response: Any = client.get("/stream/7/")
    assert list(response) == PARTS
    assert list(response) == []


def test_closing_a_body_lets_the_running_step_finish(zoo: Zoo) -> None:
    """The lock is not granted to others while another thread computes a part."""

    def slow() -> Iterator[bytes]:
        try:
            yield b"first"
            bodysite.inside.set()
            bodysite.go_on.wait(10)
            yield b"second"
        finally:
            bodysite.note("7", "end")

    response: Any = view_of(slow)
    body = iter(response)
    next(body)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(next(body)))
    thread.start()
    try:
        assert bodysite.inside.wait(10)
        response.close()
        assert not is_free(KEY)
    finally:
        bodysite.go_on.set()
        thread.join()
    assert got == [b"second"]
    assert is_free(KEY)
    assert bodysite.events == ["end"]


def test_a_call_that_fails_after_the_function_transfers_nothing(zoo: Zoo) -> None:
    """COMMIT, for example, may fail after the function. Then its response does not keep the lock."""
    mutex = zk_lock(KEY)
    responses: list[HttpResponseBase] = []
    with (
        pytest.raises(ZeroDivisionError),
        ResponseLock(mutex, None, lambda error: error) as response_lock,
        mutex as hold,
    ):
        responses.append(response_lock.keep(hold, StreamingHttpResponse(three())))
        raise ZeroDivisionError
    assert is_free(KEY)


def test_a_view_that_lost_its_lock_sends_no_body(zoo: Zoo) -> None:
    """The answer is 503, although the view has returned a response."""

    @zk_locked(KEY, abort_on="lost")
    def view(request: HttpRequest) -> HttpResponseBase:
        delete_node(zoo)
        with contextlib.suppress(BaseException):
            threading.Event().wait(10)
        return StreamingHttpResponse(three())

    assert view(resolved(RequestFactory().get("/"), view)).status_code == 503
    assert is_free(KEY)


# --- middleware -------------------------------------------------------------------------------------------------


def test_a_middleware_may_wrap_the_body(zoo: Zoo) -> None:
    """GZipMiddleware reads the body through its own generator."""
    with override_settings(MIDDLEWARE=["django.middleware.gzip.GZipMiddleware"]):
        client = Client(headers={"accept-encoding": "gzip"})
        response: Any = client.get("/stream/7/")
        assert response["Content-Encoding"] == "gzip"
        assert not is_free(KEY)
        assert b"".join(response)[:2] == b"\x1f\x8b"
        assert is_free(KEY)
        other: Any = client.get("/stream/7/")
        zipped = iter(other)
        while len(bodysite.events) == 4:
            next(zipped)  # which begins with a header of its own
        other.close()
    assert is_free(KEY)
    assert bodysite.events[-1] == "end"
    assert bodysite.events.count("end") == 2


def test_an_answer_without_a_body_keeps_no_lock(zoo: Zoo, client: Client) -> None:
    """For HEAD, the test client and servers drop the body."""
    response = client.head("/stream/7/")
    assert b"".join(response) == b""
    assert is_free(KEY)


def test_a_response_that_replaces_that_of_the_view_keeps_no_lock(zoo: Zoo, rf: RequestFactory) -> None:
    """304 is a new response, and nothing closes the one that it replaces."""
    from django.utils.cache import get_conditional_response

    response: Any = view_of(three)
    assert not is_free(KEY)
    response = get_conditional_response(rf.get("/", headers={"if-none-match": '"a"'}), etag='"a"', response=response)
    assert response.status_code == 304
    assert is_free(KEY)


# --- a lock that is lost under the body -------------------------------------------------------------------------


def test_no_part_is_sent_after_the_loss(zoo: Zoo, reports: list[dict[str, Any]]) -> None:
    """A loss between two parts ends the body."""
    holds: list[Hold] = []

    def watched() -> Iterator[bytes]:
        with zk_lock(KEY) as hold:
            holds.append(hold)
        yield PARTS[0]
        computed.append("after the loss")
        yield PARTS[1]

    computed: list[str] = []
    response: Any = view_of(watched)
    body = iter(response)
    assert next(body) == PARTS[0]
    delete_node(zoo)
    eventually(lambda: holds[0].lost)
    with pytest.raises(LockLost):
        next(body)
    assert computed == []
    assert is_free(KEY)
    eventually(lambda: reports)
    assert [report["lock"] for report in reports] == [KEY]


@pytest.mark.parametrize("threaded", [False, True])
def test_a_part_is_aborted_when_its_lock_is_lost(zoo: Zoo, reports: list[dict[str, Any]], threaded: bool) -> None:
    """The work inside a body is aborted like that of a block, in any thread."""
    ended: list[str] = []

    def slow() -> Iterator[bytes]:
        yield b"first"
        delete_node(zoo)
        try:
            for _ in range(1000):
                time.sleep(0.01)
        finally:
            ended.append("stopped")
        yield b"never"

    def read() -> None:
        response: Any = view_of(slow)
        try:
            ended.append(next(iter(response)).decode())
            next(iter(response))
        except LockLost as error:
            ended.append(error.lock or "")

    if threaded:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    else:
        read()
    assert ended == ["first", "stopped", KEY]
    assert is_free(KEY)
    eventually(lambda: reports)
    (report,) = reports
    assert report["receipt"].delivered
    assert report["receipt"].how == ("thread" if threaded else "signal")


async def test_a_part_of_an_async_body_is_aborted_when_its_lock_is_lost(zoo: Zoo) -> None:
    """The task that computes it is not cancelled afterwards."""

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.to_thread(delete_node, zoo)
        await asyncio.sleep(10)
        yield b"never"

    @zk_locked(KEY)
    async def view(request: HttpRequest) -> HttpResponseBase:
        return StreamingHttpResponse(slow())

    response: Any = await view(RequestFactory().get("/"))
    body = aiter(response)
    assert await anext(body) == b"first"
    with pytest.raises(LockLost):
        await anext(body)
    await asyncio.sleep(0)
    assert not await zk_lock(KEY).alocked()


def test_a_part_that_went_on_after_the_loss_is_not_sent(zoo: Zoo) -> None:
    """A generator may swallow the interrupt and yield its next part, but that part is not sent."""

    def stubborn() -> Iterator[bytes]:
        yield b"first"
        delete_node(zoo)
        with contextlib.suppress(BaseException):
            threading.Event().wait(10)
        yield b"second"

    response: Any = view_of(stubborn)
    body = iter(response)
    assert next(body) == b"first"
    with pytest.raises(LockLost):
        next(body)
    assert is_free(KEY)


def test_a_body_that_is_never_aborted_is_sent_to_its_end(zoo: Zoo, ends: list[str]) -> None:
    """`abort_on="never"` applies to the body, too."""

    def lossy() -> Iterator[bytes]:
        yield b"first"
        delete_node(zoo)
        eventually(lambda: not zoo.children(KEY))
        yield b"second"

    response: Any = view_of(lossy, abort_on="never")
    assert list(response) == [b"first", b"second"]
    assert is_free(KEY)


def test_code_between_two_parts_is_not_aborted(zoo: Zoo) -> None:
    """Only the computing of a part is aborted, not the server."""
    response: Any = view_of(three)
    next(iter(response))
    delete_node(zoo)
    threading.Event().wait(0.3)  # longer than an abort takes; it would be raised here
    response.close()
    assert is_free(KEY)


def test_a_lock_released_in_its_body_ends_the_body(zoo: Zoo) -> None:
    """The same as a release inside a block."""

    def hasty() -> Iterator[bytes]:
        zk_lock(KEY).release()
        yield b"unprotected"

    response: Any = view_of(hasty)
    with pytest.raises(LockNotHeld, match="inside the body"):
        next(iter(response))
    assert is_free(KEY)


# --- rendered later ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["render", "arender"])
def test_a_template_is_rendered_under_the_lock(zoo: Zoo, client: Client, view: str) -> None:
    """The owner of the lock evaluates a lazy queryset. The lock is released afterwards."""
    response = client.get(f"/{view}/7/")
    assert response.content == b"row 1"
    assert bodysite.events == ["rendered"]
    assert is_free(KEY)


def test_the_lock_is_held_from_the_view_to_the_end_of_the_rendering(zoo: Zoo, rf: RequestFactory) -> None:
    """Post-render callbacks run under the lock, too. The response can be pickled afterwards."""
    response: Any = bodysite.render(rf.get("/"), "7")
    assert not is_free(KEY)
    with pytest.raises(LockBusy), zk_lock(KEY, timeout=0):
        pass
    during: list[bool] = []
    response.add_post_render_callback(lambda _: during.append(is_free(KEY)))
    assert response.render() is response
    assert during == [False]
    assert is_free(KEY)
    assert response.content == b"row 1"
    assert response.render() is response
    assert pickle.loads(pickle.dumps(_plain(response))).content == b"row 1"


def _plain(response: Any) -> Any:
    response.__dict__.pop("_request", None)  # as the cache middleware's tests do: a request cannot be pickled
    response.using = None
    return response


def test_a_response_that_is_rendered_already_keeps_no_lock(zoo: Zoo, rf: RequestFactory) -> None:
    """Its body is complete."""

    @zk_locked(KEY)
    def view(request: HttpRequest) -> HttpResponseBase:
        return bodysite.page(request, "7").render()

    response = view(rf.get("/"))
    assert is_free(KEY)
    assert response.render  # type: ignore[attr-defined]


def test_a_response_that_cannot_be_rendered_releases_its_lock(zoo: Zoo, rf: RequestFactory) -> None:
    """At once, although the exception stays alive."""

    @zk_locked(KEY)
    def view(request: HttpRequest) -> HttpResponseBase:
        return SimpleTemplateResponse("missing.html")

    response: Any = view(rf.get("/"))
    with pytest.raises(Exception, match=r"missing\.html"):
        response.render()
    assert is_free(KEY)


def test_a_rendering_that_loses_its_lock_is_answered_503(zoo: Zoo, rf: RequestFactory) -> None:
    """The same as for the view."""
    response: Any = bodysite.render(resolved(rf.get("/"), bodysite.render), "7")

    def rows() -> Iterator[int]:
        delete_node(zoo)
        threading.Event().wait(10)
        yield 1

    response.context_data = {"rows": rows}
    answer = response.render()
    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert is_free(KEY)


def test_nested_locks_both_keep_the_response(zoo: Zoo, rf: RequestFactory) -> None:
    """Each of them is released at the end of the body."""

    @zk_locked("outer", timeout=0)
    def render(request: HttpRequest) -> HttpResponseBase:
        return bodysite.render(request, "7")

    @zk_locked("outer", timeout=0)
    def stream(request: HttpRequest) -> HttpResponseBase:
        return bodysite.stream(request, "7")

    for view in (render, stream):
        response: Any = view(rf.get("/"))
        assert not is_free(KEY)
        assert not is_free("outer")
        if view is render:
            assert response.render() is response
        else:
            assert list(response) == PARTS
        assert is_free(KEY)
        assert is_free("outer")
