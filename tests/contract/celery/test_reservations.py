"""Reservations of unique tasks: which task has the key, and when the key is free again."""

import time
from datetime import UTC, datetime

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall, connected, die, proxied, within
from support.proxy import MULTI
from support.refused import on_real_server
from support.reserving import Sender, holder, owner_of, path_of, queued, reservation, reserved_names
from support.zoo import eventually

from django_zklock import inspection
from django_zklock.contrib.celery.unique import reservations
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.operator_hold import RESERVATIONS
from django_zklock.core.zk import process
from django_zklock.decorators.context import AcquireAgain
from django_zklock.exceptions import LockTimeout, UnreadableQueue, ZooKeeperUnavailable


@pytest.fixture(autouse=True)
def _no_reservation_is_left(zoo):
    yield
    zoo.client.delete(f"{zoo.base}/{RESERVATIONS}", recursive=True)


@pytest.mark.parametrize("key", ["a/b", "%21unique/a", "0f8fad5bd9cb469fa16570867728950e", "order/1795428818"])
def test_a_second_publisher_gets_the_id_of_the_first_task(zoo, key):
    queued(key)
    assert owner_of(key) == "one"
    assert holder(key) == "one"


def test_a_reservation_that_ends_leaves_no_znode(zoo):
    Sender().fail()
    assert reserved_names(zoo) == []
    queued()
    assert reserved_names(zoo) == ["a/b"]
    assert reservations.end("a/b", "one") is None
    assert reserved_names(zoo) == []
    assert holder("a/b") is None
    assert process.current().attached(Registry).path_bytes == 0


def test_a_reservation_of_a_key_below_another_ends(zoo):
    """The directory of the longer key is in that of the shorter one, and is no sender."""
    queued("a/b", "short")
    queued("a/b/c", "long")
    assert reservations.end("a/b", "short") is None
    assert reservations.end("a/b", "short") is None
    assert reserved_names(zoo) == ["a/b/c"]


@on_real_server
def test_an_end_that_zookeeper_refuses_says_so(zoo):
    queued()
    directory = path_of(zoo, "a/b")
    zoo.client.set_acls(directory, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
    assert "ZooKeeper refused the request delete of " in str(reservations.end("a/b", "one"))
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    assert reservations.end("a/b", "one") is None


def test_a_task_cannot_free_the_key_of_another(zoo):
    queued()
    assert reservations.end("a/b", "none") is None
    assert holder("a/b") == "one"


def test_a_task_that_is_published_again_keeps_the_key(zoo):
    queued(seconds=1)
    assert owner_of(task_id="one") == "one"
    again = Sender(again=True, seconds=600)
    assert again.other is None
    again.sent()
    hold = reservation("a/b")
    assert hold is not None
    assert (hold.until - datetime.now(UTC)).total_seconds() > 500
    Sender(again=True).fail()
    assert owner_of() == "one"
    assert reservations.end("a/b", "one") is None
    assert reserved_names(zoo) == []


def test_a_task_that_waits_in_its_slot_keeps_the_key(zoo):
    """It could not be sent again, so it is as if it were."""
    with pytest.raises(AcquireAgain), reservations.reserved("a/b", "one", task="t", seconds=60) as other:
        assert other is None
        raise AcquireAgain(1.0)
    assert owner_of() == "one"


def test_a_publisher_that_dies_while_it_sends_leaves_the_key_free(zoo):
    Sender()
    die()
    queued(task_id="two")


def test_a_reservation_outlives_the_process_of_its_publisher(zoo):
    queued()
    die()
    assert owner_of() == "one"


def test_a_reservation_ends_by_itself(zoo):
    queued(seconds=0.3)
    eventually(lambda: holder("a/b") is None)
    queued(task_id="two")
    assert holder("a/b") == "two"
    assert len(zoo.names(path_of(zoo, "a/b"))) == 1


@pytest.mark.parametrize("seconds", [0, -600])
def test_a_task_that_has_expired_gets_no_reservation(zoo, seconds):
    queued(seconds=seconds)
    assert reserved_names(zoo) == []


def test_a_reservation_lasts_a_week_at_most(zoo):
    queued(seconds=1e12)
    hold = reservation("a/b")
    assert hold is not None
    assert hold.seconds == 7 * 24 * 3600


def test_a_task_that_is_known_to_have_ended_does_not_count(zoo):
    """Its result is stored before its worker has freed the key. That worker then frees nothing of the next task."""
    queued()
    assert owner_of(has_ended=lambda task_id: False) == "one"
    queued(task_id="two", has_ended=lambda task_id: task_id == "one")
    assert reservations.end("a/b", "one") is None
    assert holder("a/b") == "two"


def test_a_publisher_waits_for_its_timeout_only(zoo):
    first = Sender()
    with within(5), pytest.raises(LockTimeout, match="Another publisher"):
        Sender(task_id="two", timeout=3)
    first.fail()


def test_a_queue_that_cannot_be_read_is_refused(zoo):
    """A later release or another program may have written to it."""
    zoo.client.create(f"{path_of(zoo, 'a/b')}/other-0000000001", makepath=True)
    with pytest.raises(UnreadableQueue):
        Sender()
    assert isinstance(reservations.end("a/b", "one"), UnreadableQueue)


@pytest.mark.parametrize("task_id", ["x" * 4000, "ü\x1b\ud800", "", "with spaces"])
def test_any_id_can_have_a_reservation(zoo, task_id):
    queued(task_id=task_id or "-")
    assert reservations.end("a/b", task_id or "-") is None
    assert reserved_names(zoo) == []


def test_many_publishers_get_the_same_task(zoo):
    def publish(task_id):
        sender = Sender(task_id=task_id, timeout=30)
        sender.sent()
        return sender.task_id

    calls = [BackgroundCall(lambda name=str(n): publish(name)) for n in range(8)]
    assert len({call.result() for call in calls}) == 1


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_lost_reply_changes_nothing(zoo, when):
    with proxied(zoo, 20) as proxy:
        sender = Sender(timeout=20)
        fired = getattr(proxy, when)(MULTI)
        sender.sent()
        assert fired.is_set()
        eventually(lambda: holder("a/b") == "one")
        fired = getattr(proxy, when)(MULTI)
        assert reservations.end("a/b", "one", reply_timeout=20) is None
        assert fired.is_set()
    assert reserved_names(zoo) == []


def test_a_publisher_that_gave_up_leaves_nothing(zoo):
    with proxied(zoo, 20) as proxy:
        queued("a", "other")
        proxy.refuse = True
        proxy.cut_all()
        with pytest.raises(ZooKeeperUnavailable):
            Sender(timeout=1.5)
        proxy.heal()
        connected()
    eventually(lambda: reserved_names(zoo) == ["a"])


def test_a_look_at_all_locks_deletes_a_reservation_that_is_over(zoo):
    queued(seconds=0.1)
    die()
    until = time.monotonic() + 20
    while reserved_names(zoo) and time.monotonic() < until:
        inspection.snapshot(max_age=0)
    assert reserved_names(zoo) == []
