"""Celery tasks whose error handlers, methods and receivers need a lock, and tasks that call others as functions."""

import os
from pathlib import Path

from celery import Task
from celery.signals import task_failure

from django_zklock import zk_locked
from django_zklock.contrib.celery.introspection import celery_calls
from django_zklock.exceptions import ZkLockError
from support.celeryapp import app
from support.policytasks import POLICIES


def record(journal):
    with Path(journal).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {celery_calls()}\n")


def errback(request, error, traceback, key, journal):
    record(journal)


for _name, _options in POLICIES.items():
    app.task(name=f"handlers.errback.{_name}")(zk_locked("{key}", **_options)(errback))


@app.task(name="handlers.errback.patient")
@zk_locked("{key}", timeout=0.1)
def patient(request, error, traceback, key, journal):
    record(journal)


@app.task(name="handlers.immutable")
@zk_locked("{key}")
def immutable(key, journal):
    record(journal)


@app.task(name="handlers.of_one_argument")
@zk_locked("{key}")
def of_one_argument(task_id, *, key, journal):
    record(journal)


@app.task(name="handlers.fails")
def fails(*args):
    raise ValueError


@app.task(name="handlers.fails_under_lock")
@zk_locked("{key}")
def fails_under_lock(key):
    raise ValueError


@app.task(name="handlers.dies")
def dies():
    os._exit(1)


@app.task(name="handlers.calls")
def calls(key, journal):
    """Call a task as a function in the body of this one."""
    try:
        immutable(key, journal)
    except ZkLockError as error:
        return f"{type(error).__name__} {celery_calls()}"
    return "done"


@app.task(name="handlers.applies")
def applies(key, journal):
    return str(immutable.apply((key, journal)).state)


@app.task(name="handlers.eager")
def eager(first, journal):
    """Run tasks eagerly, of which one is called when another has ended."""
    nothing.apply(link=immutable.si(first, journal))


@app.task(name="handlers.nothing")
def nothing(): ...


class Handling(Task):
    abstract = True

    @zk_locked(lambda self, exc, task_id, args, *rest: str(args[0]))
    def on_failure(self, exc, task_id, args, kwargs, einfo):
        record(args[1])


class Calling(Task):
    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        immutable(*args)


class Returning(Task):
    abstract = True

    @zk_locked(lambda self, status, retval, task_id, args, *rest: str(args[0]))
    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        record(args[1])


def succeed(key, journal): ...


def fail(key, journal):
    raise ValueError


app.task(name="handlers.on_failure", base=Handling)(fail)
app.task(name="handlers.on_success", base=Calling)(succeed)
app.task(name="handlers.after_return", base=Returning)(succeed)
app.task(name="handlers.heard")(fail)


@task_failure.connect
def hear(sender, args, **kwargs):
    if sender.name == "handlers.heard":
        immutable(*args)
