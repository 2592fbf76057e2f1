"""A unique task whose message was lost: an operator finds its reservation and deletes it, and the next call sends."""

import re
from datetime import UTC, datetime

import pytest
from django.test import override_settings
from support import adminsite
from support.adminsite import user_with
from support.locking import as_json, zklock
from support.reserving import reservation, reserved_names

from django_zklock.admin import LockAdmin
from django_zklock.contrib.celery.unique.reservations import lock_key
from django_zklock.core.queue.operator_hold import RESERVATIONS

pytestmark = pytest.mark.django_db

LIST = "/admin/zklock/lock/"
NOWHERE = "nowhere"  # a queue that no worker reads


@pytest.fixture
def publisher(publisher, monkeypatch):
    monkeypatch.setattr(LockAdmin, "reply_timeout", 6.0)
    with override_settings(**adminsite.SETTINGS):
        yield publisher
        publisher.zoo.client.delete(f"{publisher.zoo.base}/{RESERVATIONS}", recursive=True)


def lost(worker, key, name="until_done"):
    result = worker.app.tasks[name].apply_async((key,), queue=NOWHERE)
    (message,) = worker.home.rglob(f"*.{NOWHERE}.msg")
    message.unlink()
    return result


def by_command(worker, key):
    (name,) = [lock["key"] for lock in as_json("list", f"*{key}*")["locks"]]
    shown = zklock("show", "--", name)
    assert "task until_done" in shown
    printed = re.findall(r"Next: python manage.py zklock (end-hold .*)", shown)[0]
    assert "Ended the hold" in zklock(*printed.replace("--reason=''", "--reason=purged").split())


def in_the_admin(worker, key):
    operator = user_with("view_lock", "hold_lock")
    assert "task until_done" in operator.get(f"{LIST}?q={key}").content.decode()
    (name,) = reserved_names(worker.zoo)
    page = operator.get(f"{LIST}act/end/", {"key": lock_key(name)})
    ((_lock, row, _is_ticked),) = page.context["rows"]
    form = {"end": "1", "target": row.target, "reason": "the queue was purged"}
    assert operator.post(f"{LIST}act/end/", form).status_code == 302


@pytest.mark.parametrize("delete", [by_command, in_the_admin])
def test_a_lost_task_is_sent_again_when_its_reservation_is_deleted(publisher, delete, caplog):
    task = publisher.app.tasks["until_done"]
    first = lost(publisher, "gone")
    assert {task.delay("gone").id for _ in range(3)} == {first.id}
    (name,) = reserved_names(publisher.zoo)
    hold = reservation(name)
    assert (hold.task_id, hold.by) == (first.id, "task until_done")
    assert abs((hold.since - datetime.now(UTC)).total_seconds()) < 60
    assert hold.seconds == 3600
    delete(publisher, "gone")
    assert "Ended the hold" in caplog.text
    assert reserved_names(publisher.zoo) == []
    again = task.delay("gone")
    assert again.id != first.id
    publisher.get(again)
