"""Celery tasks that are unique from their publication on."""

import functools
from pathlib import Path

from celery import current_task
from celery.exceptions import Ignore, Reject

from django_zklock import zk_locked
from support.celeryapp import app, do


def act(verb, argument):
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


def work(key, verb="tell", argument=None):
    return act(verb, argument)


@app.task(name="until_start", bind=True)
@zk_locked("unique/{key}", unique="until_start")
def until_start(self, key, verb="tell", argument=None):
    return act(verb, argument)


locked = functools.partial(zk_locked, "unique/{key}", unique="until_done")
until_done = app.task(name="until_done")(locked()(work))
once = app.task(name="once", autoretry_for=(ZeroDivisionError,))(locked(on_duplicate="raise", unique_for=60)(work))
late_done = app.task(name="late_done", acks_late=True, reject_on_worker_lost=True)(locked(timeout=30)(work))
skips = app.task(name="skips")(locked(on_conflict="skip")(work))

TASKS = (until_done, until_start, once, late_done, skips)


def known_to(client, tasks=TASKS):
    for task in tasks:
        options = {name: getattr(task, name) for name in ("name", "acks_late", "reject_on_worker_lost")}
        run = getattr(task, "_orig_run", task.run)
        client.task(bind=hasattr(run, "__self__"), shared=False, **options)(getattr(run, "__func__", run))
    return client
