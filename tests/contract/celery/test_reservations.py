"""Reservations of unique tasks: which task has the key, and when the key is free again."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall, connected, die, proxied, within
from support.proxy import MULTI
from support.reserving import holder, reserved_names
from support.zoo import Zoo, eventually

from django_zklock import zk_locked
from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.reservations import Attached, Duplicate, Reserved
from django_zklock.contrib.celery.worker import sweep_reservations
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import RequestRefused
from django_zklock.core.zk.gateway import DirectoryState, Gateway
from django_zklock.exceptions import LockTimeout, TooManyLocks, UnreadableQueue, ZkLockError, ZooKeeperUnavailable


def reserved(key: str = "a/b", task_id: str = "one", **more: object) -> Reserved:
    outcome = reservations.reserve(key, task_id, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Reserved), outcome
    return outcome


def queued(key: str = "a/b", task_id: str = "one", **more: object) -> Reserved:
    """Reserve a key for a task whose message is sent."""
    reservation = reserved(key, task_id, **more)
    reservations.conclude(reservation, sent=True)
    return reservation


def started(key: str = "a/b", task_id: str = "one", *, late: bool = False) -> Attached:
    attached = reservations.start(key, task_id, late=late, reply_timeout=20)
    assert attached is not None
    return attached


def owner_of(key: str = "a/b", task_id: str = "two", **more: object) -> str:
    """Reserve a key that another task has; return the id of that task."""
    outcome = reservations.reserve(key, task_id, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Duplicate), outcome
    return outcome.task_id


@pytest.mark.parametrize("key", ["a/b", "%21unique/a", "0f8fad5bd9cb469fa16570867728950e", "order/1795428818"])
def test_a_second_publisher_gets_the_id_of_the_first_task(zoo: Zoo, key: str) -> None:
    queued(key)
    assert owner_of(key) == "one"
    assert holder(key) == "one"


def test_a_reservation_that_ends_leaves_no_znode(zoo: Zoo) -> None:
    reservations.conclude(reserved(), sent=False)
    assert reserved_names(zoo) == []
    queued()
    assert reservations.end("a/b", "one", attached=started()) is None
    assert reserved_names(zoo) == []
    reserved()
    assert reservations.end("a/b", "one") is None
    assert reserved_names(zoo) == []
    assert holder("a/b") is None


def test_an_end_that_zookeeper_refuses_says_so(zoo: Zoo) -> None:
    queued()
    directory = record.directory(zoo.base)
    zoo.client.set_acls(directory, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
    assert "ZooKeeper refused the request delete of " in str(reservations.end("a/b", "one"))
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    assert reservations.end("a/b", "one") is None


def test_the_worker_may_be_faster_than_the_publisher(zoo: Zoo) -> None:
    late = reserved()
    worker = started()
    reservations.conclude(late, sent=True)
    assert owner_of() == "one"
    reservations.end("a/b", "one", attached=worker)
    reservations.conclude(late, sent=True)
    assert reserved_names(zoo) == []
    queued("a/b", "two")
    reservations.conclude(late, sent=True)
    reservations.conclude(late, sent=False)
    assert holder("a/b") == "two"


def test_a_task_cannot_free_the_key_of_another(zoo: Zoo) -> None:
    queued()
    reservations.end("a/b", "none")
    assert reservations.start("a/b", "none") is None
    assert holder("a/b") == "one"


def test_a_task_that_is_published_again_keeps_the_key(zoo: Zoo) -> None:
    queued()
    worker = started()
    assert owner_of(task_id="one") == "one"
    again = reserved(again=True)
    reservations.conclude(again, sent=True)
    reservations.detach(worker)
    assert owner_of() == "one"
    second = started()
    reservations.conclude(reserved(again=True), sent=False)
    assert owner_of() == "one"
    reservations.end("a/b", "one", attached=second)
    assert reserved_names(zoo) == []


def test_a_copy_that_did_nothing_does_not_free_the_key_of_the_one_that_runs(zoo: Zoo) -> None:
    queued()
    first, copy = started(late=True), started(late=True)
    reservations.end("a/b", "one", attached=copy)
    assert owner_of() == "one"
    reservations.end("a/b", "one", attached=first)
    assert reserved_names(zoo) == []


def test_a_copy_that_did_nothing_does_not_keep_the_key_of_a_dead_one(zoo: Zoo) -> None:
    """The other worker may be dead, and only its session lasts."""
    queued()
    started(late=True)
    reservations.end("a/b", "one", attached=started(late=True))
    assert owner_of() == "one"
    die()
    assert holder("a/b") is None
    queued(task_id="two")


@pytest.mark.parametrize("sent", [False, True])
def test_a_dead_publisher_keeps_the_key_if_its_message_was_sent(zoo: Zoo, sent: bool) -> None:
    """Otherwise, to wait for that message could last for ever."""
    if sent:
        queued()
    else:
        reserved()
    die()
    assert holder("a/b") == ("one" if sent else None)


@pytest.mark.parametrize("late", [False, True])
def test_a_dead_worker_counts_if_its_task_will_be_delivered_again(zoo: Zoo, late: bool) -> None:
    """Without late acknowledgement, the broker has forgotten the task."""
    queued()
    started(late=late)
    die()
    assert holder("a/b") == ("one" if late else None)
    if late:
        reservations.end("a/b", "one", attached=started(late=True))
        assert reserved_names(zoo) == []
    else:
        queued(task_id="two")


def test_a_rejected_task_that_is_requeued_keeps_its_reservation(zoo: Zoo) -> None:
    queued()
    reservations.detach(started(), waits=True)
    die()
    assert owner_of() == "one"


def test_an_expired_reservation_counts_while_the_task_runs(zoo: Zoo) -> None:
    queued(until=time.time() - 600)
    worker = started()
    assert owner_of() == "one"
    reservations.detach(worker, waits=True)
    queued(task_id="two", until=time.time() - 600)
    queued(task_id="two", until=time.time() + 60)  # its new message has an expiry of its own
    assert owner_of(task_id="three") == "two"


def test_a_task_that_is_known_to_have_ended_does_not_count(zoo: Zoo) -> None:
    """Its result is stored before its worker has freed the key. That worker then frees nothing of the next task."""
    queued()
    worker = started()
    assert owner_of(has_ended=lambda task_id: False) == "one"
    queued(task_id="two", has_ended=lambda task_id: task_id == "one")
    reservations.end("a/b", "one", attached=worker)
    assert holder("a/b") == "two"


def test_a_publisher_waits_until_another_is_done(zoo: Zoo) -> None:
    """The first task may never be sent. To return its id would lose both."""
    for sent, expected in ((True, "one"), (False, "two")):
        first = reserved()
        second = BackgroundCall(lambda: reservations.reserve("a/b", "two"))
        eventually(lambda: process.current()._client._data_watchers)  # type: ignore[union-attr]
        reservations.conclude(first, sent=sent)
        assert second.result().task_id == expected
        reservations.end("a/b", expected)


def test_a_publisher_waits_for_its_timeout_only(zoo: Zoo) -> None:
    reserved()
    with within(5), pytest.raises(LockTimeout, match="Another publisher"):
        reservations.reserve("a/b", "two", timeout=3)
    reservations.end("a/b", "one")


def test_two_reservations_with_one_version_are_distinguished(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    queued()
    stale = family(zoo)
    reservations.end("a/b", "one")
    queued(task_id="two")
    assert family(zoo).version == stale.version
    update = reservations._Update
    outdated: Any = lambda *args, **options: update(*args, **{**options, "guess": stale})  # noqa: E731
    monkeypatch.setattr(reservations, "_Update", outdated)
    assert reservations.end("a/b", "one") is None
    assert reservations.start("a/b", "one") is None
    assert owner_of("a/b", "three", has_ended=lambda task_id: task_id == "one") == "two"
    monkeypatch.undo()
    assert reservations.start("a/b", "two") is not None


def family(zoo: Zoo) -> DirectoryState:
    path = record.path_of(zoo.base, "a/b")
    data, stat = zoo.client.get(path)
    return DirectoryState(path=path, data=data, version=stat.version, children=tuple(zoo.client.get_children(path)))


def test_a_process_that_ends_in_an_orderly_way_leaves_the_key_to_others(zoo: Zoo) -> None:
    reserved()
    second = BackgroundCall(lambda: reservations.reserve("a/b", "two"))
    eventually(lambda: process.current()._client._data_watchers)  # type: ignore[union-attr]
    die()
    with pytest.raises(ZooKeeperUnavailable, match="closed"):
        second.result()
    queued(task_id="three")


def test_an_unreadable_reservation_stays(zoo: Zoo) -> None:
    """A later release may have written it."""
    queued()
    zoo.client.set(record.path_of(zoo.base, "a/b"), b"{}")
    with pytest.raises(UnreadableQueue):
        reservations.reserve("a/b", "two")
    assert zoo.client.get(record.path_of(zoo.base, "a/b"))[0] == b"{}"


def test_a_damaged_reservation_is_not_retried_without_end(zoo: Zoo) -> None:
    with proxied(zoo, 20) as proxy:
        damaged = reserved()
        path = record.path_of(zoo.base, "a/b")
        for name in zoo.client.get_children(path):
            zoo.client.delete(f"{path}/{name}")
        proxy.reset()
        reservations.conclude(damaged, sent=True)
        with pytest.raises(ZkLockError, match="delete the rest"):
            reservations.start("a/b", "one", reply_timeout=20)
        assert proxy.counts[MULTI] < 100
        assert reservations.end("a/b", "one") is None
        queued(task_id="two")


def test_many_publishers_get_the_same_task(zoo: Zoo) -> None:
    calls = [BackgroundCall(lambda name=str(n): _publish(name)) for n in range(8)]  # type: ignore[misc]
    assert len({call.result() for call in calls}) == 1


def _publish(task_id: str) -> str:
    outcome = reservations.reserve("a/b", task_id)
    if isinstance(outcome, Reserved):
        reservations.conclude(outcome, sent=True)
    return outcome.task_id


def path_bytes() -> int:
    return process.current().attached(Registry).path_bytes


def test_the_children_of_a_session_count_while_they_are_there(zoo: Zoo) -> None:
    reservation = reserved()
    publishing = path_bytes()
    assert publishing > 0
    worker = started()
    assert path_bytes() > publishing
    reservations.conclude(reservation, sent=True)
    assert 0 < path_bytes() <= publishing
    reservations.detach(worker)
    assert path_bytes() == 0
    reservation = reserved(task_id="one")
    for name in zoo.client.get_children(record.path_of(zoo.base, "a/b")):
        zoo.client.delete(f"{record.path_of(zoo.base, 'a/b')}/{name}")
    zoo.client.delete(record.path_of(zoo.base, "a/b"))  # as the worker's process does at the end of the task
    reservations.conclude(reservation, sent=True)
    assert path_bytes() == 0
    started_by_none = reservations.start("a/b", "none")
    assert started_by_none is None
    assert path_bytes() == 0


def test_a_duplicate_and_a_refused_update_count_nothing(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    queued()
    assert owner_of() == "one"
    assert path_bytes() == 0
    refusal = RequestRefused("no")
    monkeypatch.setattr(Gateway, "commit", lambda self, operations, callback: callback(refusal))
    with pytest.raises(RequestRefused):
        reservations.reserve("c", "three")
    assert path_bytes() == 0


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_lost_reply_counts_once(zoo: Zoo, when: str) -> None:
    with proxied(zoo, 20) as proxy:
        queued()
        fired = getattr(proxy, when)(MULTI)
        worker = started()
        assert fired.is_set()
        once = path_bytes()
        assert once > 0
        fired = getattr(proxy, when)(MULTI)
        reservations.detach(worker, reply_timeout=10)
        assert fired.is_set()
        assert path_bytes() == 0


def test_reservations_are_refused_before_they_are_too_many(zoo: Zoo) -> None:
    long = "/".join(["k" * 190] * 4)
    with zoo.configured(JUTE_MAXBUFFER=2**17):
        for number in range(170):
            queued(f"{long}/{number}")
        workers = [reservations.start(f"{long}/{number}", "one") for number in range(170)]
        attached = [worker for worker in workers if worker is not None]
        assert 100 < len(attached) < 170
        assert 130000 < path_bytes() <= 2**17
        with pytest.raises(TooManyLocks):
            reservations.reserve(f"{long}/more", "two")
        for number, worker in enumerate(workers):
            assert reservations.end(f"{long}/{number}", "one", attached=worker, reply_timeout=30) is None
        assert path_bytes() == 0
        assert reserved_names(zoo) == []


def test_an_update_that_was_carried_out_is_not_refused(zoo: Zoo) -> None:
    """The worker's other child does not fit into the count any more: it was not counted when others came."""
    long = "/".join(["k" * 190] * 4)
    with zoo.configured(JUTE_MAXBUFFER=2**17):
        queued(long)
        started(long, late=True)
        copy = started(long, late=True)
        session = process.current()
        session.post(session.attached(Registry).discard, record.path_of(zoo.base, long))
        with pytest.raises(TooManyLocks):
            for number in range(200):
                reserved(f"{long}/{number}")
        assert reservations.end(long, "one", attached=copy, reply_timeout=30) is None


