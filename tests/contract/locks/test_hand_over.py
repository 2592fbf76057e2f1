"""A lock that is handed over: its giver releases it to an adopter, here or in another process, and nobody comes in."""

import asyncio
import contextlib
import itertools
import logging
import re
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from kazoo.protocol.serialization import Sync
from support.faults import BackgroundCall, acquire_once, caught_up, die, due, expire, results, session, within
from support.locking import as_json, zklock
from support.primitives import KAZOO, KEY, LINGERING, LOCK, READ, SEMAPHORE, WRITE, Taker, queued, watched
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI, NO_AUTH, SYNC, with_error
from support.strike import LineStrike, Struck
from support.work import acquired, assert_refused, lose, seen
from support.zoo import eventually

from django_zklock import conf, zk_adopt, zk_leader, zk_lock, zk_locks, zk_semaphore
from django_zklock.core.locks import giver
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import nodes
from django_zklock.core.queue.hand_over import LONGEST_TEXT, VERSION, HandOver
from django_zklock.core.queue.nodes import Kind, Mark, new_guid
from django_zklock.core.queue.operator_hold import DIRECTORY, HANDED_OVER, hold_data, is_operator
from django_zklock.core.zk.gateway import Gateway
from django_zklock.exceptions import (
    InvalidHandOver,
    LockBusy,
    LockLost,
    LockLostInterrupt,
    LockNotAcquired,
    LockNotAdopted,
    LockNotHeld,
    LockTimeout,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.locks.hand_over_text import signed, trusted
from django_zklock.operations import break_lock, clear_limit, end_hold, set_limit

pytestmark = pytest.mark.usefixtures("key_directory", "no_rests")

LONG = 300.0
SHORT = 1.5

ADOPT = """
import sys
from django_zklock import zk_adopt
with zk_adopt(sys.argv[1], what="export") as hold:
    print(hold.token, flush=True)
    sys.stdin.readline()
"""


GIVEN = (WRITE, READ, SEMAPHORE)


@pytest.fixture(params=GIVEN, ids=str)
def kind(request):
    """Each kind of lock that can be handed over, besides the plain one of the other tests."""
    return request.param


def give(primitive=LOCK, within=LONG, **options):
    with primitive.lock(**options) as hold:
        return hold.hand_over(within=within)


async def adopt(text):
    async with zk_adopt(text, timeout=20) as hold:
        hold.check()


def decoded(zoo, text):
    return trusted(text, conf.token_keys(), zoo.base)


def test_a_lock_is_handed_over_to_another_process(zoo, kind):
    with kind.lock("b/{x}", fields={"x": 1}, what="request") as hold:
        token, digits = hold.token, hold.path[-10:]
        text = hold.hand_over(within=LONG)
        assert hold.state == "released"
    with zoo.running(ADOPT, text) as adopter:
        adopted_token = int(adopter.stdout.readline())
        (name,) = zoo.children("b/1")
        assert name[-10:] == digits
        child = nodes.parse(name)
        assert child is not None
        assert child.kind.word == kind.kind
        assert zoo.client.exists(f"{zoo.base}/b/1/{name}").ephemeralOwner  # it goes with the adopter
        assert adopted_token > token
        lock = seen("b/1")
        assert [(holder.what, holder.template) for holder in lock.holders] == [("export", "b/{x}")]
        assert_refused(zk_lock("b/1", timeout=0), LockBusy)
        adopter.communicate("\n")
    assert zoo.children("b/1") == []


EXCLUSIVE = [pair for pair in itertools.product(GIVEN, (*GIVEN, LOCK)) if pair != (READ, READ)]
"""The kind that is handed over, and that of its waiters."""


@pytest.mark.parametrize(("kind", "waiting"), EXCLUSIVE, ids=str)
def test_no_waiter_gets_the_lock_before_the_adopter_releases_it(zoo, kind, waiting):
    with queued(zoo, *(kind.lock() for _ in range(kind.room - 1 if kind is SEMAPHORE else 0))) as others:
        for other in others:
            other.wait_granted()
        hold = acquired(kind.lock())
        with queued(zoo, waiting.lock(), waiting.lock()) as waiters:
            text = hold.hand_over(within=LONG)
            eventually(lambda: f"{zoo.base}/{KEY}/{decoded(zoo, text).name}" in watched(zoo))
            assert not any(waiter.granted.is_set() for waiter in waiters)
            adopted = Taker(zk_adopt(text))
            adopted_hold = adopted.wait_granted()
            eventually(lambda: adopted_hold.path in watched(zoo))
            assert not any(waiter.granted.is_set() for waiter in waiters)
            adopted.go()
            for other in others:
                other.go()
            assert waiters[0].wait_granted().token > adopted_hold.token == hold.token


@pytest.mark.parametrize("step", ["hand-over", "adoption"])
def test_a_waiter_that_looks_too_late_is_not_granted_the_lock(zoo, proxy, step):
    """It has listed the queue before the transaction, and reads the one ahead of it after that."""
    hand_over = HandOver(KEY, Kind.LOCK, 0, new_guid(Mark.OPERATOR), "", "", LONG)
    prefix = f"{zoo.base}/{KEY}/{nodes.prefix(new_guid(Mark.OWN))}"
    before = zoo.client.create(prefix, b"", ephemeral=True, sequence=True)
    payload = nodes.Payload(guid="g", host="h", pid=1, thread="t", what="w", since="", template="")
    data = hold_data(payload, by="w", reason="r", seconds=LONG, mark=HANDED_OVER)
    after = f"{zoo.base}/{KEY}/{nodes.prefix(hand_over.guid)}{before[-10:]}"
    if step == "adoption":
        zoo.client.delete(before)
        zoo.client.create(after, data)
        before, after = after, f"{prefix}{before[-10:]}"
    proxy.reset()
    proxy.delay_op(GET_DATA, 60 if step == "hand-over" else 2)
    waiter = Taker(zk_lock(KEY, timeout=20))
    reads = 1 if step == "hand-over" else 2  # a hold is read once more, to see when it ends
    proxy.wait_for(lambda: proxy.counts[GET_DATA] >= reads)
    with zoo.client.transaction() as transaction:
        transaction.set_data(before, b"")
        transaction.delete(before)
        transaction.create(after, data, ephemeral=step == "adoption")
    proxy.heal()
    eventually(lambda: after in watched(zoo))
    assert not waiter.granted.is_set()
    zoo.client.delete(after)
    waiter.finish()


def test_the_requests_of_a_hand_over(zoo, warm_proxy):
    """A transaction, a look at its outcome, and one for those behind. The giver does not wait for the other two."""
    zoo.client.ensure_path(f"{zoo.base}/{DIRECTORY}")
    hold = acquired(zk_lock(KEY))
    warm_proxy.reset()
    text = hold.hand_over(within=LONG)
    warm_proxy.wait_for(lambda: warm_proxy.requests == 5)
    assert (warm_proxy.counts[MULTI], warm_proxy.counts[GET_DATA]) == (2, 1)
    warm_proxy.reset()
    with zk_adopt(text):
        counts = warm_proxy.counts
        assert (counts[MULTI], counts[CREATE2], counts[DELETE]) == (1, 0, 0)
        assert warm_proxy.requests <= 6
    assert zoo.children(KEY) == []


def test_an_adopter_waits_for_nobody_in_its_own_process(zoo):
    """More callers wait here for the lock than have a znode; the adopter passes them all."""
    hold = acquired(zk_lock(KEY))
    waiters = [BackgroundCall(lambda: acquire_once(KEY, timeout=60)) for _ in range(100)]
    eventually(lambda: len(zoo.children(KEY)) > 10)
    text = hold.hand_over(within=LONG)
    with within(5), zk_adopt(text, timeout=0):
        pass
    results(waiters, 60)


async def test_coroutines_hand_over_and_adopt(zoo):
    async with zk_lock(KEY) as hold:
        text = await hold.ahand_over(within=timedelta(weeks=1))
    await asyncio.create_task(adopt(text))
    with pytest.raises(LockNotAdopted):
        await zk_adopt(text).aacquire()


def test_the_block_of_the_giver_goes_on_and_ends_silently(zoo):
    with zk_lock(KEY) as hold:
        text = hold.hand_over(within=LONG)
        assert (hold.state, hold.lease_remaining, zk_lock(KEY).owned()) == ("released", 0.0, False)
        with pytest.raises(LockNotHeld, match="handed over"):
            hold.check()
        with pytest.raises(LockNotHeld, match="handed over"):
            hold.hand_over(within=1)
        with zk_adopt(text) as adopted:
            assert zk_lock(KEY).owned()
            with zk_lock(KEY) as again:
                assert again.token == adopted.token
            text = adopted.hand_over(within=LONG)
        expire(zoo)
        eventually(lambda: hold.lost)
    acquire_once(zk_adopt(text, timeout=20))


def test_an_acquired_hold_needs_no_release(zoo):
    lock = zk_lock(KEY)
    hold = acquired(lock)
    text = hold.hand_over(within=LONG)
    with pytest.raises(LockNotHeld):
        lock.release()
    with pytest.raises(LockNotHeld, match="handed over"):
        hold.release()
    adopter = zk_adopt(text)
    assert adopter.acquire() is not None
    adopter.release()


def test_an_adopted_lock_is_handed_over_again(zoo):
    with zk_semaphore(KEY, 2) as hold:
        text, tokens = hold.hand_over(within=LONG), [hold.token]
    for _ in range(3):
        with zk_adopt(text) as hold:
            tokens.append(hold.token)
            text = hold.hand_over(within=LONG)
    assert tokens == sorted(set(tokens))
    assert decoded(zoo, text).limit == 2


def test_a_lock_that_nobody_adopts_in_time_goes_to_the_next(zoo, kind):
    text = give(kind, SHORT)
    die()
    acquire_once(KEY, timeout=20)
    assert_refused(zk_adopt(text), LockNotAdopted, r"nobody adopted it within 1\.5 s")


def test_an_adoption_after_its_time_is_refused(zoo):
    text = give(within=SHORT)
    die()
    (name,) = zoo.children(KEY)
    created = zoo.client.get(f"{zoo.base}/{KEY}/{name}")[1].ctime / 1000
    eventually(lambda: zoo.client.set(f"{zoo.base}/{KEY}", b"").mtime / 1000 > created + SHORT)
    assert_refused(zk_adopt(text), LockNotAdopted, "nobody adopted it")
    assert zoo.children(KEY) == []


def test_a_lock_is_adopted_once(zoo):
    text = give()
    with zoo.running(ADOPT, text) as adopter:
        assert adopter.stdout.readline()
        why = rf"adopted by 'export' on .*, process {adopter.pid}"
        caught = assert_refused(zk_adopt(text), LockNotAdopted, why)
        assert isinstance(caught, LockNotAcquired)
        with pytest.raises(LockNotAdopted, match=why):
            zk_adopt(text).acquire(timeout=0)
        assert caught.lock == KEY
        adopter.communicate("\n", timeout=30)
    with pytest.raises(LockNotAdopted, match="its adopter has ended"):
        eventually(lambda: zoo.children(KEY) == [])
        zk_adopt(text).acquire()


def test_an_adopter_at_a_late_server_gets_the_lock(zoo, kind, monkeypatch):
    text = give(kind)
    is_behind, read, send = [True], Gateway.read, Gateway._send_all

    def read_late(gateway, path, callback, on_event=None):
        if is_behind[0] and is_operator(path.rpartition("/")[2]):
            return read(gateway, f"{path}-later", callback, on_event)
        return read(gateway, path, callback, on_event)

    def catch_up(gateway, requests, callback):
        is_behind[0] = is_behind[0] and not any(isinstance(request, Sync) for request in requests)
        send(gateway, requests, callback)

    monkeypatch.setattr(Gateway, "read", read_late)
    monkeypatch.setattr(Gateway, "_send_all", catch_up)
    with within(20), zk_adopt(text) as hold:
        hold.check()
        assert not is_behind[0]
    assert zoo.children(KEY) == []


def test_of_many_adopters_one_gets_the_lock(zoo):
    text = give()
    adopted = []
    go = threading.Event()

    def adopt():
        with contextlib.suppress(LockNotAdopted), zk_adopt(text) as hold:
            adopted.append(hold.token)
            go.wait(10)

    calls = [BackgroundCall(adopt) for _ in range(8)]
    eventually(lambda: sum(not call.is_alive() for call in calls) == 7)
    go.set()
    results(calls)
    assert len(adopted) == 1


def test_another_holder_with_the_same_number_is_no_adopter(zoo):
    """The numbers begin again in a new directory."""
    text = give(within=SHORT)
    zoo.wait_contenders(KEY, 0)  # the giver ends a hand-over that nobody wants
    zoo.client.delete(f"{zoo.base}/{KEY}")
    with zk_lock(KEY) as hold, pytest.raises(LockNotAdopted, match="nobody adopted it"):
        assert hold.path[-10:] == decoded(zoo, text).sequence
        BackgroundCall(lambda: zk_adopt(text).acquire()).result()


def test_the_owner_cannot_adopt_what_it_has(zoo):
    text = give(limit=2)
    with zk_semaphore(KEY, 2), pytest.raises(LockBusy, match="its owner has it already"), zk_adopt(text):
        pass
    with zk_adopt(text), pytest.raises(LockBusy), zk_adopt(text):
        pass


def test_a_person_can_end_a_hand_over(zoo):
    text = give(what="export 7")
    lock = seen(KEY)
    held = lock.operator
    assert held is not None
    assert held.handed_over
    assert held.by == "export 7"
    assert_refused(zk_lock(KEY, timeout=0), LockBusy, r"held by export 7 until .*; waiting for its adopter")
    assert_refused(zk_lock(KEY, timeout=1), LockTimeout, "waiting for its adopter")
    end_hold(KEY, token=held.token, by="anna")
    assert_refused(zk_adopt(text), LockNotAdopted, "a person has ended it")


def test_a_limit_that_was_lowered_makes_the_adopter_wait(zoo):
    other = Taker(zk_semaphore(KEY, 2))
    other.wait_granted()
    text = give(limit=2)
    set_limit(KEY, 1, reason="slow", by="anna")
    adopter = Taker(zk_adopt(text, timeout=20))
    zoo.wait_contenders(KEY, 2)
    eventually(lambda: other.hold is not None and other.hold.path in watched(zoo))
    assert not adopter.granted.is_set()
    other.go()
    adopter.finish()
    clear_limit(KEY, reason="fast", by="anna")


def test_the_pages_say_that_a_lock_waits_for_its_adopter(zoo):
    text = give(what="export 7")
    assert "Handed over by export 7, waiting for its adopter until" in zklock("show", KEY)
    assert "handed over by export 7" in zklock("list")
    (holder,) = as_json("show", KEY)["holders"]
    assert holder["operator"]["handed_over"] is True
    with zk_adopt(text, abort_on="never") as adopted:
        (holder,) = as_json("show", KEY)["holders"]
        assert holder["token"] == str(adopted.token)
        break_lock(KEY, guid=holder["guid"], token=adopted.token, reason="stuck", by="anna")
        eventually(lambda: adopted.lost)


@pytest.mark.parametrize(
    ("lock", "why"),
    [(LINGERING.lock, "lingers"), (KAZOO.lock, "compat='kazoo'"), (lambda: zk_leader(KEY), "it is a leader")],
    ids=["lingering", "kazoo", "leader"],
)
def test_some_locks_cannot_be_handed_over(zoo, lock, why):
    with lock() as hold:
        with pytest.raises(ZkLockError, match=f"cannot be handed over: .*{why}"):
            hold.hand_over(within=1)
        hold.check()
    zoo.wait_contenders(KEY, 0)


def test_a_lock_that_is_used_twice_cannot_be_handed_over(zoo):
    with zk_lock(KEY) as outer, zk_lock(KEY) as inner:
        for hold in (outer, inner):
            with pytest.raises(ZkLockError, match="more than once"):
                hold.hand_over(within=1)
        assert outer.state == "held"
    with WRITE.lock() as writer, READ.lock(), pytest.raises(ZkLockError, match="more than once"):
        writer.hand_over(within=1)
    with WRITE.lock() as writer:
        writer.downgrade()
        with pytest.raises(ZkLockError, match="only reads since its downgrade"):
            writer.hand_over(within=1)


def test_a_writer_in_an_interrupted_downgrade_cannot_be_handed_over(zoo, monkeypatch):
    """Readers hold the lock with it then, so its adopter must not be a writer."""

    def downgrade(contender, *, asked=False):
        contender.session.post(contender._downgrade, 0.0)
        raise InterruptedError  # before the kind of the grant is written

    monkeypatch.setattr(Contender, "downgrade", downgrade)
    with WRITE.lock() as writer, queued(zoo, READ.lock()) as (reader,):
        with pytest.raises(InterruptedError):
            writer.downgrade()
        reader.wait_granted()
        with pytest.raises(ZkLockError, match="only reads since its downgrade"):
            writer.hand_over(within=1)


def test_a_loss_next_to_a_lock_that_was_handed_over_is_an_error(zoo):
    with pytest.raises(LockLost, match="'a'"), zk_locks("a", "b") as holds:
        holds["b"].hand_over(within=LONG)
        with contextlib.suppress(LockLostInterrupt):
            zoo.client.delete(holds["a"].path)
            time.sleep(30)


@pytest.mark.parametrize("abort_on", ["suspended", "never"])
def test_a_loss_that_stops_a_hand_over_is_told_as_a_loss(zoo, abort_on):
    def lose_before(held):
        patch.undo()
        lose(hold)
        if abort_on == "never":
            held.release_uses()
        else:
            time.sleep(30)

    with pytest.raises(LockLost), pytest.MonkeyPatch.context() as patch, zk_lock(KEY, abort_on=abort_on) as hold:
        patch.setattr(HeldLock, "release_uses", lose_before)
        hold.hand_over(within=LONG)
    zoo.wait_contenders(KEY, 0)


def test_only_the_owner_hands_over(zoo):
    with zk_lock(KEY) as hold:
        with pytest.raises(LockNotHeld, match="another owner"):
            BackgroundCall(lambda: hold.hand_over(within=1)).result()
        hold.check()


def test_one_of_several_locks_is_handed_over(zoo):
    with zk_locks("a", "b") as holds:
        text = holds["a"].hand_over(within=LONG)
        holds["b"].check()
        assert len(zoo.children("a")) == len(zoo.children("b")) == 1
    assert zoo.children("b") == []
    with zk_adopt(text):
        assert len(zoo.children("a")) == 1


@pytest.mark.parametrize("seconds", [0, -1, None, "5", True, float("nan"), 10**9])
def test_a_wrong_time_is_refused(zoo, seconds):
    with zk_lock(KEY) as hold:
        with pytest.raises(ValueError, match="within is a number of seconds above 0"):
            hold.hand_over(within=seconds)
        hold.check()


TEMPLATE = HandOver(KEY, Kind.LOCK, 0, new_guid(Mark.OPERATOR), "0000000001", KEY, 60.0, token=9)
"""The content of the text that hands over a lock."""
WRONG_FIELDS = {
    "guid": [new_guid(Mark.OWN), "x"],
    "sequence": ["1", 1],
    "limit": [2, "2", True],
    "kind": [Kind.PERMIT],
    "token": [0, "9", 1.5, True, 2**80],
    "seconds": [True, float("nan"), -1, 0, "x"],
    "template": ["k" * 2000, None, "a\nb", "\x1b[2J", "a\x85b"],
    "key": ["../k", "a b", 5, "a\nb", "a\x1b"],
}


def test_a_text_is_part_of_a_url_as_it_is(zoo):
    text = signed(TEMPLATE, conf.token_keys(), zoo.base)
    assert decoded(zoo, text) == TEMPLATE
    assert re.fullmatch(r"[\w.~-]+", text, re.ASCII)


def test_a_wrong_text_is_refused_before_anything_is_sent(zoo, warm_proxy):
    keys = conf.token_keys()
    good = signed(TEMPLATE, keys, zoo.base)
    wrong = [
        "",
        "k",
        good[:-1],
        good + "A",
        good.swapcase(),
        None,
        7,
        good.encode(),
        "zkh1.",
        "\ud800",
        10**7 * "x",
        good.replace("zkh2", "zkh1"),
        TEMPLATE.encode(zoo.base),
        f"{good}\ud800",
        signed(TEMPLATE, keys, "/b"),
        signed(TEMPLATE, conf.Keys(["other" * 10]), zoo.base),
    ]
    changes = [{name: value} for name, values in WRONG_FIELDS.items() for value in values]
    changes.append({"limit": 1.5, "kind": Kind.PERMIT})
    wrong += [signed(replace(TEMPLATE, **change), keys, zoo.base) for change in changes]
    warm_proxy.reset()
    for text in wrong:
        with pytest.raises(InvalidHandOver) as caught:
            zk_adopt(text)
        assert isinstance(caught.value, ValueError)
    assert warm_proxy.requests == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("zkh1.5b3915ebWyJpbnZlbnRvcnki", "of an older release, without a signature"),
        (VERSION.ljust(LONGEST_TEXT, "A"), "damaged"),
    ],
    ids=["older", "longest"],
)
def test_a_wrong_text_is_refused_with_the_reason(zoo, text, why):
    with pytest.raises(InvalidHandOver, match=why):
        zk_adopt(text)


