"""Views and tasks that lock without a pause, and count what goes wrong; this module is their URLconf."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_zklock import current_hold, zk_locked
from support.celeryapp import HOME, app

KEYS = ("a", "b")
WORK = 0.02  # seconds
OVERLAPS = "overlaps"  # in the folder HOME: a line for each work that was not alone
END = "end"  # in that folder: the views end when it is there
THREADS = 4  # of each process that has views

hits = itertools.count()


@contextlib.contextmanager
def alone(key: str) -> Iterator[None]:
    """Note if other work is done for this key; a file that only one process can create knows it, and no lock."""
    home = Path(os.environ[HOME])
    busy = home / f"busy-{key}"
    try:
        busy.touch(exist_ok=False)
    except FileExistsError:
        with (home / OVERLAPS).open("a") as overlaps:
            overlaps.write(f"{key}\n")
        return (yield)
    try:
        yield
    finally:
        busy.unlink()


def work(key: str) -> str:
    with alone(key):
        time.sleep(WORK)
        current_hold().check()
        time.sleep(WORK)
    return "done"


# --- views ---


@zk_locked("stock/{key}")
def sell(request: HttpRequest, key: str) -> HttpResponse:
    return HttpResponse(work(key))


@zk_locked("price/{key}", linger=1)
def show(request: HttpRequest, key: str) -> HttpResponse:
    return HttpResponse(work(f"{key}-price-{os.getpid()}"))


@zk_locked("gate/{key}", limit=3)
def enter(request: HttpRequest, key: str) -> HttpResponse:
    current_hold().check()
    return HttpResponse("in")


urlpatterns = [path("sell/<str:key>/", sell), path("show/<str:key>/", show), path("enter/<str:key>/", enter)]


class Visitors:
    """Threads that ask for pages, one after another; `answers` counts what they got."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._visit, args=(number,)) for number in range(THREADS)]

    def _visit(self, number: int) -> None:
        client = Client(raise_request_exception=False)
        pages = itertools.cycle(["sell", "show", "enter"])
        keys = itertools.cycle(KEYS)
        while not self._ended.is_set():
            page, key = next(pages), next(keys)
            began = time.time()
            answer = client.get(f"/{page}/{key}/")
            self.answers[f"{page} {answer.status_code}"] += 1
            took = time.time() - began
            if answer.status_code != 200 or took > 1:
                note(f"{page} {answer.status_code} after {took:.1f} s: {answer.content[:300]!r} {getattr(answer, 'exc_info', None)!r}")

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        while not Path(os.environ[HOME], END).exists():
            time.sleep(0.05)
        self._ended.set()
        for thread in self._threads:
            thread.join()


def note(text: str) -> None:
    print(f"{time.strftime('%X')} {os.getpid()} {text}", file=sys.stderr, flush=True)


def main() -> None:
    visitors = Visitors()
    visitors.run()
    print(json.dumps(visitors.answers), flush=True)


# --- tasks ---


@app.task(name="pack")
@zk_locked("stock/{key}")
def pack(key: str) -> str:
    return work(key)


@app.task(name="pack_again")
@zk_locked("stock/{key}", on_conflict="retry")
def pack_again(key: str) -> str:
    return work(key)


TASKS: Any = ("pack", "pack_again")
