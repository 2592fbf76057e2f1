"""Celery tasks that die, or reject their message, and write down what they are told of its history."""

import os
import signal
from pathlib import Path

from celery import current_task
from celery.exceptions import Reject

from django_zklock import zk_locked
from support.celeryapp import app
from support.policytasks import POLICIES


def write(book, line):
    """Write a line, and return how many there are."""
    with Path(book).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return len(Path(book).read_text().splitlines())


def kill_own_process():
    os.kill(os.getpid(), signal.SIGKILL)


def poison(key, book):
    write(book, "begun")
    kill_own_process()


for _name, _options in POLICIES.items():
    app.task(name=f"history.poison.{_name}", acks_late=True, reject_on_worker_lost=True)(
        zk_locked("{key}", **_options)(poison)
    )


@app.task(name="history.killed", acks_late=True, reject_on_worker_lost=True)
@zk_locked("{key}", on_conflict="retry")
def killed(key, book, times):
    """Be killed so many times."""
    request = current_task.request
    returns = (request.headers or {}).get("x-delivery-count", 0)
    if write(book, f"{returns} {request.delivery_info['redelivered']}") <= times:
        kill_own_process()


def deaths():
    """Return how often the running task was rejected, as its message says."""
    headers = current_task.request.headers or {}
    return sum(death["count"] for death in headers.get("x-death", ()) if death["reason"] == "rejected")


@app.task(name="history.rejects", acks_late=True)
@zk_locked(lambda key, book: f"{key}-{deaths()}", on_conflict="retry")
def rejects(key, book):
    """Give up after three rejections. Each run needs another lock."""
    write(book, deaths())
    if deaths() < 3:
        raise Reject("not yet", requeue=False)
