"""A unique task whose message was lost: an operator finds its reservation and deletes it, and the next call sends."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery.result import AsyncResult
from django.contrib.admin.models import LogEntry
from django.core.exceptions import SynchronousOnlyOperation
from django.test import Client, override_settings
from support import adminsite
from support.adminsite import user_with
from support.locking import as_json, ending, zklock
from support.reserving import reserved_names
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock import zk_locked
from django_zklock.admin import LockAdmin
from django_zklock.contrib.celery import queued
from django_zklock.contrib.celery.unique import listing, page, record, reservations
from django_zklock.exceptions import LockChangedHands, ZooKeeperUnavailable
from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.django_db

PAGE = "/admin/zklock/lock/unique/"
NOWHERE = "nowhere"  # a queue that no worker reads


@pytest.fixture
def publisher(publisher: Worker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(LockAdmin, "reply_timeout", 6.0)
    with override_settings(**adminsite.SETTINGS):
        yield publisher
        for name in reserved_names(publisher.zoo):
            publisher.zoo.client.delete(f"{record.directory(publisher.zoo.base)}/{name}", recursive=True)


def lost(worker: Worker, key: str, name: str = "until_done") -> AsyncResult[Any]:
    result = worker.app.tasks[name].apply_async((key,), queue=NOWHERE)
    (message,) = worker.home.rglob(f"*.{NOWHERE}.msg")
    message.unlink()
    return result


def text_of(client: Client, path: str) -> str:
    page = client.get(path).content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def by_command(worker: Worker, key: str) -> None:
    status, _text, message = ending("show", f"unique/{key}")
    assert status == ExitCode.NO_HOLDER
    assert "Task until_done is queued for it since" in message
    shown = zklock(*re.findall(r"manage.py zklock (unique show -- \S+)", message)[0].split())
    printed = re.findall(r"Next: python manage.py zklock (.*)", shown)[0].replace("--reason=''", "{}").split()

    def command(*reason: str) -> list[str]:
        return [word for given in printed for word in (reason if given == "{}" else [given])]

    assert ending(*command())[0] == ending(*command("--reason= "))[0] == ExitCode.USAGE
    assert "Deleted" in zklock(*command("--reason=the queue was purged"))
    assert ending(*command("--reason=again"))[0] == ExitCode.NO_HOLDER


def in_the_admin(worker: Worker, key: str) -> None:
    operator = user_with("view_lock", "break_lock")
    assert "1 reservation of a unique task has these words." in text_of(operator, f"/admin/zklock/lock/?q={key}")
    assert "Task until_done is queued for it since" in text_of(operator, f"/admin/zklock/lock/unique_2F{key}/change/")
    page = operator.get(f"{PAGE}?q={key}").content.decode()
    (query,) = re.findall(r'href="(\?key=[^"]*)"', page)
    form = operator.get(PAGE + query).content.decode()
    assert "it may run twice" in form
    (token,) = re.findall(r'name="token" value="(.*?)"', form)
    assert operator.post(PAGE + query, {"token": token, "reason": " "}).status_code == 200
    assert len(reserved_names(worker.zoo)) == 1
    assert operator.post(PAGE + query, {"token": token, "reason": "the queue was purged"}).status_code == 302
    entry = LogEntry.objects.get()
    assert "Reservation deleted; it was that of task until_done" in entry.change_message
    assert "the queue was purged" in entry.change_message


@pytest.mark.parametrize("delete", [by_command, in_the_admin])
def test_a_lost_task_is_sent_again_when_its_reservation_is_deleted(
    publisher: Worker, delete: Callable[[Worker, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    task = publisher.app.tasks["until_done"]
    first = lost(publisher, "gone")
    assert {task.delay("gone").id for _ in range(3)} == {first.id}
    info: Any = queued(task, "gone")
    assert (info.task_id, info.state, info.host, info.pid) == (first.id, "queued", socket.gethostname(), os.getpid())
    assert abs((info.since - datetime.now(timezone.utc)).total_seconds()) < 60
    delete(publisher, "gone")
    assert "the reservation of lock 'unique/gone' was deleted by" in caplog.text
    assert queued(task, "gone") is None
    again = task.delay("gone")
    assert again.id != first.id
    publisher.get(again)


def test_queued_follows_a_task_and_sends_nothing(publisher: Worker) -> None:
    task = publisher.app.tasks["until_done"]
    assert queued(task, "follow") is None
    assert reserved_names(publisher.zoo) == []
    result, gate = publisher.begin("until_done", "follow")
    running: Any = queued(task, key="follow")
    assert (running.task_id, running.state) == (result.id, "started")
    assert queued(task, "other") is None
    gate.open()
    publisher.get(result)
    eventually(lambda: queued(task, "follow") is None, 10, "it is still queued")


def test_queued_refuses_what_is_not_a_unique_task(publisher: Worker) -> None:
    @zk_locked("a/{key}")
    def function(key: object) -> None: ...

    plain: Any = publisher.app.task(name="not unique", shared=False)(function)
    wrong: Any
    for wrong in (plain, function, "until_done"):
        with pytest.raises(TypeError, match="is not a unique task"):
            queued(wrong, "x")
    with pytest.raises(TypeError):
        queued(publisher.app.tasks["until_done"], nonsense=1)

    async def ask() -> None:
        queued(publisher.app.tasks["until_done"], "x")

    with pytest.raises(SynchronousOnlyOperation):
        async_to_sync(ask)()


def test_a_reservation_that_has_changed_is_not_deleted(publisher: Worker) -> None:
    """The form and the command name the task that the operator has seen; another one may have the key by then."""
    operator = user_with("view_lock", "break_lock")
    first = lost(publisher, "race")
    info: Any = listing.read_one(record.key_of(reserved_names(publisher.zoo)[0]), reply_timeout=30)
    assert reservations.end(info.key, first.id) is None
    lost(publisher, "race")
    assert operator.post(f"{PAGE}?key={info.key}", {"token": info.token, "reason": "r"}).status_code == 409
    status, _text, message = ending("unique", "delete", info.key, "--task-id", first.id, "--reason", "r")
    assert (status, "has another task" in message) == (ExitCode.CHANGED, True)
    with pytest.raises(LockChangedHands):
        listing.delete(info, reason="r", by="me")
    assert len(reserved_names(publisher.zoo)) == 1


def test_the_permissions_of_locks_decide(publisher: Worker) -> None:
    lost(publisher, "rights")
    (name,) = reserved_names(publisher.zoo)
    address = f"{PAGE}?key={record.key_of(name)}"
    viewer, breaker = user_with("view_lock"), user_with("break_lock")
    assert "Delete the reservation" not in viewer.get(address).content.decode()
    assert viewer.post(address, {"token": "x", "reason": "r"}).status_code == 200
    assert breaker.get(address).status_code == 403
    assert reserved_names(publisher.zoo) == [name]


def test_all_states_are_listed_and_found_by_any_word(publisher: Worker) -> None:
    directory = record.directory(publisher.zoo.base)
    texts = {
        "task!shop.tasks.old!feed!1": b'{"late": 0, "state": "queued", "task_id": "t1", "token": "k1", "until": null}',
        "task!shop.tasks.dead!feed!2": b'{"late": 0, "state": "started", "task_id": "t2", "token": "k2", "until": 1}',
        "task!shop.tasks.odd!feed!3": b"\x1b[2J<script>",
        "task!shop.tasks.wrong!feed!4": b'[1, {"pid": "x"}]',
        "feed": b"null",
    }
    for name, data in texts.items():
        publisher.zoo.client.create(f"{directory}/{name}", data, makepath=True)
    answer = as_json("unique", "list", "feed")
    states = [info["state"] for info in answer["reservations"]]
    assert states == ["unreadable", "dead", "unreadable", "queued", "unreadable"]
    assert (answer["matching"], answer["total"]) == (5, 5)
    assert [info["task_id"] for info in as_json("unique", "list", "OLD")["reservations"]] == ["t1"]
    page = text_of(user_with("view_lock"), PAGE)
    assert "5 shown, 5 found, of 5." in page
    assert "Its worker ended, and the broker does not deliver the task again." in page
    assert "<script>" not in page
    assert ending("unique", "delete", "feed/3", "--reason", "r")[0] == 0
    assert "task!shop.tasks.odd!feed!3" not in reserved_names(publisher.zoo)
    assert ending("unique", "show", "feed/none")[0] == ExitCode.NO_HOLDER


def test_of_many_reservations_some_are_shown_and_all_are_counted(
    publisher: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading is one round trip for all: a page needs no more than a moment."""
    monkeypatch.setattr(listing.read, "__kwdefaults__", {**(listing.read.__kwdefaults__ or {}), "most": 10})
    directory = record.directory(publisher.zoo.base)
    own = record.Reservation(task_id="t", token="k", state=record.State.QUEUED)
    for number in range(15):
        publisher.zoo.client.create(f"{directory}/task!many!{number:02}", own.encode(), makepath=True)
    answer = as_json("unique", "list", "--reply-timeout", "20")
    assert (len(answer["reservations"]), answer["matching"], answer["total"]) == (10, 15, 15)
    answer = as_json("unique", "list", "many /0", "--reply-timeout", "20")
    assert (len(answer["reservations"]), answer["matching"], answer["total"]) == (10, 10, 15)


