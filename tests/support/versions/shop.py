"""The Celery application of the project: a task of each policy, and the schedule of its beats."""

import contextlib
import os
import time
from pathlib import Path

from celery import Celery, current_task
from celery.signals import beat_init, worker_ready

from django_zklock import current_hold, zk_locked
from django_zklock.exceptions import StaleToken
from support import celeryfolder
from support.versions.keys import unique
from support.versions.record import note, note_working, ready, recorded, work

TICK = 1.0  # seconds between two ticks of the schedule
SLOW = 3.0  # seconds of work, so that a copy of the message comes meanwhile

app = Celery("shop", set_as_current=False)
if celeryfolder.HOME in os.environ:
    celeryfolder.configure(app, Path(os.environ[celeryfolder.HOME]))
app.conf.update(
    beat_schedule={"tick": {"task": "tick", "schedule": TICK}},
    beat_scheduler="django_zklock.contrib.celery.beat:ZkScheduler",
    zklock_beat_scheduler="celery.beat:Scheduler",
    beat_cron_starting_deadline=None,
    result_expires=None,  # else there is an entry of Celery's own
    worker_deduplicate_successful_tasks=True,
)

worker_ready.connect(lambda **_: ready(), weak=False)
beat_init.connect(lambda **_: ready(), weak=False)

SURE = {"acks_late": True, "reject_on_worker_lost": True}


def unit(kind):
    """Note that the task did its work in this block, and whether it is a message that the broker brought back."""
    request = current_task.request
    # What is sent again, as the lock was busy, is a new message.
    copy = bool(request.delivery_info and request.delivery_info.get("redelivered")) and not request.retries
    return work(current_hold(), str(request.id), kind, copy=copy)


@app.task(name="slow", **SURE)
@recorded(lambda key: key)
@zk_locked("{key}")
def slow(key):
    """Work for so long that a copy of the message finds it at work, and tell that it has begun."""
    with unit("slow"):
        if not current_task.request.retries:
            properties = current_task.request.properties
            note_working(properties["delivery_tag"])
        time.sleep(SLOW)


@app.task(name="book", bind=True, **SURE)
def book(self, key, signed):
    """Accept the signed token of a lock, unless it is stale, or came too late for its lease."""
    from django_zklock.fencing import FenceVerifier  # has models
    from django_zklock.fencing.stores import DatabaseTokens

    with contextlib.suppress(StaleToken):
        FenceVerifier(DatabaseTokens()).verify(signed, key=key)
        note("unit", ref=self.request.id, kind="book")


@app.task(name="tick", bind=True, **SURE)
def tick(self):
    note("tick", **self.request.headers["zklock_beat"])


def work_a_little(key):
    with unit(current_task.name):
        time.sleep(0.2 if current_task.name.startswith("until_") else 0.02)


POLICIES = {
    "wait": {},
    "retry": {"on_conflict": "retry", "timeout": 0},
    "skip": {"on_conflict": "skip", "timeout": 0},
}
UNIQUE = ("until_done", "until_start")
TASKS = {"slow": slow}
for _name in (*POLICIES, *UNIQUE):
    _register = app.task(name=_name, **SURE)
    if _name in UNIQUE:
        _locked = zk_locked(unique("{key}"), unique=_name)(work_a_little)
    else:
        _locked = zk_locked("{key}", **POLICIES[_name])(work_a_little)
    TASKS[_name] = _register(recorded(unique if _name in UNIQUE else str)(_locked))