@pytest.mark.parametrize("fault", ["no reply", "late"])
def test_a_reservation_whose_publisher_gave_up_is_withdrawn(zoo: Zoo, fault: str) -> None:
    """Its transaction is carried out, but the reply is lost or late: nobody waits for it any longer."""
    with proxied(zoo, 20) as proxy:
        queued("a", "other")
        if fault == "late":
            proxy.delay_op(MULTI, 60)
        else:
            proxy.refuse = True
            proxy.kill_after_op(MULTI)
        proxy.reset()
        with pytest.raises(ZooKeeperUnavailable):
            reservations.reserve("a/b", "one", timeout=1.5)
        sent = proxy.counts[MULTI]
        assert sent in (1, 2)  # a heartbeat may be one of them
        proxy.heal()
        proxy.wait_for(lambda: proxy.counts[MULTI] > sent, 30)
        eventually(lambda: len(reserved_names(zoo)) == 1)


def ready_worker(**options: Any) -> None:
    """Have a worker with such a task become ready."""

    def work() -> None:
        pass

    app: Any = Celery("app", set_as_current=False)
    app.task(zk_locked("k", **options)(work), name="task", shared=False)
    only = SimpleNamespace(tasks={"task": app.tasks["task"]})  # an app has the shared tasks of all modules, too
    sweep_reservations(sender=SimpleNamespace(app=only))


