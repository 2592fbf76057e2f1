"""Breaking a lock, and operator holds."""

import logging
import re
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from support.faults import BackgroundCall, acquire_once, acquired_by_many, die, queue_up, results, within
from support.primitives import Taker
from support.proxy import CONNECTION_LOSS, CREATE2, MULTI, NO_AUTH, NO_NODE, with_error
from support.signalled import received
from support.strike import Struck
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import zk_lock, zk_locks
from django_zklock.contrib.metrics.prometheus import waiting_now
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.protocol import contender
from django_zklock.core.queue import nodes
from django_zklock.exceptions import InvalidLockName, LockBusy, LockChangedHands, LockLost, LockTimeout, UnreadableQueue
from django_zklock.operations import (
    break_lock,
    clear_limit,
    end_hold,
    hold_lock,
    limit_of,
    request_release,
    set_limit,
)
from django_zklock.signals import lock_broken

pytestmark = pytest.mark.usefixtures("no_rests")

WHY = {"reason": "the machine is on fire", "by": "anna"}
LONG = 600.0


def broke(hold, **more):
    return break_lock(hold.key, guid=guid_of(hold.path), token=hold.token, **{**WHY, **more})


@pytest.mark.parametrize("watch_after", [0.0, 0.25], ids=["watches its znode", "does not watch yet"])
def test_the_holder_of_a_broken_lock_learns_of_it(zoo, watch_after, monkeypatch):
    def work():
        with pytest.raises(LockLost) as caught, zk_lock("a/b") as hold:
            holds.append(hold)
            while True:
                time.sleep(0.01)
        return str(caught.value)

    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", watch_after)
    holds = []
    elsewhere = BackgroundCall(work)
    eventually(lambda: holds)
    with within(1.3):
        broke(holds[0])
        outcome = elsewhere.result()
    assert "its znode was deleted by another session" in outcome
    assert holds[0].lost


def test_a_broken_lock_goes_to_the_next_in_the_queue(zoo):
    with pytest.raises(LockLost), zk_lock("k") as hold:
        waiters, order = queue_up(zoo, "k", 3)
        names = zoo.children("k")
        broke(hold)
        time.sleep(10)
    # Only here: the abort may come at any line of the block, and would leave the rest of it out.
    assert set(zoo.children("k")) <= set(names[1:])
    results(waiters)
    assert order == [0, 1, 2]


@pytest.mark.parametrize("change", [{"token": 1}, {"guid": str(uuid.uuid4())}], ids=["token", "guid"])
def test_a_holder_that_was_not_named_keeps_the_lock(zoo, change):
    """The page that was confirmed may be old."""
    with zk_lock("k") as hold:
        with pytest.raises(LockChangedHands):
            break_lock("k", **{"guid": guid_of(hold.path), "token": hold.token, **WHY, **change})
        hold.check()
    with pytest.raises(LockChangedHands):
        broke(hold)


def test_one_of_several_readers_can_be_broken_and_a_waiting_writer_cannot(zoo):
    """The waiter may be granted in that moment, and would hold the lock together with the next one."""
    made = []
    for kind in (nodes.Kind.READ, nodes.Kind.READ, nodes.Kind.WRITE):
        first = str(uuid.uuid4())
        path = f"{zoo.base}/k/{nodes.prefix(first, kind)}"
        created, stat = zoo.client.create(path, b"", ephemeral=True, sequence=True, makepath=True, include_data=True)
        made.append((first, stat.czxid, created))
    with pytest.raises(LockChangedHands):
        break_lock("k", guid=made[2][0], token=made[2][1], **WHY)
    break_lock("k", guid=made[1][0], token=made[1][1], **WHY)
    assert zoo.children("k") == [path.rpartition("/")[2] for _, _, path in (made[0], made[2])]
    for _, _, path in (made[0], made[2]):
        zoo.client.delete(path)


