"""The page about blocks, functions, commands and signal handlers: its examples do as it says, in their own project."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, written

PAGE = "how-to/lock-any-code.md"

SETTINGS = """
from project_settings import *
from shop import settings

INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
ZKLOCK = {**ZKLOCK, "LOCKS": settings.ZKLOCK["LOCKS"]}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "urls"
"""

MODELS = """
from django.db import models


class Cart(models.Model):
    user_id = models.IntegerField()
    is_open = models.BooleanField(default=True)
"""

TESTS = """
import asyncio
from types import SimpleNamespace
import pytest
from celery import Celery
from django.core.management import call_command
from django.db import transaction
from django_zklock import zk_lock
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

URLS = """
from django.urls import path
from shop import orders

urlpatterns = [path("pay/<pk>/", orders.pay)]
"""


def test_the_examples_for_any_code_do_as_the_page_says(tmp_path: Path) -> None:
    files = {"shop/__init__.py": "", "shop/models.py": MODELS, "code_settings.py": SETTINGS, "urls.py": URLS}
    project = written(PAGE, tmp_path, files)
    (tmp_path / "shop.py").unlink()
    (tmp_path / "shop/management/__init__.py").touch()
    (tmp_path / "shop/management/commands/__init__.py").touch()
    assert_passes(project, TESTS, "--ds", "code_settings")
