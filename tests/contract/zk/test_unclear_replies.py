"""After an unreadable or ambiguous reply to a write, the outcome is read from ZooKeeper."""

import asyncio
import struct
from collections.abc import Callable

import pytest
from support.faults import BackgroundCall, acquire_once, connected, due, reconnect, session, within
from support.primitives import KEY
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, HEADER, MULTI, NO_AUTH, NO_NODE, with_error
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import operations, zk_lock
from django_zklock.core import clock
from django_zklock.core.log import flush
from django_zklock.core.protocol import contender
from django_zklock.core.queue import nodes
from django_zklock.core.queue.nodes import Mark, new_guid
from django_zklock.core.zk.lease import BEAT_SHARE
from django_zklock.core.zk.session import UNCLEAR_PAUSE
from django_zklock.exceptions import ZooKeeperUnavailable

pytestmark = pytest.mark.usefixtures("key_directory")

Change = Callable[[bytes], bytes]


def no_text(at):
    """Corrupt the text of a reply that begins so many bytes after the header."""
    return lambda reply: reply[: HEADER + at] + b"\xff" + reply[HEADER + at + 1 :]


def flipped(at):
    """Flip one bit of the path in a reply to a create; `at` counts from its end if it is below 0."""

    def change(reply):
        (length,) = struct.unpack_from(">i", reply, HEADER)
        offset = HEADER + 4 + at % length
        return reply[:offset] + bytes([reply[offset] ^ 1]) + reply[offset + 1 :]

    return change


UNCLEAR = {
    "no whole header": lambda reply: reply[: HEADER - 6],
    "of a request that nobody made": lambda reply: struct.pack(">i", 2**30) + reply[4:],
    "system error": with_error(-1),
    "connection loss": with_error(-4),
    "marshalling error": with_error(-5),
    "timeout": with_error(-7),
    "an unknown error": with_error(-999),
}
UNREADABLE = {"cut short": lambda reply: reply[:-20], "no text": no_text(4)}
FLIPPED = {"a bit of the directory": flipped(1), "a bit of the guid": flipped(-20)}
FLIPPED_NUMBER = {"a bit of the number": flipped(-1)}
FAILED_PARTS = {
    "system error of a part": with_error(0, -1),
    "inconsistency of a part": with_error(0, -2),
    "an unknown error of a part": with_error(0, -999),
}

FEW_UNCLEAR = {name: UNCLEAR[name] for name in ("no whole header", "an unknown error")}

carried_out_or_not = pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "not carried out"])


def changes(*tables):
    merged = {name: change for table in tables for name, change in table.items()}
    return pytest.mark.parametrize("change", merged.values(), ids=merged.keys())


@carried_out_or_not
@changes(UNCLEAR, UNREADABLE)
def test_a_create_with_an_unclear_reply_is_granted(zoo, proxy, change, carried_out):
    fired = proxy.alter_reply(CREATE2, change, carried_out=carried_out)
    with within(2), zk_lock(KEY, timeout=30) as hold:
        assert fired.wait(30)
        hold.check()
        assert [f"{zoo.base}/{KEY}/{name}" for name in zoo.children(KEY)] == [hold.path]
        assert zoo.client.exists(hold.path).czxid == hold.token
    assert zoo.children(KEY) == []


@changes(FLIPPED, FLIPPED_NUMBER)
def test_a_create_whose_reply_names_another_path_is_granted(zoo, proxy, change):
    """The path does not fit the request, or the queue does not show it. The node is found by its guid."""
    test_a_create_with_an_unclear_reply_is_granted(zoo, proxy, change, carried_out=True)


def test_a_znode_of_another_session_is_not_taken_for_its_own(zoo, proxy, monkeypatch):
    """Another client has copied its guid, and its own create has no reply."""
    guid = new_guid(Mark.OWN)
    guids = iter([guid])
    monkeypatch.setattr(nodes, "new_guid", lambda mark: next(guids, None) or new_guid(mark))
    with zoo.hold_elsewhere(KEY, guid=guid):
        proxy.alter_reply(CREATE2, with_error(-4), carried_out=False)
        call = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
        zoo.wait_contenders(KEY, 2)
        assert call.is_alive()
    call.result()


