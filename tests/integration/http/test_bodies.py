"""The bodies of responses from locked views: complete before the release, or refused."""

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from support import bodysite
from support.bodysite import FILE, KEY, PAGES, REST, STREAMS, is_free
from support.ledgersite import lose_unnoticed

from django_zklock import current_hold, zk_lock, zk_locked

pytestmark = pytest.mark.django_db(databases=[])


@pytest.fixture(autouse=True)
def site(zoo):
    with bodysite.served():
        yield


@pytest.mark.parametrize("view", STREAMS)
def test_a_streamed_response_is_refused(client, view):
    with pytest.raises(TypeError, match=r'returned a StreamingHttpResponse.*"with zk_lock\(\.\.\.\)"'):
        client.get(f"/{view}/")
    assert is_free(KEY)


def test_a_generator_may_hold_the_lock_itself(client):
    def parts():
        with zk_lock(KEY, timeout=0):
            yield b"held" if not is_free(KEY) else b"free"

    def view(request):
        return StreamingHttpResponse(parts())

    with override_settings(ROOT_URLCONF=(path("", view),)):
        assert client.get("/").getvalue() == b"held"
    assert is_free(KEY)


def test_a_file_is_sent_after_the_release(client):
    """The view has opened it, so it is no longer to be computed."""
    response = client.get("/file/")
    assert is_free(KEY)
    assert response.getvalue() == FILE.read_bytes()


@pytest.mark.parametrize(("view", "lock"), [*((view, b"held") for view in PAGES), *((view, b"free") for view in REST)])
def test_a_response_is_rendered_under_the_lock_but_for_rest_handlers(client, view, lock):
    """Django REST framework chooses the renderer when the handler has returned."""
    assert client.get(f"/{view}/").content == lock
    assert is_free(KEY)


async def test_in_an_event_loop_a_response_is_rendered_and_a_stream_is_refused():
    response = await AsyncClient().get("/async-render/")
    assert response.content == b"held"
    assert not await zk_lock(KEY).alocked()
    with pytest.raises(TypeError, match="after the lock is released"):
        await AsyncClient().get("/async-view/")
    assert not await zk_lock(KEY).alocked()


def test_a_post_render_callback_runs_under_the_lock(rf):
    seen = []

    def replace(response):
        seen.append(is_free(KEY))
        return HttpResponse("other")

    @zk_locked(KEY)
    def view(request):
        response = bodysite.page(request)
        response.add_post_render_callback(replace)
        return response

    assert view(rf.get("/")).content == b"other"
    assert seen == [False]


def write_and_render(rows):
    connections["ledger"].cursor().execute("INSERT INTO note VALUES ('x')")
    template = engines["django"].from_string("{{ rows }}")
    return TemplateResponse(HttpRequest(), template, {"rows": rows})


@pytest.fixture
def atomic(ledger):
    ledger.settings["ATOMIC_REQUESTS"] = True
    return ledger


def ask(view):
    with override_settings(ROOT_URLCONF=(path("", view),)):
        return Client(raise_request_exception=False).get("/")


def test_rendering_commit_and_release_come_in_this_order(zoo, atomic):
    events = []

    @zk_locked(KEY)
    def view(request):
        return write_and_render(lambda: events.append(("rendered", is_free(KEY))))

    with atomic.ends(lambda: is_free(KEY)) as ends:
        assert ask(view).status_code == 200
    assert events == [("rendered", False)]
    assert ends == [("commit", False)]
    assert atomic.seen() == ["x"]
    assert is_free(KEY)


@pytest.mark.parametrize(("body", "status"), [("lost", 503), ("fails", 500), ("streamed", 500)])
def test_a_body_that_fails_or_loses_the_lock_or_is_refused_commits_nothing(zoo, atomic, body, status):
    def rows():
        if body == "fails":
            raise ZeroDivisionError
        lose_unnoticed(current_hold())

    @zk_locked(KEY)
    def view(request):
        page = write_and_render(rows)
        return page if body != "streamed" else StreamingHttpResponse(bodysite.Parts())

    assert ask(view).status_code == status
    assert atomic.seen() == []
    zoo.assert_empty()
