"""The page about views: its views, answers, APIs, consumer and GraphQL schema do as it says, in their own project."""

from __future__ import annotations

import re
from pathlib import Path

from support.docs import assert_passes, text_of, written

PAGE = "how-to/lock-a-view.md"

SETTINGS = """
from pathlib import Path
from project_settings import *
from shop.settings import MIDDLEWARE as LOCKED

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    *LOCKED,
]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"]
ROOT_URLCONF = "all_urls"
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "DIRS": [Path(__file__).parent / "templates"],
    "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
}]
"""

URLS = """
from django.urls import include, path
from rest_framework.routers import SimpleRouter
from strawberry.django.views import GraphQLView
from django_zklock import zk_lock
from shop import api, gifts
from shop.schema import schema
from shop.urls import urlpatterns

router = SimpleRouter()
router.register("drf", api.OrderViewSet, basename="orders")


def with_block(request, pk):
    with zk_lock("order/{pk}", fields={"pk": pk}, timeout=0, release_on="commit"):
        raise AssertionError("the lock is busy")


urlpatterns = [
    *urlpatterns,
    path("gifts/<int:pk>/", gifts.wrap),
    path("block/<int:pk>/", with_block),
    path("ninja/", api.api.urls),
    path("refund/<int:pk>/", api.refund),
    path("", include(router.urls)),
    path("graphql/", GraphQLView.as_view(schema=schema)),
]
"""

TESTS = """
import asyncio
import json
import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from shop.consumers import OrderConsumer

VIEWS = ["orders/7/pay/", "orders/7/ship/", "orders/7/refund/", "ninja/orders/7/pay", "refund/7/", "drf/7/ship/"]


@pytest.fixture
def zklock_settings():
    return {"DEFAULTS": {"timeout": 0}, "CONNECT_TIMEOUT": 0.5}


@pytest.mark.parametrize("url", VIEWS)
def test_views_answer_409(client, zklock, url):
    assert client.post(f"/{url}").status_code == 200
    with zklock.busy_by("order/7"):
        answer = client.post(f"/{url}")
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert answer.json()["code"] == "lock_conflict"
    assert answer.json()["retry_after"] == 1
    with zklock.busy_by("order/8"):
        assert client.post(f"/{url}").status_code == 200


def test_a_view_answers_503(client, zklock):
    with zklock.suspended():
        answer = client.post("/orders/7/pay/")
    assert (answer.status_code, answer["Retry-After"], answer.json()["code"]) == (503, "5", "lock_unavailable")


@pytest.mark.django_db
def test_a_field_may_be_the_user_of_the_request(client, zklock):
    user = User.objects.create(username="anna")
    client.force_login(user)
    with zklock.busy_by("checkout/{pk}", {"pk": user.pk}):
        assert client.get("/checkout/").status_code == 409
    assert client.get("/checkout/").content == b"bought"


def test_the_page_chooses_the_body(client, zklock):
    with zklock.busy_by("order/7"):
        browser = client.get("/orders/7/pay/", headers={"accept": "text/html,*/*;q=0.8"}).text.strip()
        htmx = client.get("/orders/7/pay/", headers={"accept": "*/*", "hx-request": "true"}).text.strip()
    assert browser.startswith("<!doctype html>") and "Try again in 1 s" in browser
    assert htmx.startswith('<p class="error">Somebody else')


def test_a_lock_inside_a_view_is_answered(client, zklock):
    assert client.get("/gifts/7/").content == b"wrapped"
    with zklock.busy_by("order/7"):
        assert (client.get("/gifts/7/").content, client.get("/gifts/7/").status_code) == (b"Not now.", 409)
        assert client.get("/block/7/").json()["code"] == "lock_conflict"


@pytest.mark.django_db
def test_a_resolver_hides_the_holder(client, zklock):
    query = {"query": "mutation { pay(pk: 7) }"}
    post = lambda: client.post("/graphql/", query, content_type="application/json").json()
    assert post()["data"] == {"pay": "order 7 is paid"}
    with zklock.busy_by("order/7"):
        (error,) = post()["errors"]
    assert (error["message"], error["extensions"]) == ("Try again.", {"code": "try_again"})


def test_a_consumer_sends_a_message(zklock):
    async def talk():
        socket = ApplicationCommunicator(OrderConsumer.as_asgi(), {"type": "websocket"})
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output(20))["type"] == "websocket.accept"
        await socket.send_input({"type": "websocket.receive", "text": json.dumps({"pk": 7})})
        said = await socket.receive_output(20)
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(20)
        return json.loads(said["text"])

    assert asyncio.run(talk()) == {"paid": 7}
    with zklock.busy_by("order/7"):
        assert asyncio.run(talk()) == {"code": "try_again"}
"""


def test_the_examples_for_views_do_as_the_page_says(tmp_path: Path) -> None:
    project = written(PAGE, tmp_path, {"view_settings.py": SETTINGS, "all_urls.py": URLS, "shop/__init__.py": ""})
    page = r"^```html\n<!-- templates/409.html -->\n(.*?)^```$"
    (template,) = re.findall(page, text_of(PAGE), re.MULTILINE | re.DOTALL)
    project.write("templates/409.html", template)
    (tmp_path / "shop.py").unlink()
    assert_passes(project, TESTS, "--ds", "view_settings")