@pytest.mark.parametrize("options", [{"unique": "until_done"}, {"on_conflict": "coalesce"}])
def test_a_worker_deletes_what_is_long_dead(zoo: Zoo, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    queued("waits")
    queued("waits/long", until=time.time() + 600)
    started(queued("runs/again").key, late=True)
    started(queued("dead").key)
    queued("over", until=time.time() - 600)
    reserved("never/sent")
    zoo.client.create(f"{record.directory(zoo.base)}/unreadable", b"?")
    die()
    before = reserved_names(zoo)
    connected()
    ready_worker(**options)
    die()
    assert reserved_names(zoo) == before
    monkeypatch.setattr(reservations, "DEAD_FOR", 0.0)
    ready_worker(**options)
    eventually(lambda: sorted(reserved_names(zoo)) == ["runs!again", "unreadable", "waits", "waits!long"])


def test_a_reservation_that_counts_again_is_not_deleted(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    queued("k", until=time.time() - 600)
    monkeypatch.setattr(reservations, "DEAD_FOR", 0.0)
    commit = Gateway.commit

    def attach_first(gateway: Gateway, operations: Any) -> None:
        monkeypatch.setattr(Gateway, "commit", commit)
        zoo.client.create(f"{zoo.base}/!unique/k/0-{0:016x}-worker", ephemeral=True)
        commit(gateway, operations)

    monkeypatch.setattr(Gateway, "commit", attach_first)
    process.current().post(reservations.sweep, process.current())
    eventually(lambda: Gateway.commit is commit)
    die()
    assert reserved_names(zoo) == ["k"]


def test_a_worker_without_unique_tasks_needs_no_connection(zoo: Zoo) -> None:
    die()
    ready_worker()
    assert process.peek() is None
