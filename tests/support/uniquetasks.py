"""Celery tasks that are unique from their publication on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery, current_task
from celery.exceptions import Ignore, Reject

from django_zklock import zk_locked
from support.celeryapp import app, do


def act(verb: str, argument: Any) -> Any:
    if verb == "retry":
        if current_task.request.retries == 0:
            raise current_task.retry(countdown=float(argument))
        return "retried"
    if verb == "linger and retry":
        if current_task.request.retries == 0:
            do("linger", argument)
            raise current_task.retry(countdown=0)
        return "retried"
    if verb == "replace":  # by one that begins later
        (key, *_) = current_task.request.args or ()
        raise current_task.replace(current_task.s(key).set(countdown=float(argument)))
    if verb == "requeue":  # once
        if not Path(argument).exists():
            Path(argument).touch()
            raise Reject("again", requeue=True)
        return "requeued"
    if verb == "reject":
        raise Reject(argument, requeue=False)
    if verb == "ignore":
        raise Ignore(argument)
    return do(verb, argument)


@app.task(name="until_done")
@zk_locked("unique/{key}", unique="until_done")
def until_done(key: object, verb: str = "tell", argument: Any = None) -> Any:
    return act(verb, argument)


@app.task(name="until_start", bind=True)
@zk_locked("unique/{key}", unique="until_start")
def until_start(self: Any, key: object, verb: str = "tell", argument: Any = None) -> Any:
    return act(verb, argument)


@app.task(name="once", autoretry_for=(ZeroDivisionError,))
@zk_locked("unique/{key}", unique="until_done", on_duplicate="raise", unique_for=60)
def once(key: object, verb: str = "tell", argument: Any = None) -> Any:
    return act(verb, argument)


@app.task(name="late_done", acks_late=True, reject_on_worker_lost=True)
@zk_locked("unique/{key}", unique="until_done", timeout=30)
def late_done(key: object, verb: str = "tell", argument: Any = None) -> Any:
    return act(verb, argument)


@app.task(name="skips")
@zk_locked("unique/{key}", unique="until_done", on_conflict="skip")
def skips(key: object) -> Any:
    return act("tell", None)


TASKS = (until_done, until_start, once, late_done, skips)


def known_to(client: Celery, tasks: Sequence[Any] = TASKS) -> Celery:
    """Register these tasks with another application, such as that of a publisher."""
    for task in tasks:
        options = {name: getattr(task, name) for name in ("name", "acks_late", "reject_on_worker_lost")}
        run = getattr(task, "_orig_run", task.run)
        client.task(bind=hasattr(run, "__self__"), shared=False, **options)(getattr(run, "__func__", run))
    return client
