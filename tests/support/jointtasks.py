"""Celery tasks that combine two options, two locks, or two tasks."""

from celery import current_task

from django_zklock import zk_locked
from support.celeryapp import app, do


@app.task(name="joint.bounded")
@zk_locked("{key}", on_conflict="retry", max_conflicts=2)
def bounded(key, verb="tell", argument=None):
    do(verb, argument)
    return "done"


@app.task(name="joint.hides")
@zk_locked("{key}", on_conflict="retry")
def hides(key):
    request = current_task.request
    return f"{request.argsrepr} {request.kwargsrepr} {request.ignore_result}"


@app.task(name="joint.stores_errors", ignore_result=True, store_errors_even_if_ignored=True)
@zk_locked("{key}", on_conflict="skip")
def stores_errors(key): ...