def test_a_caller_whose_znode_never_shows_is_told(zoo, proxy, monkeypatch):
    monkeypatch.setattr(contender, "MAX_CREATES", 1)
    proxy.alter_reply(CREATE2, with_error(-4), carried_out=False)
    assert_refused(zk_lock(KEY, timeout=10), ZooKeeperUnavailable, "after 1 creates. Does another program delete it")
    assert proxy.counts[CREATE2] == 1


def test_a_listing_that_has_not_even_the_directory_is_not_believed(zoo, proxy):
    fired = proxy.alter_reply(GET_CHILDREN, with_error(NO_NODE))
    acquire_once(KEY, timeout=10)
    assert fired.is_set()


@pytest.mark.parametrize("proxy", [4], indirect=True)
@pytest.mark.parametrize(
    ("change", "left"), [(with_error(NO_AUTH), 0), (with_error(0, NO_NODE), 2)], ids=["refused", "without its znode"]
)
def test_a_waiter_that_a_quorum_does_not_confirm_is_not_granted(zoo, proxy, change, left):
    """After a long wait, it is told that its request was refused, or comes last again."""
    with zoo.hold_elsewhere(KEY):
        waiter = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
        before = zoo.wait_contenders(KEY, 2)[1]
        eventually(lambda: 0 < session().lease.until < clock.now())
        proxy.alter_reply(MULTI, change, carried_out=False)
    if zoo.wait_contenders(KEY, left):
        proxy.reset()
        due(session().timeout * BEAT_SHARE)
        assert not proxy.counts[MULTI]  # it only waits again
        zoo.delete(KEY)
        assert not waiter.result().path.endswith(before)
    else:
        with pytest.raises(ZooKeeperUnavailable, match="refused"):
            waiter.result()


@changes(FEW_UNCLEAR, UNREADABLE, FLIPPED)
async def test_the_node_of_a_caller_that_gave_up_is_deleted(zoo, proxy, change, caplog):
    proxy.delay_op(CREATE2, 60)
    fired = proxy.alter_reply(CREATE2, change)

    async def acquire():
        async with zk_lock(KEY):
            raise AssertionError("granted to one who had given up")

    caller = asyncio.create_task(acquire())
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.counts[CREATE2])
    caller.cancel()
    await asyncio.wait([caller])
    proxy.heal()
    proxy.alter_reply(GET_CHILDREN, with_error(NO_AUTH), carried_out=False)  # the search for it is repeated
    assert await asyncio.to_thread(fired.wait, 30)
    eventually(lambda: zoo.children(KEY) == [], 2, "the node of a create that nobody waits for stays")
    assert caller.cancelled()
    assert flush(5)
    assert "deleting the znode None" not in caplog.text
    assert "connecting again: None" not in caplog.text


@carried_out_or_not
@changes(FEW_UNCLEAR)
def test_a_release_with_an_unclear_reply_is_done(zoo, proxy, change, carried_out):
    lock = zk_lock(KEY)
    lock.acquire()
    fired = proxy.alter_reply(DELETE, change, carried_out=carried_out)
    with within(1):
        lock.release()
    assert fired.wait(30)
    eventually(lambda: zoo.children(KEY) == [], 2, "the node of a release with an unclear reply stays")


@carried_out_or_not
@changes(FEW_UNCLEAR, FAILED_PARTS)
def test_a_break_with_an_unclear_reply_is_done(zoo, proxy, change, carried_out):
    with zoo.hold_elsewhere(KEY) as path:
        token = zoo.client.exists(path).czxid
        fired = proxy.alter_reply(MULTI, change, carried_out=carried_out)
        with within(2):
            operations.break_lock(KEY, guid=guid_of(path), token=token, reason="test", by="test")
        assert fired.wait(30)
        assert zoo.client.exists(path) is None