def test_a_break_is_audited_before_the_signal_is_sent(zoo, caplog):
    reported = []

    def receive(**kwargs):
        reported.append({**kwargs, "audited": len(caplog.records)})

    payload = nodes.Payload(
        guid="x", host="h\x1b[31m", pid=7, thread="t\nforged line", what="job\u202e", since="", template=""
    )
    audited = caplog.at_level(logging.INFO, "zklock.audit")
    with received(lock_broken, receive), audited, zoo.hold_elsewhere("k") as path:
        zoo.client.set(path, payload.encode())
        guid = guid_of(path)
        token = zoo.client.exists(path).czxid
        outcome = break_lock("k", guid=guid, token=token, reason="stuck\nsince Monday", by="anna\x1b[0m")
        eventually(lambda: reported)
    (record,) = caplog.records
    assert record.name == "zklock.audit"
    message = record.getMessage()
    assert message.isprintable()
    for part in ("lock 'k'", "anna", "since Monday", guid, str(token), "unknown kind"):
        assert part in message
    assert (reported[0]["lock"], reported[0]["holder"], reported[0]["reason"]) == ("k", outcome.holder, outcome.reason)
    assert reported[0]["audited"] == 1
    assert (outcome.holder.pid, outcome.holder.token) == (7, token)


@pytest.mark.parametrize("name", ["shelf/a b", "shelf/ü", "100%", "a%2f"])
def test_a_key_that_is_not_escaped_is_refused(zoo, name):
    """No lock has such a key, so its hold or limit would have no effect."""
    key = zk_lock(name).key
    calls = [
        lambda: hold_lock(name, seconds=1, **WHY),
        lambda: set_limit(name, 1, **WHY),
        lambda: clear_limit(name, **WHY),
        lambda: limit_of(name),
    ]
    for call in calls:
        with pytest.raises(InvalidLockName, match=re.escape(f"'{key}'")):
            call()
    zoo.assert_empty()
    hold = hold_lock(key, seconds=60, **WHY)
    assert_refused(zk_lock(name, timeout=0), LockBusy, "anna")
    end_hold(key, token=hold.token, by="anna")


def test_an_unreadable_queue_is_left_alone(zoo):
    zoo.client.create(f"{zoo.base}/k/strange-0000000001", b"", makepath=True)
    with pytest.raises(UnreadableQueue):
        break_lock("k", guid="x", token=1, **WHY)
    with pytest.raises(UnreadableQueue):
        hold_lock("k", seconds=1, **WHY)
    zoo.client.delete(f"{zoo.base}/k/strange-0000000001")


def test_an_operator_hold_outlives_its_process_and_errors_name_it(zoo):
    hold = hold_lock("k", seconds=LONG, **WHY)
    die()
    words = "operator anna until .* UTC: the machine is on fire"
    assert_refused(zk_lock("k", timeout=0), LockBusy, f"held by {words}")
    assert_refused(zk_lock("k", timeout=0.2), LockTimeout, words)
    assert_refused(zk_locks("a", "b", "k", timeout=0.2), LockTimeout, words)
    with zoo.hold_elsewhere("k"), pytest.raises(LockTimeout, match=words), zk_lock("k", timeout=0.2):
        pass
    assert zk_lock("k").locked()
    end_hold("k", token=hold.token, by="anna")
    acquire_once("k", timeout=0)
    with pytest.raises(LockChangedHands):
        end_hold("k", token=hold.token, by="anna")


def test_an_operator_hold_queues_like_any_contender(zoo):
    def operate():
        hold = hold_lock("k", seconds=LONG, wait=10, **WHY)
        order.append(-1)
        end_hold("k", token=hold.token, by="anna")

    with zk_lock("k"):
        with pytest.raises(LockBusy, match=r"is held by '.*' on "):
            hold_lock("k", seconds=LONG, **WHY)
        with pytest.raises(LockTimeout):
            hold_lock("k", seconds=LONG, wait=0.2, **WHY)
        zoo.wait_contenders("k", 1)
        operator = BackgroundCall(operate)
        zoo.wait_contenders("k", 2)
        waiters, order = queue_up(zoo, "k", 1)
    operator.result()
    results(waiters)
    assert order == [-1, 0]


