"""Unique tasks on a real worker: which one is sent, when the next one may be, and publishers that fail."""

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from support import celeryfolder
from support.faults import proxied, within
from support.reserving import holder, queued, reserved_names
from support.uniquetasks import known_to
from support.zoo import eventually

from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.lifecycle import UNIQUE_HEADER
from django_zklock.exceptions import AlreadyQueued, ZooKeeperUnavailable


@pytest.fixture
def publisher(publisher):
    """The lock of a killed process may be there until its session ends."""
    yield publisher
    publisher.zoo.assert_empty(10)


def delay(worker, name, *args, **options):
    return worker.app.tasks[name].apply_async(args, **options)


def test_the_second_call_returns_the_result_of_the_first(publisher):
    first, gate = publisher.begin("until_done", "second")
    second = delay(publisher, "until_done", "second")
    other = delay(publisher, "until_done", "another")
    assert second.id == first.id
    assert other.id != first.id
    gate.open()
    assert publisher.get(second) == publisher.get(first)
    again = delay(publisher, "until_done", "second")
    assert again.id != first.id
    publisher.get(again)
    publisher.get(other)


def test_a_task_that_has_started_lets_the_next_one_wait(publisher):
    first, gate = publisher.begin("until_start", "start")
    second = delay(publisher, "until_start", "start")
    assert second.id != first.id
    publisher.zoo.wait_contenders("unique/start", 2)
    assert delay(publisher, "until_start", "start").id == second.id
    gate.open()
    publisher.get(first)
    publisher.get(second)


def test_a_duplicate_can_be_an_error(publisher):
    with publisher.zoo.hold_elsewhere("unique/error"):
        first = delay(publisher, "once", "error")
        with pytest.raises(AlreadyQueued) as caught:
            delay(publisher, "once", "error")
    assert caught.value.task_id == caught.value.result.id == first.id
    publisher.get(first)


def test_duplicates_by_send_task_and_signatures_are_stopped(publisher):
    with publisher.zoo.hold_elsewhere("unique/ways"):
        first = publisher.app.send_task("until_done", ("ways",))
        assert publisher.app.send_task("until_done", kwargs={"key": "ways"}).id == first.id
        assert publisher.app.tasks["until_done"].s("ways").delay().id == first.id
        assert publisher.app.signature("until_done", ("ways",)).apply_async().id == first.id
    publisher.get(first)


@pytest.mark.parametrize(("verb", "argument"), [("fail", "x"), ("reject", "x"), ("ignore", "x"), ("retry", 0)])
@pytest.mark.parametrize("name", ["until_done", "until_start"])
def test_every_end_of_a_task_frees_its_key(publisher, name, verb, argument):
    delay(publisher, name, "ends", verb, argument)
    eventually(lambda: reserved_names(publisher.zoo) == [], 15, "it was not freed")


@pytest.mark.parametrize("way", ["kill", "revoke", "soft_time_limit", "time_limit"])
def test_a_task_that_is_stopped_frees_its_key(publisher, way):
    """The process frees it at the soft limit. Else the worker's main process frees it for the killed process."""
    gate = publisher.gate()
    result = delay(publisher, "until_done", "stopped", "sleep", str(gate), **({way: 1} if "limit" in way else {}))
    if way == "kill":
        publisher.kill_process(gate.wait_at_work())
    elif way == "revoke":
        gate.wait_at_work()
        result.revoke(terminate=True, signal="SIGKILL")
    eventually(lambda: reserved_names(publisher.zoo) == [], 15, "it was not freed")


def test_a_retry_keeps_the_key(publisher):
    first = delay(publisher, "until_done", "retries", "retry", 1)
    while not first.ready():
        assert delay(publisher, "until_done", "retries").id == first.id or first.ready()
    assert publisher.get(first) == "retried"


def test_a_task_that_replaces_itself_keeps_the_key(publisher):
    """Its id goes on, so it is not done. Also between the end of the first run and the begin of the next."""
    first = delay(publisher, "until_done", "pages", "replace", 0.7)
    calls = [delay(publisher, "until_done", "pages")]
    while not first.ready():
        calls.append(delay(publisher, "until_done", "pages"))
        assert calls[-1].id == first.id or first.ready()
    for call in calls:
        publisher.get(call)


def test_a_requeued_task_keeps_its_key_until_its_end(publisher):
    first = delay(publisher, "late_done", "requeued", "requeue", str(publisher.home / "requeued"))
    assert publisher.get(first) == "requeued"
    eventually(lambda: reserved_names(publisher.zoo) == [])


