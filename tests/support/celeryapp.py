"""A Celery application whose tasks take locks. Its broker is the folder CELERY_HOME; without it, messages are lost."""

import faulthandler
import os
import random
import signal
import threading
import time
from pathlib import Path

from celery import Celery, current_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection, transaction

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.contrib.celery.dispatch import dispatcher
from django_zklock.contrib.celery.unique import reservations
from django_zklock.exceptions import LockNotAcquired
from support import reply_timeout
from support.celeryfolder import HOME, SHOW_THREADS, configure

LONG = 40.0  # seconds; no test waits for their end
TASKS_AT_ONCE = 10  # of the tests' workers whose pools have no processes


app = Celery(
    "celeryapp",
    set_as_current=False,
    include=[
        "support.endingtasks",
        "support.policytasks",
        "support.handlertasks",
        "support.uniquetasks",
        "support.jointtasks",
        "support.waitingtasks",
    ],
)
if HOME in os.environ:
    configure(app, Path(os.environ[HOME]))
    faulthandler.register(SHOW_THREADS)
    added = float(os.environ.get(reply_timeout.ADDED, "0"))
    dispatcher.ANSWER_WITHIN += added
    defaults = reservations.end.__kwdefaults__  # on a busy machine, a test would else go on too early
    defaults["reply_timeout"] += added
else:
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")


def do(verb, argument):
    if verb == "brief":
        time.sleep(1)
    if verb == "fail":
        raise ValueError(argument)
    if verb == "release":
        hold = current_hold()
        hold.release()
        with zk_lock(hold.key, timeout=0):
            pass
    if verb == "die" or (verb == "die once" and not Path(argument).exists()):
        Path(argument).touch()
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
    if verb in ("linger", "sleep", "spin"):
        gate = Path(argument)
        (gate / "entered").write_text(str(os.getpid()))
        if verb == "linger":  # until told to go on
            while not (gate / "open").exists():
                time.sleep(0.01)
        elif verb == "sleep":  # in one blocking call
            time.sleep(LONG)
        else:  # in Python
            until = time.monotonic() + LONG
            while time.monotonic() < until:
                pass
    return account()


def account():
    request = current_task.request
    return {
        "pid": os.getpid(),
        "args": request.args,
        "kwargs": request.kwargs,
        "retries": request.retries,
        "headers": dict(request.headers or {}),
        "expires": request.expires,
        "limits": request.timelimit,
        "priority": (request.delivery_info or {}).get("priority"),
        "queue": (request.delivery_info or {}).get("routing_key"),
    }


@app.task(name="ping")
def ping():
    return os.getpid()


def work(key, verb="tell", argument=None):
    return do(verb, argument)


app.task(name="without_lock")(work)


@app.task(name="bound", bind=True, max_retries=3)
@zk_locked("{key}", on_conflict="retry")
def bound(self, key, verb="tell", argument=None):
    return do(verb, argument)


again_if_busy = zk_locked("{key}", on_conflict="retry")(work)
plain = app.task(name="plain")(again_if_busy)
greedy = app.task(name="greedy", autoretry_for=(Exception,), max_retries=1, default_retry_delay=0)(again_if_busy)
app.task(name="patient")(zk_locked("{key}", timeout=60, on_conflict="raise")(work))
app.task(name="late", acks_late=True, reject_on_worker_lost=True)(zk_locked("{key}", timeout=60)(work))
app.task(name="late_again", acks_late=True, reject_on_worker_lost=True)(again_if_busy)


@app.task(name="transfer")
@zk_locked("account/{source}", timeout=60)
def transfer(source, target, before, inside):
    """Hold an account, and want another one when the first gate is open: two of these may wait for each other."""
    do("linger", before)
    with zk_lock("account/{target}", fields={"target": target}, timeout=60):
        do("linger", inside)


# With a pause: when a retry does not wait, Celery's note of it may overwrite the result of the next run.
@app.task(name="again", autoretry_for=(LockNotAcquired,), max_retries=100, default_retry_delay=1)
@zk_locked("{key}", on_conflict="raise")
def again(key):
    return account()


@app.task(name="skipping")
@zk_locked("{key}", on_conflict="skip")
def skipping(key):
    return account()


@app.task(name="follow")
def follow(before, mark):
    Path(mark).touch()


@zk_locked("{key}")
def helper(key): ...


@app.task(name="helped")
def helped(key):
    began = time.monotonic()
    try:
        helper(key)
    except LockNotAcquired:
        pass
    return time.monotonic() - began


@app.task(name="by_hand")
def by_hand(key, verb="tell", argument=None):
    lock = zk_lock(key)
    lock.acquire()
    try:
        return do(verb, argument)
    finally:
        lock.release()


@app.task(name="atomic_above")
@transaction.atomic
@zk_locked("{key}")
def atomic_above(key): ...


@app.task(name="kept")
@transaction.atomic
@zk_locked("{key}", release_on="commit")
def kept(key):
    return connection.in_atomic_block


def note_commit(key, mark):
    def note():
        Path(mark).write_text(str(current_hold(key).lost))

    transaction.on_commit(note)
    return connection.in_atomic_block


app.task(name="atomic_below")(zk_locked("{key}")(transaction.atomic(note_commit)))
app.task(name="atomic_option")(zk_locked("{key}", atomic=True)(note_commit))


@app.task(name="increment")
@zk_locked("{key}", timeout=60)
def increment(key, path):
    """Count in a file, with time for others between read and write."""
    counter = Path(path)
    value = int(counter.read_text()) if counter.exists() else 0
    time.sleep(0.02)
    counter.write_text(str(value + 1))
    return os.getpid()


@app.task(name="storm")
def storm(key, rounds, seed):
    chance = random.Random(seed)
    struck = 0
    lock = zk_lock(key)
    for _ in range(rounds):
        try:  # round everything: where Python is slow, as under a tracer, a strike may come a round late
            striker = threading.Timer(chance.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGUSR1))
            striker.start()
            with lock:
                pass
            while striker.is_alive():
                time.sleep(0.001)
            time.sleep(0.05)
        except SoftTimeLimitExceeded:
            struck += 1
    return struck