def test_an_operator_hold_lasts_its_full_time_from_its_grant(zoo):
    with zk_lock("k"):
        operator = BackgroundCall(lambda: hold_lock("k", seconds=3.0, wait=10, **WHY))
        zoo.wait_contenders("k", 2)
        assert not list(waiting_now())  # it counts as no caller
    hold = operator.result()
    assert hold.since.timestamp() == zoo.client.exists(hold.path).ctime / 1000
    assert (hold.until - hold.since).total_seconds() == hold.seconds == 3.0
    with within(4), zk_lock("k"):
        pass


def test_an_operator_hold_ends_by_itself(zoo, caplog):
    with caplog.at_level(logging.INFO, "zklock.audit"):
        hold_lock("k", seconds=3.0, **WHY)
        assert len(zoo.children("k")) == 1
        zoo.wait_contenders("k", 0, timeout=4.2)
        eventually(lambda: len(caplog.records) == 2)
    assert "is over" in caplog.text


def expired_hold(zoo):
    hold = hold_lock("k", seconds=2.0, **WHY)
    die()
    eventually(lambda: zoo.client.set(f"{zoo.base}/k", b"").mtime / 1000 > hold.until.timestamp())
    assert zoo.children("k") == [hold.path.rpartition("/")[2]]
    return hold


@pytest.mark.parametrize(("timeout", "others"), [(0, False), (0, True), (5, False)])
def test_an_expired_hold_keeps_no_caller_out(zoo, proxy, timeout, others):
    expired_hold(zoo)
    for change in (lambda reply: reply, with_error(NO_NODE)) if others else ():  # to the time, and to the delete
        proxy.alter_reply(MULTI, change)
    with within(1), zk_lock("k", timeout=timeout):
        assert len(zoo.children("k")) == 1


def test_a_waiter_that_is_not_told_the_time_asks_again(zoo, proxy):
    expired_hold(zoo)
    proxy.alter_reply(CREATE2, with_error(CONNECTION_LOSS))  # its create would tell it, too
    fired = proxy.alter_reply(MULTI, with_error(NO_AUTH), carried_out=False)
    acquire_once("k", timeout=20)
    assert fired.is_set()


def test_a_hold_waits_for_the_end_of_another(zoo):
    hold_lock("k", seconds=3.0, **WHY)
    die()
    with pytest.raises(LockBusy, match="operator anna"):
        hold_lock("k", seconds=LONG, **WHY)
    with within(5):
        hold = hold_lock("k", seconds=LONG, wait=30, reason="mine now", by="ben")
    assert zoo.children("k") == [hold.path.rpartition("/")[2]]


def test_an_ephemeral_znode_is_not_an_operator_hold(zoo):
    """Its session deletes it, and no other client does, even if its payload is that of a hold."""
    hold = hold_lock("other", seconds=1.5, **WHY)  # a busy machine may need a while to return it
    data, _ = zoo.client.get(hold.path)
    zoo.wait_contenders("other", 0)
    name = hold.path.rpartition("/")[2][:-10]
    path = zoo.client.create(f"{zoo.base}/k/{name}", data, ephemeral=True, sequence=True, makepath=True)
    time.sleep(1.6)
    assert_refused(zk_lock("k", timeout=0.3), LockTimeout)
    assert zoo.client.exists(path)
    zoo.client.delete(path)


def test_an_operator_hold_can_be_broken(zoo):
    hold = hold_lock("k", seconds=2.0, **WHY)
    broken = break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="enough", by="ben")
    assert broken.holder.about["operator"]
    with zk_lock("k", timeout=0) as mine:
        assert not mine.wait_lost(2.2)


def test_an_interrupted_wait_leaves_no_operator_hold(zoo, monkeypatch):
    class Waiter(ThreadWaiter[Any]):
        def wait(self, timeout):
            zoo.wait_contenders("k", 2)
            raise Struck

    with zk_lock("k"), monkeypatch.context() as patch, pytest.raises(Struck):
        patch.setattr("django_zklock.operations.operator_holds.ThreadWaiter", Waiter)
        hold_lock("k", seconds=LONG, wait=5, **WHY)
    zoo.wait_contenders("k", 0, timeout=2)


