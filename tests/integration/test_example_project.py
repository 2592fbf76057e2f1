"""The example shop, in a process with its own settings: its views and tasks take turns on real ZooKeeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_zklock.testing.ensemble import Ensemble

SHOP = Path(__file__).resolve().parents[2] / "example_project"

# Six customers at once for three pieces, through every door of the shop; then a delivery by each way.
SCENARIO = """
import asyncio, json, threading
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from django.test import AsyncClient, Client
call_command("migrate", verbosity=0)
from shop.models import Item, Order
from shop.tasks import process_order, restock

def through_view(sku):
    return Client().post(f"/items/{sku}/buy/", headers={"accept": "application/json"}).json()["result"]

def through_async_view(sku):
    ask = AsyncClient().post(f"/items/{sku}/abuy/", headers={"accept": "application/json"})
    return asyncio.run(ask).json()["result"]

def through_task(sku):
    return process_order.apply((sku,)).get()

def customer(door, answers):
    answers.append(door("lamp"))
    connection.close()

Item.objects.create(sku="lamp", stock=3)
answers = []
threads = [threading.Thread(target=customer, args=(door, answers))
           for door in (through_view, through_async_view, through_task) * 2]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sold, left = Order.objects.count(), Item.objects.get().stock
restock.apply(("lamp", 2)).get()
Client().post("/items/lamp/delivery/")
print(json.dumps([sorted(answers), sold, left, Item.objects.get().stock, Client().get("/").status_code]))
"""


@pytest.mark.zookeeper
def test_every_door_of_the_shop_sells_each_piece_once(single: Ensemble, tmp_path: Path) -> None:
    """Three pieces and six customers through views, async views and tasks make three sales, and no stock is lost."""
    pytest.importorskip("environ")
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("UNSAFE", "DATABASE_URL")},
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SHOP_VAR": str(tmp_path),
        "SHOP_THINK_TIME": "0.05",
        "ZKLOCK_URL": single.url("example"),
        "ALLOWED_HOSTS": "testserver",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCENARIO], cwd=SHOP, env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [["sold"] * 3 + ["sold out"] * 3, 3, 0, 7, 200]