def test_a_text_survives_a_change_of_the_keys(zoo):
    old, new = "o" * 40, "n" * 40
    with zoo.configured(TOKEN_KEYS=[old]):
        text = give()
    with zoo.configured(TOKEN_KEYS=[new, old]), zk_adopt(text) as hold:
        hold.check()


def test_an_adoption_is_audited(zoo, caplog):
    caplog.set_level(logging.INFO, "zklock.audit")
    text = give()
    hold = acquire_once(zk_adopt(text, what="export"))
    eventually(lambda: any(record.name == "zklock.audit" for record in caplog.records))
    record = next(record for record in caplog.records if record.name == "zklock.audit")
    assert record.getMessage() == f"lock {KEY!r} was adopted by export"
    assert vars(record)["token"] == hold.token
    assert vars(record)["lock"] == KEY


def test_the_hold_of_a_person_cannot_be_adopted(zoo):
    guid = new_guid(Mark.OPERATOR)
    payload = nodes.Payload(guid=guid, host="h", pid=1, thread="t", what="w", since="", template="")
    name = f"{nodes.prefix(guid)}0000000007"
    zoo.client.create(f"{zoo.base}/{KEY}/{name}", hold_data(payload, by="anna", reason="deploy", seconds=LONG))
    given = HandOver(KEY, Kind.LOCK, 0, guid, "0000000007", KEY, LONG, token=9)
    text = signed(given, conf.token_keys(), zoo.base)
    assert_refused(zk_adopt(text), LockNotAdopted)
    assert zoo.children(KEY) == [name]


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
@pytest.mark.parametrize("opcode", [MULTI, GET_DATA, GET_CHILDREN])
def test_a_hand_over_survives_a_cut(zoo, proxy, opcode, when):
    acquire_once(zk_adopt(give()))  # so that the next hold is followed by no sweep
    hold = acquired(SEMAPHORE.lock(abort_on="lost"))
    fired = getattr(proxy, when)(opcode)
    text = hold.hand_over(within=LONG)
    assert fired.is_set()
    assert zoo.children(KEY) == [decoded(zoo, text).name]
    adopted = acquire_once(zk_adopt(text))
    assert (adopted.token > hold.token) == (opcode != GET_CHILDREN)  # without a list, others may be behind it


