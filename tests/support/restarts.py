"""Views, a job and tasks that lock without a pause, and count what goes wrong; this module is their URLconf."""

import contextlib
import itertools
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_zklock import current_hold, zk_lock, zk_locked
from support.celeryapp import app
from support.celeryfolder import HOME

KEYS = ("a", "b")
THREADS = 4  # that ask for pages, in each process
WORK = 0.02  # seconds, twice under each lock
OVERLAPS = "overlaps"  # in the folder HOME: the keys of work that was not alone
END = "end"  # in that folder: the processes with views end when it is there
PAGES = ("sell", "show", "visit") * 8 + ("count",)  # the last one seldom, as tasks are sent again until it is free


@contextlib.contextmanager
def alone(key):
    """Note if other work for this key is under way. A file shows that, which only one process can create."""
    home = Path(os.environ[HOME])
    busy = home / f"busy-{key}"
    try:
        busy.touch(exist_ok=False)
    except FileExistsError:
        with (home / OVERLAPS).open("a") as overlaps:
            overlaps.write(f"{key}\n")
    try:
        yield
    finally:
        busy.unlink(missing_ok=True)


def work(key):
    with alone(key):
        time.sleep(WORK)
        current_hold().check()
        time.sleep(WORK)
    return key


# --- views and a job ----------------------------------------------------------------------------------------------


@zk_locked("stock/{key}")
def sell(request, key):
    return HttpResponse(work(f"stock-{key}"))


@zk_locked("price/{key}", linger=1)
def show(request, key):
    return HttpResponse(work(f"price-{key}"))


@zk_locked("shop/{key}", limit=3)
def visit(request, key):
    current_hold().check()
    return HttpResponse(key)


@zk_locked("count/{key}")
def count(request, key):
    return HttpResponse(work(f"count-{key}"))


urlpatterns = [path(f"{view.__name__}/<str:key>/", view) for view in (sell, show, visit, count)]


class Visitors:
    """Threads that ask for pages, one after another, and a job under one lock; `seen` counts what they saw."""

    def __init__(self):
        self.seen = Counter()
        self._end = Path(os.environ[HOME], END)

    def run(self):
        threads = [threading.Thread(target=self._ask) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        with zk_lock(f"job/{os.getpid()}") as hold:
            while not self._end.exists():
                hold.check()
                self.seen[hold.state] += 1
                time.sleep(0.005)
        for thread in threads:
            thread.join()

    def _ask(self):
        client = Client(raise_request_exception=False)
        for page, key in zip(itertools.cycle(PAGES), itertools.cycle(KEYS), strict=False):
            if self._end.exists():
                return
            answer = client.get(f"/{page}/{key}/")
            self.seen[str(answer.status_code)] += 1
            if answer.status_code != 200:
                self.seen[f"{page}: {answer.content!r}"] += 1


def main():
    visitors = Visitors()
    with override_settings(ROOT_URLCONF=__name__):
        visitors.run()
    print(json.dumps(visitors.seen))


# --- tasks --------------------------------------------------------------------------------------------------------


@app.task(name="pack")
@zk_locked("stock/{key}")
def pack(key):
    return work(f"stock-{key}")


@app.task(name="recount")
@zk_locked("count/{key}", on_conflict="retry")
def recount(key):
    return work(f"count-{key}")
