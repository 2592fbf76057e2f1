"""The example shop, in a process with its own settings: its views and tasks take turns on real ZooKeeper."""

import json
import os
import sys
from pathlib import Path

import pytest
from support import forked

SHOP = Path(__file__).resolve().parents[3] / "example_project"

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
from django_zklock.contrib.events import recorder
from django_zklock.contrib.events.models import Event
recorder.flush(30)
metrics = Client().get("/metrics").content.decode().splitlines()
granted = [line.rpartition(" ")[2] for line in metrics if line.startswith("zklock_acquired_total{")]
print(json.dumps([sorted(answers), sold, left, Item.objects.get().stock, Client().get("/").status_code,
                  Event.objects.filter(outcome="released").count(), granted]))
"""


# What `make demo` starts first, and some sales of a fenced row.
DEMO = """
import os, sys
from pathlib import Path
from demo.services import Site
from support.ensemble import free_ports

port = free_ports(1)[0]
variables = {"ZKLOCK_URL": f"zk://127.0.0.1:{port}/shop?session_timeout=20"}
with Site(Path(os.environ["SHOP_VAR"]), variables=variables) as site:
    site.start_zookeeper(port)
    site.join()
    site.manage("migrate", "--verbosity=0")
    from django.test import Client
    from shop.models import Item
    Item.objects.get_or_create(sku="lamp", defaults={"stock": 9})
    for _ in range(int(sys.argv[1])):
        print(Client().post("/items/lamp/buy/", headers={"accept": "application/json"}).json()["result"], flush=True)
    from django_zklock.core.zk import process
    process.reset()
"""


def test_every_way_to_buy_sells_each_piece_once(single, tmp_path):
    lines = run(SCENARIO, var=tmp_path, ZKLOCK_URL=single.url("example"))
    *shop, released, granted = json.loads(lines[-1])
    assert shop == [["sold"] * 3 + ["sold out"] * 3, 3, 0, 7, 200]
    assert released == 8
    assert sum(map(float, granted)) == 8


@pytest.mark.chaos
def test_the_demo_sells_again_when_it_is_started_again(tmp_path):
    """The dev server of the second run gives higher tokens than the first, so the rows take them."""
    assert run(DEMO, "3", var=tmp_path) == ["sold"] * 3
    assert run(DEMO, "1", var=tmp_path) == ["sold"]


def run(script, *arguments, var, **variables):
    pytest.importorskip("environ")
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("UNSAFE", "DATABASE_URL")},
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SHOP_VAR": str(var),
        "SHOP_THINK_TIME": "0.01",
        "ALLOWED_HOSTS": "testserver",
        **variables,
    }
    done = forked.run(["-c", script, *arguments], cwd=SHOP, env=env, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
