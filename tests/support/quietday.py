"""A quiet day of a site: beats, leaders, leases, an operator hold and short tasks. Nothing of it needs attention."""

import contextlib
import threading
import time
from collections import Counter

from support.beats import Beats
from support.browser.site import Site
from support.drill import CALM, plain
from support.serving import Serving
from support.worker import Worker
from support.zoo import next_line

LOOKS = 100  # looks at the first page of each web process; `status` has as many in ten minutes
WEB_PROCESSES = 4
LEASES = 50
TASKS = 200  # sent in a minute

LEADER = """
import sys, threading
from django_zklock import zk_leader
with zk_leader("reports"):
    threading.Event().wait()
"""
LEASING = f"""
import asyncio, contextlib, sys
from zklock_client import AsyncZkLockClient

async def main():
    async with AsyncZkLockClient([sys.argv[1]], client_id="pump") as client, contextlib.AsyncExitStack() as stack:
        for number in range({LEASES}):
            await stack.enter_async_context(client.lock(f"pumps/{{number}}", term=5))
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def quiet_day(drill, home):
    """Have all that a quiet day has, for the length of a block; yield the web processes, which share a database."""
    zoo, env = drill.zoo, drill.site.environment
    for name in ("beats", "worker"):
        (home / name).mkdir(parents=True)
    over = threading.Event()

    def send():
        number = 0
        while not over.wait(60 / TASKS):
            number += 1
            worker.send("plain", f"task-{number % 20}")

    with contextlib.ExitStack() as stack:
        sites = [
            stack.enter_context(Site(drill.project.directory, zoo.url(), name=f"site-{number}"))
            for number in range(1, WEB_PROCESSES)
        ]
        beats = stack.enter_context(Beats(zoo, home / "beats", {"often": 5.0}, session_timeout=4))
        beats.start("one", "two", **env)
        for host in ("cron-1", "cron-2", "cron-3"):
            stack.enter_context(zoo.running(LEADER, host=host, **env))
        serving = stack.enter_context(Serving(zoo, env=env))
        (leasing, *_) = [stack.enter_context(zoo.running(LEASING, serving.address))]
        assert next_line(leasing) == "held"
        held = drill.shell("python manage.py zklock hold orders/shop --for 2h --reason 'a deploy'")
        assert held.returncode == 0, held.stderr
        drill.program("web-1").tell("wait", "orders/shop")
        zoo.wait_contenders("orders/shop", 2)
        zoo.wait_contenders("reports", 3)
        zoo.wait_contenders("celery-beat/beatapp", 2)
        worker = stack.enter_context(Worker(zoo, home / "worker", env=env))
        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield [drill.site, *sites]
        finally:
            over.set()
            sender.join()


def look(drill, sites, minutes):
    seen = Counter()
    began = time.monotonic()
    commands = max(1, round(LOOKS * minutes / 10))
    for number in range(LOOKS):
        for index, site in enumerate(sites, 1):
            page = plain(drill.open(site=site))
            text = CALM if CALM in page else "; ".join(drill.cards(site)) or page
            seen[f"web {index}: {text}"] += 1
        if number * commands // LOOKS != (number + 1) * commands // LOOKS:
            lines, status = drill.status()
            seen[f"status: {status} {lines[0] if status else CALM}"] += 1
        time.sleep(max(0.0, began + (number + 1) * minutes * 60 / LOOKS - time.monotonic()))
    return seen
