"""The tasks of `celery_waiting.py`. Its workers import them, and so does the program that sends them."""

from __future__ import annotations

import os
import time
from typing import Any

import django
from celery import Celery
from celery.signals import task_received, worker_process_init
from django.conf import settings  # noqa: TID251 - a program of its own, not a part of the package
from redis import Redis

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_zklock"],
    ZKLOCK={"URL": os.environ["ZKLOCK_URL"]},
)
django.setup()

from django_zklock import zk_locked  # noqa: E402

REDIS = os.environ["BENCH_REDIS"]
app = Celery("bench", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(result_expires=900, broker_connection_retry_on_startup=True)
deliveries = Redis.from_url(f"{REDIS}/3")
"""How many messages the workers have received, by the name of the task."""

Run = tuple[float, float, float]


@task_received.connect
def count_delivery(request: Any, **_: Any) -> None:
    """Count a message that a worker has received from the broker."""
    deliveries.incr(request.name)


@worker_process_init.connect
def start_slowly(**_: Any) -> None:
    """Start as slowly as a large project."""
    time.sleep(float(os.environ.get("BENCH_START", "0")))


def work(sent: float, seconds: float) -> Run:
    """Sleep; return when the work began, how long after it was sent, and when it ended, by the clock of the machine."""
    began = time.time()
    time.sleep(seconds)
    return began, began - sent, time.time()


@app.task
@zk_locked("hot", on_conflict="wait")
def wait(sent: float, seconds: float) -> Run:
    """Wait for the lock."""
    return work(sent, seconds)


@app.task
@zk_locked("hot-linger", on_conflict="wait", linger=0.25)
def wait_linger(sent: float, seconds: float) -> Run:
    """Wait for a lock that stays in its worker for a quarter of a second."""
    return work(sent, seconds)


@app.task
def slots(sent: float, seconds: float) -> Run:
    """Wait in a slot for a lock of redis-py, which polls."""
    with Redis.from_url(f"{REDIS}/2") as client, client.lock("hot", timeout=60):
        return work(sent, seconds)


@app.task
@zk_locked("free", on_conflict="wait")
def idle_key(sent: float, seconds: float) -> Run:
    """Acquire a lock that no other task wants."""
    return work(sent, seconds)


@app.task
@zk_locked("own/{number}", on_conflict="wait")
def own_key(number: int, sent: float, seconds: float) -> Run:
    """Acquire the lock of a number, which no other task wants."""
    return work(sent, seconds)


@app.task
def other(sent: float, seconds: float) -> Run:
    """Take no lock."""
    return work(sent, seconds)