def test_an_adopter_that_may_not_read_who_has_the_lock_is_told(zoo, proxy):
    text = give(within=SHORT)
    zoo.wait_contenders(KEY, 0)  # the giver has ended it
    proxy.alter_reply(GET_DATA, lambda reply: reply)  # the hold is not there
    proxy.alter_reply(GET_DATA, with_error(NO_AUTH), carried_out=False)
    assert_refused(zk_adopt(text, timeout=10), ZooKeeperUnavailable, "refused")


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_giver_without_a_reply_releases(zoo, proxy, monkeypatch, when):
    """It leaves no hold if it was carried out, and creates none if it was not."""
    monkeypatch.setattr(giver, "HAND_OVER_TIMEOUT", 0.5)
    zoo.client.ensure_path(f"{zoo.base}/{DIRECTORY}")  # else the entry in the index of holds may take two
    hold = acquired(zk_lock(KEY, abort_on="lost"))
    proxy.alter_reply(MULTI, lambda reply: reply)  # that of the entry passes
    fired = getattr(proxy, when)(MULTI)
    proxy.refuse = True
    with within(1), pytest.raises(ZooKeeperUnavailable):
        hold.hand_over(within=LONG)
    assert fired.wait(30)
    assert hold.state == "released"
    (name,) = zoo.children(KEY)
    assert is_operator(name) == (when == "kill_after_op")
    changes = zoo.client.exists(f"{zoo.base}/{KEY}").cversion
    proxy.heal()
    zoo.wait_contenders(KEY, 0)
    assert zoo.client.exists(f"{zoo.base}/{KEY}").cversion == changes + 1


