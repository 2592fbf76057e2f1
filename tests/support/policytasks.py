"""Celery tasks for each policy: with one lock, a shared one and several; busy, lost, or held by the task itself."""

import functools
import time
from pathlib import Path

from celery import Task, current_task
from celery.result import allow_join_result
from django.db import transaction
from kombu.exceptions import OperationalError

from django_zklock import current_hold, zk_lock, zk_locked
from django_zklock.exceptions import LockDeadlock, LockLost
from support.celeryapp import app, do

VALUE = {"skipped": True}
POLICIES = {
    "raise": {"on_conflict": "raise"},
    "retry": {"on_conflict": "retry"},
    "skip": {"on_conflict": "skip"},
    "value": {"on_conflict": "skip", "skip_value": VALUE},
    "wait": {"on_conflict": "wait"},
}


def work(key, verb="tell", argument=None, journal=""):
    """Record that the work has begun, do it, and return a value for the next step of a chain."""
    if journal:
        with Path(journal).open("a", encoding="utf-8") as file:
            file.write(f"{current_task.request.id} {time.monotonic()}\n")
    do(verb, argument)
    return "done"


def nested(key, inner, gate, journal):
    work(key, "linger", gate, journal)
    with zk_lock(inner, timeout=30):
        return "done"


def committed(key, error, journal):
    """Commit work, and then meet an error of a lock."""
    kinds = {kind.__name__: kind for kind in (LockDeadlock, LockLost)}
    work(key, journal=journal)

    def fail():
        raise kinds[error]("after the COMMIT", lock=key)

    with transaction.atomic():
        transaction.on_commit(fail)


app.task(name="nested.committed", acks_late=True)(zk_locked("{key}", on_lost="retry")(committed))

SHARES = {"read": {"kind": "read"}, "permit": {"limit": 2}}

for _name, _options in POLICIES.items():
    app.task(name=f"policy.{_name}")(zk_locked("{key}", **_options)(work))
    app.task(name=f"policy.{_name}.late", acks_late=True, reject_on_worker_lost=True)(
        zk_locked("{key}", **_options)(work)
    )
    app.task(name=f"policy.{_name}.spent", acks_late=True, reject_on_worker_lost=True)(
        zk_locked("{key}", max_conflicts=0, **_options)(work)
    )
    app.task(name=f"several.{_name}")(zk_locked(["{key}/b", "{key}/a"], **_options)(work))
    app.task(name=f"several.patient.{_name}")(zk_locked(["{key}/b", "{key}/a"], timeout=30, **_options)(work))
    app.task(name=f"nested.{_name}")(zk_locked("{key}", **_options)(nested))
    for _kind, _how in SHARES.items():
        app.task(name=f"sharing.{_kind}.{_name}")(zk_locked("{key}", **_how, **_options)(work))


# The pool process alone computes this key.
app.task(name="policy.computed.spent", acks_late=True, reject_on_worker_lost=True)(
    zk_locked(lambda key, *_others, **_more: key, on_conflict="retry", max_conflicts=0)(work)
)
CONSENTS = {
    "on_lost": ({}, {"on_lost": "retry", "on_conflict": "raise"}),
    "late": ({"acks_late": True}, {}),
    "refuses": ({"acks_late": True}, {"on_lost": "fail"}),
    "spent": ({"acks_late": True}, {"max_conflicts": 0}),
    "bounded": ({"acks_late": True}, {"max_hold": 60}),
}
"""Options of tasks and of their locks, which say whether the work may begin again."""
_task = app.task
for _name, (_of_task, _options) in CONSENTS.items():
    _task(name=f"nested.{_name}", **_of_task)(zk_locked("{key}", **_options)(nested))
    _task(name=f"policy.{_name}", **_of_task)(zk_locked("{key}", **_options)(work))


@app.task(name="nested.plain")
def plain(key, *args):
    with zk_lock(key):
        return nested(key, *args)