def test_without_zookeeper_the_page_says_so(publisher: Worker) -> None:
    with publisher.zoo.configured(hosts="127.0.0.1:1"):
        response = user_with("view_lock").get(PAGE)
    assert response.status_code == 503
    assert "ZooKeeper does not answer." in response.content.decode()


def test_the_doctor_says_how_many_reservations_it_has_read(zoo: Zoo) -> None:
    for number in range(3):
        reservations.reserve(f"task/feeds.update/feed{number}", str(number))
    assert listing.findings(listing.read(reply_timeout=30)) == [("info", "3 of unique tasks.")]
    part = listing.findings(listing.read(reply_timeout=30, most=2))
    assert part == [("info", "3 of unique tasks. 2 of them were read.")]


def test_a_search_counts_all_reservations_and_a_lock_names_its_own(zoo: Zoo) -> None:
    for number in range(3):
        reservations.reserve(f"task/feeds.update/feed{number}", str(number))
    assert [query for _text, query in page.links("feeds", reply_timeout=30)] == ["q=feeds"]
    (text, _query) = page.links(lock="feed1", reply_timeout=30)[0]
    assert "feeds.update" in text


def test_without_zookeeper_nothing_is_said_of_the_reservations_of_a_lock(zoo: Zoo) -> None:
    with zoo.configured(hosts="127.0.0.1:1"), pytest.raises(ZooKeeperUnavailable):
        listing.of_key("feed1", reply_timeout=0.3)
