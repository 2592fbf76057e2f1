"""Celery tasks that wait for their locks."""

import asyncio
import functools
import gc
import os
import time
from pathlib import Path

from celery import Task
from celery.worker.control import inspect_command

from django_zklock import conf, current_hold, zk_lock, zk_locked
from django_zklock.contrib.celery.dispatch.waiting_tasks import WaitingTask
from django_zklock.signals import waiting_tasks_changed
from support.celeryapp import app, do, work
from support.celeryfolder import HOME
from support.chaos.servers import looking_in

COUNT = "waiting-count"  # in the folder of the worker: how many messages wait


def record_count(waiting, **_kwargs):
    Path(os.environ[HOME], COUNT).write_text(str(waiting))


if HOME in os.environ:
    waiting_tasks_changed.connect(record_count)


def getpid(key):
    return os.getpid()


app.task(name="waiting.wait")(zk_locked("{key}")(work))
app.task(name="waiting.late", acks_late=True, reject_on_worker_lost=True)(zk_locked("{key}")(work))
app.task(name="waiting.slow")(zk_locked("{key}", warn_after=0.2)(work))
app.task(name="waiting.patient")(zk_locked("{key}", timeout=0.5)(getpid))
app.task(name="waiting.bounded")(zk_locked("{key}", timeout=2, on_conflict="wait")(getpid))
app.task(name="waiting.insists")(zk_locked("{key}", on_conflict="wait")(getpid))
# The pool process alone computes this key.
app.task(name="waiting.computed")(zk_locked(lambda key: f"computed/{key}", on_conflict="wait")(getpid))


def note(key, path, mark):
    """Append a mark to a file, with time for others between reading and writing; return the process."""
    book = Path(path)
    before = book.read_text() if book.exists() else ""
    time.sleep(0.02)
    book.write_text(before + mark + "\n")
    return os.getpid()


app.task(name="waiting.note")(zk_locked("{key}")(note))
app.task(name="waiting.note.late", acks_late=True)(zk_locked("{key}")(note))


@app.task(name="waiting.plain_note")
def plain_note(key, path, mark):
    with Path(path).open("a") as book:
        book.write(mark + "\n")


@app.task(name="waiting.tell")
@zk_locked("{key}")
def tell(key):
    hold = current_hold(key)
    hold.check()
    with zk_lock(key) as inner:
        again = inner.token
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "token": hold.token,
        "again": again,
        "state": hold.state,
        "path": hold.path,
        "template": hold.template,
        "lease": hold.lease_remaining,
    }


def then_release(function):
    """Release the lock of a task when its block has ended; return whether another session sees that at once."""

    @functools.wraps(function)
    def run(key):
        function(key)
        with looking_in(",".join(f"{host}:{port}" for host, port in conf.current().hosts)) as client:
            zk_lock(key).release()
            directory = client.exists(f"{conf.current().base}/{key}")  # the server removes an empty one at any moment
            return directory is None or not directory.numChildren

    return run


@app.task(name="waiting.releases")
@then_release
@zk_locked("{key}")
def releases(key):
    zk_lock(key).acquire()


@app.task(name="waiting.mark")
@zk_locked("{key}")
def mark(key, path):
    draft = Path(f"{path}.draft")
    while True:
        draft.write_text(str(time.monotonic()))
        draft.replace(path)


@app.task(name="waiting.lingers")
@zk_locked("{key}", linger=60)
def lingers(key, path, mark):
    with Path(path).open("a") as book:
        book.write(mark + "\n")
    return current_hold(key).token, os.getpid()


@app.task(name="waiting.polite")
@zk_locked("{key}")
def polite(key):
    request = current_hold(key).wait_release_requested(20)
    return "" if request is None else request.by


@app.task(name="waiting.two")
@zk_locked(["{first}", "{other}"], timeout=0.5, on_conflict="raise")
def two(first, other): ...


@app.task(name="waiting.inner")
@zk_locked("{key}")
def inner(key, gate, inner_key, timeout=20):
    do("linger", gate)
    began = time.monotonic()
    with zk_lock(inner_key, timeout=timeout):
        return time.monotonic() - began


class Coroutine(Task):
    def __call__(self, *args, **kwargs):
        return asyncio.run(self.run(*args, **kwargs))


@app.task(name="waiting.coroutine", base=Coroutine)
@zk_locked("{key}")
async def coroutine(key):
    return os.getpid()


@inspect_command()
def count_waiting(state, **_kwargs):
    gc.collect()
    return {"waiting": sum(type(value) is WaitingTask for value in gc.get_objects())}
