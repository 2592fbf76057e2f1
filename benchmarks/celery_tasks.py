"""The tasks of `celery_line.py`; its workers import them."""

from __future__ import annotations

import os
import time

import django
from celery import Celery
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
app.conf.update(result_expires=600, broker_connection_retry_on_startup=True)


def work(sent: float, seconds: float) -> tuple[float, float]:
    """Sleep; return when the work began, and how long after it was sent, by the clock of the machine."""
    began = time.time()
    time.sleep(seconds)
    return began, began - sent


@app.task
@zk_locked("hot", on_conflict="wait")
def wait(sent: float, seconds: float) -> tuple[float, float]:
    """Wait in line."""
    return work(sent, seconds)


@app.task
@zk_locked("hot", on_conflict="retry")
def retry(sent: float, seconds: float) -> tuple[float, float]:
    """Be sent again while the lock is busy."""
    return work(sent, seconds)


@app.task
def slots(sent: float, seconds: float) -> tuple[float, float]:
    """Wait in a slot for a lock of redis-py, which polls."""
    with Redis.from_url(f"{REDIS}/2") as client, client.lock("hot", timeout=60):
        return work(sent, seconds)


@app.task
@zk_locked("free", on_conflict="wait")
def free(sent: float, seconds: float) -> tuple[float, float]:
    """Take a lock that nobody else wants."""
    return work(sent, seconds)


@app.task
def other(sent: float, seconds: float) -> tuple[float, float]:
    """Take no lock."""
    return work(sent, seconds)
