"""`@zk_locked` on sync, async and class-based views: the lock is free, held, lost, or ZooKeeper is away."""

import contextlib
import json

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse
from django.template import TemplateSyntaxError
from django.test import Client, override_settings
from support import viewsite
from support.deadlock import rivals
from support.faults import BackgroundCall, cut, proxied
from support.signalled import signalled
from support.zoo import eventually

from django_zklock.exceptions import LockBusy, LockLost, ZooKeeperUnavailable
from django_zklock.http.responses import answer
from django_zklock.middleware import LockConflictMiddleware

pytestmark = pytest.mark.django_db(databases=[])


@pytest.fixture(autouse=True)
def site():
    viewsite.inside.clear()
    viewsite.go_on.clear()
    with override_settings(ROOT_URLCONF="support.viewsite"):
        yield
    viewsite.go_on.set()


@contextlib.contextmanager
def buying(sku):
    """Have a request in the view, for the length of a block, of which the answer must be 200."""
    request = BackgroundCall(lambda: Client().get(f"/buy/{sku}/?linger").status_code)
    try:
        assert viewsite.inside.wait(10)
        yield
    finally:
        viewsite.go_on.set()
        assert request.result() == 200


def test_a_cut_of_the_connection_does_not_disturb_a_view(zoo):
    with proxied(zoo, 20) as proxy, buying("7"):
        cut(proxy)


def test_two_requests_for_one_key_take_turns_and_the_payload_names_no_argument(zoo):
    with buying("secret-sku"):
        assert Client().get("/buy-now/secret-sku/").status_code == 409
        assert Client().get("/buy-now/8/").status_code == 200
        (payload,) = filter(None, zoo.payloads("stock/secret-sku"))
        assert (payload.what, payload.template) == ("support.viewsite.buy", "stock/{sku}")
        assert payload.about == {"request": "GET /buy/<str:sku>/"}
        assert "secret" not in str(payload)
    assert Client().get("/buy-now/secret-sku/").status_code == 200


def test_a_view_that_gives_way_in_a_deadlock_is_answered(zoo):
    request = BackgroundCall(lambda: Client().get("/ship/7/"))
    assert viewsite.inside.wait(10)
    with rivals(zoo, {"stock/7": "order/7"}):
        viewsite.go_on.set()
        response = request.result(40)
    assert (response.status_code, response["Retry-After"], response.json()["code"]) == (409, "1", "lock_conflict")
    assert Client().get("/ship/7/").content == b"shipped"


def test_a_default_of_the_view_names_the_lock(zoo, client):
    with signalled("lock_acquired") as sent:
        response = client.get("/buy/a%2525b/")
        eventually(lambda: sent)  # it is sent on a thread of its own
    assert response.content == b"bought 1 of a%25b"
    assert [kwargs["lock"] for _, kwargs in sent] == ["stock/a%2525b"]


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("headers", "content_type"),
    [
        ({}, "application/json"),
        ({"accept": "*/*"}, "application/json"),
        ({"accept": "application/json"}, "application/json"),
        ({"accept": "application/json, text/plain, */*"}, "application/json"),
        ({"accept": "image/png"}, "application/json"),
        ({"accept": BROWSER}, "text/plain"),
        ({"accept": "text/plain"}, "text/plain"),
        ({"accept": "*/*", "hx-request": "true"}, "text/plain"),
    ],
)
def test_the_answer_is_json_unless_the_client_prefers_text(zoo, client, headers, content_type):
    with zoo.hold_elsewhere("stock/7"):
        answer = client.get("/buy-now/7/", headers=headers)
    assert answer["Content-Type"].partition(";")[0] == content_type
    if content_type == "application/json":
        body = json.loads(answer.content)
        assert (body["code"], body["retry_after"]) == ("lock_conflict", int(answer["Retry-After"]))
    else:
        assert answer.content.startswith(b"Somebody else")


def types(request):
    return {"types": ContentType.objects}


def templates(pages):
    """Have these pages, which may ask the database for its content types."""
    loaders = [("django.template.loaders.locmem.Loader", pages)]
    options = {"loaders": loaders, "context_processors": [f"{__name__}.types"]}
    backend = "django.template.backends.django.DjangoTemplates"
    return override_settings(TEMPLATES=[{"BACKEND": backend, "OPTIONS": options}])


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["{{ types.count }}", "{% fail %}", None])
@pytest.mark.parametrize("error", [LockLost("lost"), LockBusy("busy"), ZooKeeperUnavailable("away")])
def test_a_transaction_around_the_middleware_does_not_commit_half_the_work(rf, error, page):
    """The answer is no exception, so another middleware would commit. The page may need queries, and may fail."""
    middleware = LockConflictMiddleware(lambda request: HttpResponse())
    pages = templates({} if page is None else {"409.html": page, "503.html": page})
    fails = pytest.raises(TemplateSyntaxError) if page == "{% fail %}" else contextlib.nullcontext()
    with pages, transaction.atomic():
        ContentType.objects.create(app_label="half", model="done")
        with fails:
            response = middleware.process_exception(rf.post("/", headers={"accept": BROWSER}), error)
            assert response is not None
            assert response.status_code == (409 if isinstance(error, LockBusy) else 503)
            assert (response["Vary"], response["Cache-Control"]) == ("Accept, HX-Request", "no-store")
            assert response["Content-Type"].startswith("text/html" if page else "text/plain")
    assert not ContentType.objects.filter(app_label="half").exists()


@pytest.mark.parametrize(
    "of_test_case",
    [
        pytest.param(True, marks=pytest.mark.django_db),
        pytest.param(False, marks=pytest.mark.django_db(transaction=True)),
    ],
)
def test_an_answer_rolls_back_all_open_blocks(rf, of_test_case):
    """A middleware, `ATOMIC_REQUESTS` and the view may each have one. The transaction of a `TestCase` goes on."""
    committed = []
    ContentType.objects.create(app_label="before", model="test")
    with transaction.atomic():
        ContentType.objects.create(app_label="half", model="outer")
        transaction.on_commit(lambda: committed.append(1))
        with transaction.atomic(), transaction.atomic():
            ContentType.objects.create(app_label="half", model="inner")
            assert answer(rf.get("/"), LockBusy("busy")) is not None
        with pytest.raises(TransactionManagementError):
            ContentType.objects.create(app_label="half", model="later")
    assert not ContentType.objects.filter(app_label="half").exists()
    assert ContentType.objects.filter(app_label="before").exists()
    assert not committed


@pytest.mark.django_db
def test_a_page_that_cannot_query_is_replaced_by_text(rf):
    with templates({"409.html": "{{ types.count }}"}), transaction.atomic():
        transaction.set_rollback(True)
        response = answer(rf.get("/", headers={"accept": BROWSER}), LockBusy("busy"))
    assert response is not None
    assert (response.status_code, response["Content-Type"].partition(";")[0]) == (409, "text/plain")


@pytest.mark.parametrize("view", ["async-class-dispatched", "async-class-overridden"])
def test_dispatch_of_an_async_view_is_refused(zoo, client, view):
    """A lock around it would protect nothing, so the first request raises."""
    with pytest.raises(TypeError, match="dispatch returned a coroutine"):
        client.post(f"/{view}/7/")