@changes(FAILED_PARTS)
def test_a_heartbeat_with_an_unclear_reply_does_not_extend_the_lease(zoo, proxy, change):
    """The reply says that an operation failed. The next heartbeat, on a new connection, extends the lease."""
    with zk_lock(KEY, abort_on="lost") as hold:
        before = proxy.connected
        fired = proxy.alter_reply(MULTI, change, carried_out=False)
        assert fired.wait(30)
        proxy.wait_for(lambda: proxy.connected > before)
        eventually(lambda: not session().suspect)
        hold.check()


@pytest.mark.parametrize(
    ("opcode", "change"),
    [
        pytest.param(GET_CHILDREN, no_text(8), id="a list with no text"),
        pytest.param(GET_CHILDREN, with_error(-999), id="a list with an unknown error"),
        pytest.param(GET_DATA, UNREADABLE["cut short"], id="a node cut short"),
        pytest.param(GET_DATA, with_error(-1), id="a node with a system error"),
    ],
)
def test_an_unclear_reply_to_a_read_is_an_error_at_once(zoo, proxy, opcode, change):
    """It may come again on each new connection. The caller gets it, its node is deleted, and the connection stays."""
    with zoo.hold_elsewhere(KEY) as other:
        before = proxy.connected
        fired = proxy.alter_reply(opcode, change)
        with within(1), pytest.raises(ZooKeeperUnavailable, match="unclear"), zk_lock(KEY, timeout=5):
            pass
        assert fired.wait(30)
        eventually(lambda: [f"{zoo.base}/{KEY}/{name}" for name in zoo.children(KEY)] == [other], 2)
        assert proxy.connected == before


@pytest.mark.parametrize("change", [no_text(8), with_error(-999)], ids=["no text", "an unknown error"])
def test_an_unclear_list_is_no_free_lock(zoo, proxy, change):
    with zoo.hold_elsewhere(KEY):
        proxy.alter_reply(GET_CHILDREN, change)
        with within(1), pytest.raises(ZooKeeperUnavailable, match="unclear") as caught:
            zk_lock(KEY).locked()
    assert caught.value.lock == KEY


@pytest.mark.parametrize("opcodes", [[CREATE2], [GET_CHILDREN], [GET_DATA], [GET_DATA, GET_DATA]])
@pytest.mark.parametrize("number", [NO_AUTH, -125, -127], ids=["no permission", "quota exceeded", "throttled"])
def test_a_request_that_is_refused_raises_a_public_error(zoo, proxy, opcodes, number):
    with zoo.hold_elsewhere(KEY):
        for passed in opcodes[1:]:  # it reads its own znode before the one ahead
            proxy.alter_reply(passed, lambda reply: reply)
        fired = proxy.alter_reply(opcodes[0], with_error(number), carried_out=False)
        caught = assert_refused(zk_lock(KEY), ZooKeeperUnavailable, f"refused the request.*{number}")
        assert fired.wait(30)
        assert caught.lock == KEY
        eventually(lambda: len(zoo.children(KEY)) == 1, 2)


@pytest.mark.timed
def test_replies_that_stay_unclear_cost_few_connections(zoo, proxy):
    for _ in range(50):
        proxy.alter_reply(CREATE2, with_error(-1), carried_out=False)
    before = proxy.connected
    with within(2.8 + 1), pytest.raises(ZooKeeperUnavailable), zk_lock(KEY, timeout=2.8):
        pass  # it ends at 3.5 s
    assert 2 <= proxy.connected - before <= 6
    attempt = zk_lock(KEY, timeout=0)
    # A caller that gives up between two connections is told.
    eventually(lambda: "its replies are unclear" in str(assert_refused(attempt, ZooKeeperUnavailable)))
    proxy.heal()
    connected()
    eventually(lambda: zoo.children(KEY) == [], 2)  # the last create may have been on its way


def test_a_connection_after_one_with_unclear_replies_is_kept(zoo, proxy):
    """The second such connection is dropped a second after the first, if it has not ended before."""
    for _ in range(2):
        proxy.alter_reply(CREATE2, with_error(-1), carried_out=False)
    call = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
    proxy.wait_for(lambda: proxy.counts[CREATE2] == 2)
    reconnect(proxy)
    kept = proxy.connected
    due(UNCLEAR_PAUSE)
    call.result()
    acquire_once(KEY)
    assert proxy.connected == kept
