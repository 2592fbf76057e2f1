"""Release requests: the holder learns of them, and no work is aborted."""

import asyncio
import logging
import threading
import uuid

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from support.faults import BackgroundCall, acquired_by_many, connected, cut, queue_up, results
from support.locking import as_json
from support.proxy import SET_DATA
from support.signalled import signalled
from support.texts import assert_shows
from support.work import acquired, seen
from support.zoo import eventually, guid_of

from django_zklock import zk_lock
from django_zklock.core.protocol import contender
from django_zklock.core.queue import nodes, release_request
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Payload
from django_zklock.exceptions import LockChangedHands, LockLost
from django_zklock.locks.hold import held_of
from django_zklock.operations import break_lock, end_hold, hold_lock, request_release

WHO = {"by": "anna"}
WHY = "deploy 42"


@pytest.fixture
def asked():
    with signalled("lock_release_requested") as sent:
        yield sent


def events_of(asked):
    assert all(kwargs["hold"].key == kwargs["lock"] for _, kwargs in asked)
    return [(kwargs["lock"], kwargs["by"], kwargs["reason"]) for _, kwargs in asked]


def request_to(hold):
    """Wait until the holder has seen a request; return who asks and why."""
    request = hold.wait_release_requested(5)
    assert request is not None
    return request.by, request.reason


def test_a_holder_learns_the_operator_and_the_reason_of_a_request(zoo, asked):
    called = threading.Event()
    with zk_lock("k/1") as hold:
        assert hold.release_requested is None
        assert hold.wait_release_requested(0) is None
        hold.add_release_request_callback(lambda hold: called.set())
        outcome = request_release("k/1", WHY, **WHO)
        assert [action.holder.guid for action in outcome] == [guid_of(hold.path)]
        assert request_to(hold) == ("anna", WHY)
        assert called.wait(30)
        eventually(lambda: asked)
        hold.check()
    assert events_of(asked) == [("k/1", "anna", WHY)]


def test_a_request_is_logged_and_not_for_the_next_holder(zoo, caplog):
    with zk_lock("k/1") as hold:
        request_release("k/1", WHY, **WHO)
        assert hold.wait_release_requested(30)
    (logged,) = [record for record in caplog.records if "is asked to release" in record.getMessage()]
    assert {"lock": "k/1", "user": "anna", "reason": WHY}.items() <= vars(logged).items()
    with zk_lock("k/1") as next_hold:
        assert next_hold.release_requested is None


def test_a_request_to_a_new_hold_is_seen_when_it_looks(zoo, asked, monkeypatch):
    """Short holds are spared the watch, and the request waits in the node."""
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 1.0)
    with zk_lock("k") as hold:
        request_release("k", WHY, **WHO)
        assert request_to(hold) == ("anna", WHY)
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 60.0)
    with zk_lock("k") as short:
        request_release("k", WHY, **WHO)
    assert short.release_requested is None
    assert zoo.children("k") == []


def test_a_wait_for_a_release_request_ends_with_the_hold(zoo):
    lock = zk_lock("k")
    hold = acquired(lock)
    waiting = BackgroundCall(hold.wait_release_requested)
    eventually(lambda: held_of(hold).grant._observers)
    lock.release()
    assert waiting.result(30) is None


def test_a_release_is_requested_of_all_holders_or_the_named_one(zoo):
    def wait():
        with zk_lock("k", timeout=20) as hold:
            return hold.release_requested

    with acquired_by_many("k", 2, 2, kind="read") as holds:
        waiter = BackgroundCall(wait)
        zoo.wait_contenders("k", 3)
        outcome = request_release("k", WHY, **WHO, guid=guid_of(holds[0].path))
        assert [action.token for action in outcome] == [holds[0].token]
        assert request_to(holds[0]) == ("anna", WHY)
        assert len(request_release("k", "all", by="ben")) == 2
        assert request_to(holds[1]) == ("ben", "all")
    assert waiter.result() is None


def test_a_release_is_requested_of_holders_only(zoo):
    for more in ({}, {"guid": str(uuid.uuid4())}, {"token": 1}):
        with pytest.raises(LockChangedHands):
            request_release("k", WHY, **WHO, **more)
    with zk_lock("k") as hold:
        for more in ({"guid": str(uuid.uuid4())}, {"token": 1}, {"guid": guid_of(hold.path), "token": 1}):
            with pytest.raises(LockChangedHands):
                request_release("k", WHY, **WHO, **more)
        (payload,) = zoo.payloads("k")
        assert payload.release_request == {}


