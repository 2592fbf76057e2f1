"""Celery tasks that end in every possible way, some without releasing their locks."""

import asyncio
import functools
import os
import resource
import signal
import threading
import time
from pathlib import Path

import billiard.pool
from celery.exceptions import Ignore, Reject
from celery.signals import task_postrun, task_prerun

from django_zklock import zk_lock, zk_locked
from django_zklock.contrib.celery.dispatch import pool_grants
from support.celeryapp import LONG, app, do

LATER = 3600.0  # seconds until a task is tried again: not in the time of a test


def end(task, way, argument):
    if way == "exception":
        raise ValueError(way)
    if way == "retry":
        raise task.retry(countdown=LATER)
    if way == "Ignore":
        raise Ignore
    if way == "Reject":
        raise Reject("unwanted", requeue=False)
    if way == "Reject and requeue" and not (mark := Path(argument, "again")).exists():
        mark.touch()
        raise Reject("once more", requeue=True)
    if way == "out of memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        bytearray(1 << 30)
    return way


@app.task(name="locked_end", bind=True, acks_late=True)
@zk_locked("{key}", timeout=60)
def locked_end(self, key, way, verb, argument):
    do(verb, argument)
    return end(self, way, argument)


@app.task(name="block_end", bind=True, acks_late=True)
def block_end(self, key, way, verb, argument):
    with zk_lock(key, timeout=60):
        do(verb, argument)
        return end(self, way, argument)


@app.task(name="forgetful_end", bind=True, acks_late=True)
def forgetful_end(self, key, way, verb, argument):
    zk_lock(key).acquire()
    do(verb, argument)
    return end(self, way, argument)


# --- ways to end just after the lock's block ----------------------------------------------------------------------

NO_LOOKS = "NO_LOOKS"
"""Environment variable: the main process does not look for processes that have ended without a report."""

if NO_LOOKS in os.environ:
    vars(pool_grants)["CHECK_EVERY"] = LONG
    # A result that comes just after the fork may not be counted (billiard 4.3), and its process waits so many times.
    vars(billiard.pool)["GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT"] = 20

AFTER = {
    "recycled": lambda: None,  # with `max_tasks_per_child`
    "exits": lambda: os._exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stays": lambda: time.sleep(2),  # no time limit: the thread that ends such processes may crash (billiard 4.3)
}
LOCKS = {
    "of the main process": {"key": "{key}"},
    "of the pool process": {"key": lambda key, *_: str(key), "on_conflict": "wait"},
    "without a wait": {"key": "{key}", "timeout": 0},
}


def then_end(function):
    @functools.wraps(function)
    def run(key, gate, way):
        function(key, gate, way)
        AFTER[way]()

    return run


def work_and_end(key, gate, way):
    do("linger", gate)


for _whose, _options in LOCKS.items():
    _lock = zk_locked(_options["key"], **{name: value for name, value in _options.items() if name != "key"})
    app.task(name=f"ends.{_whose}")(then_end(_lock(work_and_end)))


# --- ways to leave a lock behind ------------------------------------------------------------------------------------

_suspended = []


def _inside(key):
    with zk_lock(key):
        yield


@app.task(name="half_open")
def half_open(key):
    generator = _inside(key)
    next(generator)
    _suspended.append(generator)


@app.task(name="forget_in_coroutine")
def forget_in_coroutine(key):
    async def acquire():
        await zk_lock(key).aacquire()

    asyncio.run(acquire())


@app.task(name="forget_in_thread")
def forget_in_thread(key):
    thread = threading.Thread(target=zk_lock(key).acquire)
    thread.start()
    thread.join()


@app.task(name="acquire_twice")
def acquire_twice(key, verb="tell", argument=None):
    zk_lock(key).acquire()
    with zk_lock(key):
        zk_lock(key).acquire()
    do(verb, argument)


@app.task(name="careless_part")
def careless_part(keys):
    for key in keys:
        zk_lock(key).acquire()


@app.task(name="careful_whole")
def careful_whole(outer, inner):
    locks = [zk_lock(outer), zk_lock(inner)]
    with locks[0]:
        careless_part.apply(([outer, inner],))
        held = [lock.locked() for lock in locks]
    return [*held, *(lock.locked() for lock in locks)]


@app.task(name="keep")
def keep(key, verb="tell", argument=None):
    acquired = threading.Event()

    def hold():
        zk_lock(key).acquire()
        acquired.set()
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    acquired.wait()
    do(verb, argument)


@app.task(name="held_by_receivers")
def held_by_receivers(key, mark): ...


@task_prerun.connect(sender=held_by_receivers)
def _before(args, **kwargs):
    zk_lock(args[0]).acquire()


@task_postrun.connect(sender=held_by_receivers)
def _after(args, **kwargs):
    Path(args[1]).write_text(str(zk_lock(args[0]).owned()))
    zk_lock(args[0]).release()


@app.task(name="loses_block")
def loses_block(key, mark):
    try:
        with zk_lock(key):
            do("sleep", mark)
    except BaseException as error:
        Path(mark, "error").write_text(type(error).__name__)
        raise
