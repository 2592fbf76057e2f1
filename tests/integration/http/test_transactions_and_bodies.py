"""A lock, the transaction of the request and the body of the response in one view: the order of their ends."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from support import bodysite
from support.ledger import Ledger
from support.ledgersite import lose_unnoticed
from support.zoo import Zoo, eventually

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.exceptions import LockNotHeld
from django_zklock.locks.hold import Hold
from django_zklock.locks.table import held_locks

pytestmark = pytest.mark.zookeeper

KEY = "stock"
holds: list[Hold] = []
events: list[tuple[str, bool]] = []
"""What a body did, and whether that was in a transaction."""
then: list[Callable[[], object]] = []
"""What a view does when it has written."""
afterwards: list[Callable[[], object]] = []
"""What the class around a locked handler does when that has returned, in Django's transaction still."""


def parts() -> Iterator[bytes]:
    try:
        for part in (b"one ", b"two"):
            with zk_lock(KEY, timeout=0) as hold:
                assert hold is current_hold(KEY)
            events.append(("part", connections["ledger"].in_atomic_block))
            yield part
    finally:
        events.append(("end", connections["ledger"].in_atomic_block))


def write(request: HttpRequest, kind: str) -> HttpResponseBase:
    with connections["ledger"].cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES ('x')")
    holds.append(current_hold())
    for call in then:
        call()
    if kind == "stream":
        return StreamingHttpResponse(parts())
    template = engines["django"].from_string("{% for part in parts %}{{ part }}{% endfor %}")
    return TemplateResponse(request, template, {"parts": parts})


@zk_locked(KEY, timeout=0)
def plain(request: HttpRequest, kind: str) -> HttpResponseBase:
    return write(request, kind)


@method_decorator(zk_locked(KEY, timeout=0), name="dispatch")
class Dispatched(View):
    def get(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        return write(request, kind)

    post = get


class Handler(View):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        response = super().dispatch(request, *args, **kwargs)
        for call in afterwards:
            call()
        return response

    @zk_locked(KEY, timeout=0)
    def get(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        return write(request, kind)

    post = get


@transaction.non_atomic_requests("ledger")
@zk_locked(KEY, timeout=0)
async def async_view(request: HttpRequest, kind: str) -> HttpResponseBase:
    return StreamingHttpResponse(parts()) if kind == "stream" else bodysite.page(request, "7")


urlpatterns = [
    path("plain/<kind>/", plain),
    path("dispatched/<kind>/", Dispatched.as_view()),
    path("handler/<kind>/", Handler.as_view()),
    path("async/<kind>/", async_view),
]
VIEWS = ["plain", "dispatched", "handler"]
KINDS = ["stream", "render"]


@pytest.fixture
def ledger(tmp_path: Path, django_db_blocker: Any) -> Iterator[Ledger]:
    with (
        django_db_blocker.unblock(),
        override_settings(ROOT_URLCONF=__name__, TEMPLATES=bodysite.TEMPLATES),
    ):
        ledger = Ledger("ledger", tmp_path / "ledger.sqlite3")
        ledger.settings["ATOMIC_REQUESTS"] = True
        yield ledger
        for noted in (holds, events, then, afterwards, bodysite.kept):
            noted.clear()
        ledger.assert_idle()
        ledger.close()
        assert not held_locks._guards


def lose() -> None:
    lose_unnoticed(holds[-1])


def fail() -> None:
    raise ZeroDivisionError


class Served:
    """One request, as a WSGI server serves it."""

    def __init__(self, url: str) -> None:
        environ = {**RequestFactory().get(url).environ, "wsgi.errors": io.StringIO()}
        self.status = 0
        self.response: Any = WSGIHandler()(environ, self._start)

    def _start(self, status: str, headers: object, exc_info: object = None) -> None:
        self.status = int(status.partition(" ")[0])

    def read(self) -> bytes:
        try:
            return b"".join(self.response)
        finally:
            self.response.close()


# --- when all goes well -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_request_is_committed_before_its_body_and_the_lock_released_after(
    zoo: Zoo, ledger: Ledger, view: str, kind: str
) -> None:
    """BEGIN, view, COMMIT, body, release: for all kinds of transactions."""
    with ledger.ends(lambda: (len(zoo.children(KEY)), list(events))) as ends:
        served = Served(f"/{view}/{kind}/")
        if kind == "stream":
            assert Served(f"/{view}/{kind}/").status == 409, "the next request of the thread took the lock as its own"
        assert served.read()
    assert ends[0] == ("commit", (1, []))
    assert events == [("part", False)] * 2 + [("end", False)]
    assert ledger.seen() == ["x"]
    eventually(lambda: zoo.children(KEY) == [])
    with pytest.raises(LockNotHeld):
        holds[0].check()


# --- when it is lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_lock_lost_in_the_view_leaves_no_body_and_commits_nothing(
    zoo: Zoo, ledger: Ledger, client: Client, view: str, kind: str
) -> None:
    """The answer is 503, and the response of the view does not keep the lock."""
    then.append(lose)
    assert client.get(f"/{view}/{kind}/").status_code == 503
    assert events == []
    assert ledger.seen() == []
    zoo.assert_empty()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_lost_at_djangos_commit_leaves_no_body(zoo: Zoo, ledger: Ledger, kind: str) -> None:
    """The lock was transferred to the response when COMMIT was refused. The only answer is the error."""
    afterwards.append(lose)
    served = Served(f"/handler/{kind}/")
    assert served.status == 500
    zoo.assert_empty()
    assert b"one" not in served.read()
    assert events == []
    assert ledger.seen() == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_lock_lost_after_the_commit_does_not_have_the_work_done_twice(
    zoo: Zoo, ledger: Ledger, client: Client, view: str
) -> None:
    """A client that posted is not asked to repeat what was committed; one that only reads is."""
    then.append(lambda: transaction.on_commit(lose, using="ledger"))
    answer = client.post(f"/{view}/render/")
    assert answer.status_code == 200
    assert ledger.seen() == ["x"]
    assert client.get(f"/{view}/render/").status_code == 503
    zoo.assert_empty()


# --- when something else fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["view", "middleware"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_place_of_a_response_ends_its_body(zoo: Zoo, ledger: Ledger, kind: str, where: str) -> None:
    """At once, although the exception, which the test client keeps, refers to the response."""
    afterwards.extend([fail] if where == "view" else [])
    middleware = ["support.bodysite.failing_middleware"] if where == "middleware" else []
    with override_settings(MIDDLEWARE=middleware):
        answer: Any = Client(raise_request_exception=False).get(f"/handler/{kind}/")
    assert answer.status_code == 500
    zoo.assert_empty()
    assert ledger.seen() == ([] if where == "view" else ["x"])
    assert answer.exc_info


async def test_an_error_in_place_of_an_async_response_ends_its_body(zoo: Zoo, ledger: Ledger) -> None:
    """The same with an async view and client."""
    with override_settings(MIDDLEWARE=["support.bodysite.failing_middleware"]):
        answer = await AsyncClient(raise_request_exception=False).get("/async/stream/")
    assert answer.status_code == 500
    zoo.assert_empty()


def test_an_error_of_another_request_ends_no_body(zoo: Zoo, ledger: Ledger, client: Client) -> None:
    """A test may have several responses at a time."""
    first: Any = client.get("/plain/stream/")
    afterwards.append(fail)
    with pytest.raises(ZeroDivisionError):
        client.get("/handler/stream/")
    assert b"".join(first) == b"one two"
    zoo.assert_empty()