def test_a_release_request_to_a_client_that_ignores_it_is_refused(zoo):
    """A person's hold is ended by a person; a client of kazoo does not look at its node."""
    hold = hold_lock("k", seconds=60, reason="drain", by="ben")
    with pytest.raises(ValueError, match=r"operator ben until .* end_hold"):
        request_release("k", WHY, **WHO)
    end_hold("k", token=hold.token, by="ben")
    name = f"{zoo.base}/k/{uuid.uuid4().hex}__lock__"
    # The server may have reaped the directory, which was empty for a moment.
    path = zoo.client.create(name, b"x", ephemeral=True, sequence=True, makepath=True)
    with pytest.raises(ValueError, match="kazoo"):
        request_release("k", WHY, **WHO)
    assert zoo.client.get(path)[0] == b"x"
    zoo.client.delete(path)


def test_a_release_request_to_curator_has_curators_form(zoo):
    """Its `makeRevocable` waits for exactly these bytes."""
    with zoo.hold_elsewhere("k") as path:
        request_release("k", WHY, **WHO)
        assert zoo.client.get(path)[0] == b"__REVOKE__"
        version = zoo.client.exists(path).version
        request_release("k", WHY, **WHO)
        assert zoo.client.exists(path).version == version


def test_a_release_request_by_curator_is_understood(zoo, asked):
    """Its `Revoker` writes over all that the node said."""
    with zk_lock("k", fields={}) as hold:
        zoo.client.set(hold.path, b"__REVOKE__")
        assert request_to(hold) == (release_request.BY_CURATOR, "")
        eventually(lambda: asked)
    assert events_of(asked) == [("k", release_request.BY_CURATOR, "")]


def test_a_release_request_during_a_cut_is_seen_after_it(zoo, proxy, asked):
    with zk_lock("k", abort_on="lost") as hold:
        payload = zoo.client.get(hold.path)[0]
        proxy.go_away()
        request = release_request.release_request(by="anna", reason=WHY, at="2026-11-20T12:00:00.000+00:00")
        zoo.client.set(hold.path, release_request.with_request(payload, request))
        proxy.heal()
        assert request_to(hold) == ("anna", WHY)
        connected()
        cut(proxy)
        cut(proxy)
        hold.check()
    eventually(lambda: asked)
    assert events_of(asked) == [("k", "anna", WHY)]


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_request_survives_a_cut(zoo, proxy, when, caplog):
    with zoo.hold_elsewhere("k") as path, caplog.at_level(logging.INFO, "zklock.audit"):
        first = nodes.new_guid(nodes.Mark.OWN)
        data = Payload(guid=first, host="h", pid=7, thread="t", what="w", since="", template="")
        zoo.client.set(path, data.encode())
        fired = getattr(proxy, when)(SET_DATA)
        request_release("k", WHY, **WHO)
        assert fired.is_set()
        assert zoo.client.exists(path).version == 2
    (record,) = [record for record in caplog.records if record.name == "zklock.audit"]
    assert_shows(record.getMessage(), "of 'w', a client of an unknown kind on h", "by anna: deploy 42")


def test_waiters_keep_their_places_when_the_holder_is_asked(zoo):
    """They watch the holder's node, which is written; nobody takes that for its end."""
    with zk_lock("k") as hold:
        waiters, order = queue_up(zoo, "k", 3)
        for number in range(5):
            request_release("k", f"reason {number}", **WHO)
        eventually(lambda: hold.release_requested is not None and hold.release_requested.reason == "reason 4")
        assert order == []
    results(waiters)
    assert order == [0, 1, 2]


def test_a_release_request_is_shown_with_the_payload_of_the_holder(zoo):
    with zk_lock("k", timeout=20) as hold:
        (before,) = zoo.payloads("k")
        request_release("k", "r" * 900, by="b" * 900)
        assert len(zoo.client.get(hold.path)[0]) <= MAX_PAYLOAD
        info = seen("k")
        (holder,) = info.holders
        assert (holder.client, holder.host, holder.what) == ("zklock", before.host, before.what)
        assert holder.release_request is not None
        assert holder.release_request.reason.startswith("rrr")
        (shown,) = as_json("show", "k")["holders"]
        assert shown["release_request"] == {
            "by": holder.release_request.by,
            "reason": holder.release_request.reason,
            "at": holder.release_request.at,
        }
        assert request_to(hold)[1].startswith("rrr")


def test_a_lock_with_a_release_request_can_be_broken(zoo):
    with pytest.raises(LockLost, match="deleted by another session"), zk_lock("k") as hold:
        request_release("k", WHY, **WHO)
        break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="too late", by="anna")
        threading.Event().wait(10)


async def test_release_requests_work_in_coroutines(zoo):
    async with zk_lock("k") as hold:
        with pytest.raises(SynchronousOnlyOperation):
            request_release("k", WHY, **WHO)
        await sync_to_async(request_release)("k", WHY, **WHO)
        while not hold.release_requested:
            await asyncio.sleep(0.01)


def test_nested_blocks_share_a_release_request(zoo):
    with zk_lock("k") as outer, zk_lock("k") as inner:
        request_release("k", WHY, **WHO)
        assert request_to(inner) == request_to(outer) == ("anna", WHY)