def test_one_holder_of_a_semaphore_can_be_broken_alone(zoo):
    with acquired_by_many("k", 4, 3, limit=3, forgiven=(LockLost,)) as holds:
        waiter = zoo.wait_contenders("k", 4)[3]
        with pytest.raises(LockChangedHands):
            break_lock("k", guid=guid_of(waiter), token=zoo.client.exists(f"{zoo.base}/k/{waiter}").czxid, **WHY)
        broke(holds[2])
        assert holds[2].wait_lost(20)
        eventually(lambda: len(holds) == 4)
        assert [hold.lost for hold in holds] == [False, False, True, False]


def test_an_operator_hold_waits_for_all_permits_and_keeps_newcomers_out(zoo):
    holders = [Taker(zk_lock("k", limit=2)) for _ in range(2)]
    for holder in holders:
        holder.wait_granted()
    operator = BackgroundCall(lambda: hold_lock("k", seconds=LONG, wait=20, **WHY))
    zoo.wait_contenders("k", 3)
    holders[0].go()
    assert_refused(zk_lock("k", limit=2, timeout=0), LockBusy)
    assert operator.is_alive()
    newcomer = Taker(zk_lock("k", limit=2, timeout=20))
    zoo.wait_contenders("k", 3)
    holders[1].go()
    hold = operator.result()
    assert len(zoo.children("k")) == 2
    assert not newcomer.granted.is_set()
    end_hold("k", token=hold.token, by="anna")
    newcomer.finish()


@pytest.mark.parametrize("prefix", ["__READ__", "__WRIT__"])
def test_an_operator_hold_keeps_curators_readers_and_writers_out(zoo, prefix):
    for kind, seen_as in ((prefix, "__WRIT__"), ("lock-", "lock-")):
        path = zoo.client.create(
            f"{zoo.base}/k/_c_{uuid.uuid4()}-{kind}", b"10.0.0.7", ephemeral=True, sequence=True, makepath=True
        )
        operator = BackgroundCall(lambda: hold_lock("k", seconds=LONG, wait=20, **WHY))
        name = zoo.wait_contenders("k", 2)[1]
        assert seen_as in name
        zoo.client.delete(path)
        end_hold("k", token=operator.result().token, by="anna")


CALLS = {
    break_lock: {"guid": "x", "token": 1, "reason": "r", "by": "anna"},
    request_release: {"reason": "r", "by": "anna", "guid": "x", "token": 1},
    hold_lock: {"seconds": 1, "reason": "r", "by": "anna", "wait": 0},
    end_hold: {"token": 1, "by": "anna", "reason": ""},
    set_limit: {"limit": 1, "reason": "r", "by": "anna"},
    clear_limit: {"reason": "r", "by": "anna"},
    limit_of: {},
}
WRONG = {
    "by": [None, 3, b"anna"],
    "reason": [None, 3, b"r"],
    "seconds": [None, "3", timedelta(seconds=3), True, 0, -1, float("nan"), float("inf"), 8 * 24 * 3600],
    "wait": [None, "3", timedelta(seconds=3), float("nan"), -1],
    "token": [None, "1", 1.0],
    "guid": [None, 3],
    "limit": [None, "3"],
    "reply_timeout": [None, "3", timedelta(seconds=3), float("nan"), float("inf"), -1],
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_an_invalid_argument_of_an_operation_is_named(zoo, call):
    for name in (*CALLS[call], "reply_timeout"):
        for value in WRONG[name]:
            is_number = type(value) in (int, float) and name not in ("by", "reason", "guid", "token")
            kind = ValueError if name == "limit" or is_number else TypeError
            with pytest.raises(kind, match=f"^{name} is .*, not ") as caught:
                call("k", **{**CALLS[call], name: value})
            assert str(caught.value).endswith(f", not {value!r}.")
    assert zoo.contenders() == []


@pytest.mark.parametrize("call", [call for call in CALLS if "by" in CALLS[call]], ids=lambda call: call.__name__)
def test_operations_need_a_user_and_a_reason(zoo, call):
    for name in ("by",) if call is end_hold else ("by", "reason"):
        for value in ("", " "):
            with pytest.raises(ValueError, match=f"^{name} .*empty"):
                call("k", **{**CALLS[call], name: value})
    assert zoo.contenders() == []
