"""Publishers of a unique task that fail: killed at each step, without a broker, without ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.signals import before_task_publish
from support import celeryapp
from support.faults import proxied, within
from support.proxy import MULTI, Proxy
from support.reserving import holder, reserved_names
from support.uniquetasks import known_to
from support.zoo import Zoo, eventually

from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.record import Reservation
from django_zklock.exceptions import ZooKeeperUnavailable

pytestmark = pytest.mark.zookeeper

KEY = "task/until_done/unique/k"

PUBLISHER = """
import os, signal, sys
from celery import Celery
from support import celeryapp
from support.uniquetasks import app
from django_zklock.contrib.celery.unique import reservations

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before":  # reserved, not sent
    app.amqp.send_task_message = die
elif sys.argv[1] == "after":  # sent, not confirmed
    reservations.conclude = die
print(app.tasks["until_done"].delay("k").id)
"""


@pytest.fixture
def client(zoo: Zoo, tmp_path: Any) -> Iterator[Celery]:
    client = celeryapp.configure(Celery("client", set_as_current=False), tmp_path)
    yield known_to(client)
    client.close()
    for key in (KEY, "task/once/unique/k"):
        task_id = holder(key)
        if task_id is not None:
            reservations.end(key, task_id)


def publish(zoo: Zoo, home: Any, moment: str) -> subprocess.Popen[str]:
    return zoo.spawn(PUBLISHER, moment, **{celeryapp.HOME: str(home)})


def messages(home: Any) -> int:
    return len(list((home / "messages").glob("*.msg")))


def test_the_reservation_of_a_publisher_that_ended_stays(zoo: Zoo, client: Celery, tmp_path: Any) -> None:
    publisher = publish(zoo, tmp_path, "never")
    first = publisher.communicate(timeout=60)[0].strip()
    assert client.tasks["until_done"].delay("k").id == first
    assert messages(tmp_path) == 1


@pytest.mark.parametrize(("moment", "sent"), [pytest.param("before", 0, marks=pytest.mark.chaos), ("after", 1)])
def test_a_publisher_killed_while_it_sends_blocks_others_for_a_short_time(
    zoo: Zoo, client: Celery, tmp_path: Any, moment: str, sent: int
) -> None:
    """The next publisher waits until the session of the killed one ends: its message may never have been sent."""
    publisher = publish(zoo, tmp_path, moment)
    assert publisher.wait(60) == -signal.SIGKILL
    publisher.communicate()
    assert messages(tmp_path) == sent
    dead = holder(KEY)
    assert dead is not None
    with within(5 + 1):  # the session's timeout is 4 s
        result = client.tasks["until_done"].delay("k")
    assert result.id != dead
    assert messages(tmp_path) == sent + 1
    assert holder(KEY) == result.id


def test_an_id_may_be_a_uuid(zoo: Zoo, client: Celery) -> None:
    task_id = uuid.uuid4()
    assert client.tasks["until_done"].apply_async(("k",), task_id=task_id).id == str(task_id)  # type: ignore[arg-type]


def test_an_interrupt_while_it_is_sent_frees_the_key(zoo: Zoo, client: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.amqp, "send_task_message", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.tasks["until_done"].delay("k")
    assert reserved_names(zoo) == []


def test_no_task_is_sent_without_zookeeper(zoo: Zoo, client: Celery, tmp_path: Any) -> None:
    with proxied(zoo) as proxy:
        client.tasks["until_done"].delay("k")
        proxy.refuse = True
        proxy.cut_all()
        with within(7), pytest.raises(ZooKeeperUnavailable):
            client.tasks["once"].delay("k")
        assert messages(tmp_path) == 1
        proxy.heal()
    assert len(reserved_names(zoo)) == 1


@pytest.mark.parametrize("kill", [Proxy.kill_before_op, Proxy.kill_after_op])
@pytest.mark.parametrize("step", [0, 1], ids=["reserve", "confirm"])
def test_a_broken_connection_is_no_duplicate(
    zoo: Zoo, client: Celery, tmp_path: Any, kill: Callable[[Proxy, int], object], step: int
) -> None:
    with proxied(zoo) as proxy:
        client.tasks["once"].delay("k")
        if step:
            before_task_publish.connect(lambda **_: kill(proxy, MULTI), weak=False, dispatch_uid="kill")
        else:
            kill(proxy, MULTI)
        try:
            result = client.tasks["until_done"].delay("k")
        finally:
            before_task_publish.disconnect(dispatch_uid="kill")
        assert messages(tmp_path) == 2
        eventually(lambda: state(zoo) == "queued")
        assert client.tasks["until_done"].delay("k").id == result.id


def state(zoo: Zoo) -> str:
    return Reservation.decode(zoo.client.get(record.path_of(zoo.base, KEY))[0]).state.value


def test_beat_goes_on_after_a_duplicate(
    zoo: Zoo, client: Celery, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.conf.beat_schedule = {
        name: {"task": name, "schedule": 0.01, "args": ("k",)} for name in ("until_done", "once")
    }
    scheduler = Scheduler(app=client)
    for _ in range(6):
        for entry in scheduler.schedule.values():
            scheduler.apply_entry(entry)
    assert messages(tmp_path) == 2
    assert any("queued or runs" in record.getMessage() for record in caplog.records if record.name == "celery.beat")