async def test_a_giver_that_is_cancelled_leaves_no_hold(zoo, proxy):
    """The hold is there by then. It would last until it is looked at again."""

    async def give_slowly():
        async with zk_lock(KEY) as hold:
            proxy.delay_op(GET_CHILDREN, 60)
            await hold.ahand_over(within=LONG)

    await asyncio.to_thread(lambda: acquire_once(zk_adopt(give())))  # so that the next hold is followed by no sweep
    proxy.reset()
    giver = asyncio.create_task(give_slowly())
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.counts[GET_CHILDREN] == 2)
    giver.cancel()
    await asyncio.wait([giver])
    proxy.heal()
    await asyncio.to_thread(zoo.wait_contenders, KEY, 0)


def test_a_hand_over_that_is_interrupted_releases_the_lock(zoo):
    hold = acquired(zk_lock(KEY))
    with contextlib.suppress(Struck), LineStrike([HeldLock.release_uses], 0):
        hold.hand_over(within=LONG)
    assert hold.state == "released"
    zoo.wait_contenders(KEY, 0)


def test_a_lock_that_is_lost_cannot_be_handed_over(zoo):
    with pytest.raises(LockLost), zk_lock(KEY, abort_on="never") as hold:
        zoo.client.delete(hold.path)
        hold.hand_over(within=LONG)
    assert zoo.children(KEY) == []


