"""The pages about views and about any other code: their examples do as they say, in their own projects."""

import re

from support.docs import assert_passes, files_of, text_of, written

PAGE = "how-to/lock-a-view.md"
API_PAGE = "how-to/lock-an-api.md"

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
    path("api/", api.api.urls),
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

VIEWS = ["orders/7/pay/", "orders/7/ship/", "orders/7/refund/", "api/orders/7/pay", "refund/7/", "drf/7/ship/"]


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


def test_the_examples_for_views_do_as_the_page_says(tmp_path):
    files = {"view_settings.py": SETTINGS, "all_urls.py": URLS, "shop/__init__.py": ""}
    project = written(PAGE, tmp_path, {**files, **files_of(API_PAGE)})
    page = r"^```html\n<!-- templates/409.html -->\n(.*?)^```$"
    (template,) = re.findall(page, text_of(PAGE), re.MULTILINE | re.DOTALL)
    project.write("templates/409.html", template)
    (tmp_path / "shop.py").unlink()
    assert_passes(project, TESTS, "--ds", "view_settings")
    options = ("-m", "pytest", "-q", "--ds", "view_settings", "shop/test_api.py")
    assert "1 passed" in project.succeed(*options).stdout
    text = files_of(API_PAGE)["shop/api.py"]
    lines = ['@api.post("orders/{pk}/pay")', '@zk_locked("order/{pk}", release_on="commit")']
    project.write("shop/api.py", text.replace("\n".join(lines), "\n".join(reversed(lines))))
    assert "The lock 'order/7' has no holder" in project.run(*options).stdout, "a wrong order is found"


CODE_SETTINGS = """
from project_settings import *
from shop import settings

INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
ZKLOCK = {**ZKLOCK, "LOCKS": settings.ZKLOCK["LOCKS"]}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "urls"
"""

CODE_MODELS = """
from django.db import models


class Cart(models.Model):
    user_id = models.IntegerField()
    is_open = models.BooleanField(default=True)
"""

CODE_TESTS = """
import asyncio
from types import SimpleNamespace
import pytest
from celery import Celery
from django.core.management import call_command
from django.db import transaction
from django_zklock.exceptions import LockBusy

Celery("documented", broker="memory://").set_default()
from shop import feeds, handlers, orders, prices, stock


def test_a_block_waits_then_raises(zklock, capsys, monkeypatch):
    left = {}
    stock.restock("lamp", 2, left)
    asyncio.run(stock.arestock("lamp", 3, left))
    assert left == {"lamp": 5}
    with zklock.busy_by("inventory/lamp"):
        stock.try_restock("lamp", 1, left)
    assert capsys.readouterr().out.startswith("later: The lock 'inventory/lamp'")
    assert left == {"lamp": 5}


def test_a_block_is_skipped(zklock):
    assert feeds.refresh_feeds() == "refreshed"
    with zklock.busy_by("feeds"):
        assert feeds.refresh_feeds() == "another process does it"


def test_a_function_raises_or_skips(zklock):
    assert prices.import_prices(supplier="acme") == "prices of acme"
    assert prices.fetch_rates() == "new rates"
    with zklock.busy_by("rates"):
        assert prices.fetch_rates() is None


def test_view_task_and_block_share_a_key(zklock, client):
    order = SimpleNamespace(pk=7)
    assert orders.ship.apply(("7",)).get() == "shipped"
    assert client.get("/pay/7/").content == b"paid"
    assert orders.cancel(order) == "cancelled"
    with zklock.busy_by("order/7"):
        assert client.get("/pay/7/").status_code == 409
        with pytest.raises(LockBusy):
            orders.ship.apply(("7",), throw=True)
        with pytest.raises(LockBusy):
            orders.cancel(order)


def test_a_command_is_skipped(zklock, capsys):
    call_command("nightly")
    assert capsys.readouterr().out == "done\\n"
    with zklock.busy_by("cron/nightly"):
        call_command("nightly")
    assert capsys.readouterr().out == ""


@pytest.mark.django_db(transaction=True)
def test_the_handler_locks_after_the_commit(zklock):
    with transaction.atomic():
        cart = handlers.Cart.objects.create(user_id=9)
        assert handlers.indexed == []
    assert handlers.indexed == [cart.pk]
    assert handlers.open_cart(9) == cart
    assert handlers.open_cart(10).user_id == 10
"""

CODE_URLS = """
from django.urls import path
from shop import orders

urlpatterns = [path("pay/<pk>/", orders.pay)]
"""


def test_the_examples_for_any_code_do_as_the_page_says(tmp_path):
    files = {"shop/models.py": CODE_MODELS, "code_settings.py": CODE_SETTINGS, "urls.py": CODE_URLS}
    files |= {f"{name}/__init__.py": "" for name in ("shop", "shop/management", "shop/management/commands")}
    project = written("how-to/lock-any-code.md", tmp_path, files)
    (tmp_path / "shop.py").unlink()
    assert_passes(project, CODE_TESTS, "--ds", "code_settings")