@app.task(name="several.patient.two")
@zk_locked(lambda key: f"{key}/a", timeout=30)
@zk_locked(lambda key: f"{key}/b", timeout=30)
def one_in_the_other(key):
    return "done"


def charging(function):
    @functools.wraps(function)
    def charge(key, journal):
        work(key, journal=journal)
        return function(key, journal)

    return charge


@app.task(name="several.charging")
@zk_locked("{key}/a", timeout=30)
@charging
@zk_locked("{key}/b", on_conflict="retry")
def charged(key, journal):
    return "done"


@app.task(name="policy.next")
def follow(before, mark=""):
    if mark:
        Path(mark).write_text(str(before))
    return before


@app.task(name="policy.body")
def body(parts):
    return parts


@app.task(name="policy.errback")
def errback(request, error, traceback, mark):
    Path(mark).touch()


def linger(key, gate):
    return do("linger", gate)


unlucky = {"on_lost": "retry", "abort_on": "lost"}
app.task(name="policy.unlucky")(zk_locked("{key}", **unlucky)(linger))
app.task(name="policy.unlucky_twice")(zk_locked("{key}", max_conflicts=1, **unlucky)(linger))


@app.task(name="policy.overlong")
@zk_locked("{key}", on_lost="retry", max_hold=0.5, abort_on="never", max_conflicts=2)
def overlong(key, mark):
    """Work for too long, until the gate is open."""
    return do("linger", mark)


@app.task(name="policy.everything", bind=True)
@zk_locked("{key}", on_conflict="retry")
def everything(self, key):
    request = self.request
    return {
        "root_id": request.root_id,
        "parent_id": request.parent_id,
        "group": request.group,
        "group_index": request.group_index,
        "stamps": request.stamps,
        "shadow": request.shadow,
        "reply_to": request.reply_to,
        "headers": sorted(request.headers or ()),
        "limits": request.timelimit,
        "priority": request.delivery_info.get("priority"),
        "queue": request.delivery_info.get("routing_key"),
        "expires": request.expires is not None,
    }


def itself(self, key):
    """Retry under the lock, at once: the message is sent, and has arrived, before the release."""
    if not self.request.retries:
        again = self.retry(countdown=0, throw=False)
        time.sleep(1)
        raise again
    return int(self.request.retries)


for _name in ("skip", "raise"):
    app.task(name=f"policy.itself.{_name}", bind=True, max_retries=1)(zk_locked("{key}", on_conflict=_name)(itself))


@app.task(name="policy.own_run", bind=True)
@zk_locked("{key}", on_conflict="skip", timeout=0)
def own_run(self, key, other=""):
    if other:
        return "refused" if self.run(other) is None else "went through"
    return "inner"


@app.task(name="policy.sends")
@zk_locked("{key}")
def sends(key, gate):
    sent = app.send_task("policy.wait", (key,))
    do("linger", gate)
    return str(sent.id)


class Offline(Task):
    """A task whose messages the broker does not accept."""

    def shadow_name(self, *args):
        raise OperationalError("no broker")


for _late in (False, True):
    app.task(name=f"offline.{_late}", base=Offline, acks_late=_late)(zk_locked("{key}", on_conflict="retry")(work))
app.task(name="nested.offline", base=Offline)(zk_locked("{key}", on_lost="retry")(nested))


@app.task(name="offline.two", base=Offline)
@zk_locked("{outer}")
@zk_locked("{inner}")
def two(outer, inner):
    return "done"


def accounts(*numbers, **_more):
    return [f"account/{number}" for number in numbers[:2]]


@app.task(name="several.transfer")
@zk_locked(accounts, unique="until_done")
def transfer(source, target, verb="tell", argument=None):
    for number in (source, target):
        current_hold(f"account/{number}").check()
    return do(verb, argument)


@app.task(name="sharing.waits")
def waits(key, kind, name):
    with zk_lock(key, **SHARES[kind]), allow_join_result():
        try:
            return str(app.send_task(name, (key,)).get(timeout=30, interval=0.01))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