def test_a_hand_over_waits_for_a_suspended_connection(zoo, proxy):
    def heal():
        eventually(lambda: session().attached(Registry).deleting)
        proxy.heal()

    with zk_lock(KEY) as hold:
        proxy.go_away()
        eventually(lambda: hold.state == "suspect")
        healing = BackgroundCall(heal)
        text = hold.hand_over(within=LONG)
    healing.result()
    with zk_adopt(text, timeout=30) as adopted:
        assert adopted.token >= hold.token


@pytest.mark.parametrize(("opcode", "searches"), [(GET_DATA, 0), (MULTI, 1)], ids=["looks", "adopts"])
async def test_an_adopter_that_gives_up_leaves_nothing(zoo, proxy, opcode, searches):
    """If its transaction is under way, it searches its znode to delete it, and asks for nothing more."""
    text = await asyncio.to_thread(give)
    proxy.reset()
    proxy.delay_op(opcode, 60)
    adopter = asyncio.create_task(adopt(text))
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.counts[opcode])
    adopter.cancel()
    await asyncio.wait([adopter])
    await asyncio.to_thread(due, 0)
    proxy.heal()
    await asyncio.to_thread(caught_up)
    assert proxy.counts[SYNC] == searches
    with contextlib.suppress(LockNotAdopted):
        await adopt(text)
    await asyncio.to_thread(zoo.wait_contenders, KEY, 0)


@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_hand_over_survives_a_busy_lock(zoo, others, timeout):
    """The adopted lock comes last, whatever its key is."""
    text = give()
    names = [f"zz/{number}" for number in range(others)]
    with zoo.hold_elsewhere(names[-1]):
        assert_refused(zk_locks(zk_adopt(text), *names, timeout=timeout), LockNotAcquired)

    async def adopt():
        with zoo.hold_elsewhere(names[-1]), pytest.raises(LockNotAcquired):
            async with zk_locks(zk_adopt(text), *names, timeout=timeout):
                pass
        async with zk_locks(zk_adopt(text), *names, timeout=LONG) as holds:
            assert holds.keys == (*names, decoded(zoo, text).key)

    asyncio.run(adopt())