@pytest.mark.parametrize("name", ["skips", "until_done"])
def test_a_task_that_never_begins_frees_its_key(publisher, name):
    with publisher.zoo.hold_elsewhere("unique/never"):
        result = delay(publisher, name, "never")
        if name == "until_done":
            publisher.zoo.wait_contenders("unique/never", 2)
            result.revoke()
        with pytest.raises(TaskRevokedError):
            publisher.get(result)
        eventually(lambda: reserved_names(publisher.zoo) == [])


@pytest.mark.parametrize("way", ["id", "stamp"])
def test_a_task_that_is_revoked_before_its_eta_frees_its_key(publisher, way):
    control = publisher.app.control
    stamps = {"stamped_headers": ["mark"], "mark": way} if way == "stamp" else {}
    first = delay(publisher, "until_done", f"eta-{way}", countdown=600, **stamps)  # after the last test
    eventually(lambda: f"[{first.id}] received" in publisher.log.read_text())
    assert delay(publisher, "until_done", f"eta-{way}").id == first.id
    _ = control.revoke(first.id) if way == "id" else control.revoke_by_stamped_headers({"mark": way})
    eventually(lambda: reserved_names(publisher.zoo) == [])


@pytest.mark.parametrize("way", ["unknown", "refused", "broken"])
def test_a_message_that_celery_discards_frees_its_key(publisher, way):
    key, headers = f"task/until_done/unique/{way}", {"task": "until_done", "id": way, "lang": "py"}
    if way == "refused":
        delay(publisher, "until_done", way, serializer="pickle")
    else:
        queued(key, way)
        headers |= {UNIQUE_HEADER: key, **({"task": "nowhere"} if way == "unknown" else {})}
        with publisher.app.producer_or_acquire() as producer:
            producer.publish("{", content_type="application/json", headers=headers, exchange="", routing_key="celery")
    eventually(lambda: reserved_names(publisher.zoo) == [])


def test_an_expired_task_frees_its_key(publisher):
    with publisher.zoo.hold_elsewhere("unique/expired"):
        first = delay(publisher, "until_done", "expired", expires=1)
        unseen = delay(publisher, "until_done", "unseen", expires=0.5, queue="nobody")
        with pytest.raises(TaskRevokedError):
            publisher.get(first)
        eventually(lambda: len(reserved_names(publisher.zoo)) == 1)
        eventually(lambda: delay(publisher, "until_done", "unseen").id != unseen.id, 5)


def test_a_redelivered_task_keeps_its_key(publisher):
    first, gate = publisher.begin("late_done", "late")
    publisher.kill_process(gate.wait_at_work())

    def is_delivered_again():
        assert delay(publisher, "late_done", "late").id == first.id
        return publisher.log.read_text().count(f"{first.id}] received") > 1

    eventually(is_delivered_again)
    assert is_delivered_again()
    gate.open()
    publisher.get(first)


KEY = "task/until_done/unique/k"

PUBLISHER = """
import os, signal, sys
from celery import Celery
from support.uniquetasks import app
from django_zklock.core.protocol.contender import Contender

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before":  # reserved, not sent
    app.amqp.send_task_message = die
elif sys.argv[1] == "after":  # sent, and the reservation is not left yet
    Contender.abandon = die
print(app.tasks["until_done"].delay("k").id)
"""


@pytest.fixture
def client(zoo, tmp_path):
    with celeryfolder.configure(Celery("client", set_as_current=False), tmp_path) as client:
        yield known_to(client)
    for key in (KEY, "task/once/unique/k"):
        task_id = holder(key)
        if task_id is not None:
            reservations.end(key, task_id)


def publish(zoo, home, moment):
    return zoo.spawn(PUBLISHER, moment, ZKLOCK_URL=zoo.url(session_timeout=3), **{celeryfolder.HOME: str(home)})


def messages(home):
    return len(list((home / "messages").glob("*.msg")))


def test_an_interrupt_while_it_is_sent_frees_the_key(zoo, client, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(client.amqp, "send_task_message", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.tasks["until_done"].delay("k")
    assert reserved_names(zoo) == []


def test_no_task_is_sent_without_zookeeper(zoo, client, tmp_path):
    with proxied(zoo) as proxy:
        client.tasks["until_done"].delay("k")
        proxy.refuse = True
        proxy.cut_all()
        with within(7), pytest.raises(ZooKeeperUnavailable):
            client.tasks["once"].delay("k")
        assert messages(tmp_path) == 1
        proxy.heal()
    assert len(reserved_names(zoo)) == 1
