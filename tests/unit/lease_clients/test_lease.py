"""Until when a client believes in its lease."""

import asyncio
import logging
import math

import pytest

from zklock_client import Lease, LockLost, LockTimeout
from zklock_client.connection import Connection, Keeper, Tls
from zklock_client.lease import now
from zklock_client.v1 import lock_coordinator_pb2 as pb


@pytest.fixture
async def keeper():
    connection = Connection("127.0.0.1:1", Tls(None, None, None), ())

    async def connect(address):
        return connection

    keeper = Keeper(connection, connect)
    yield keeper
    for lease in list(keeper.leases.values()):
        lease.end()
    await connection.channel.close()


def granted(duration):
    return pb.RecordLockResponse(acquired=True, lease_id="1", fencing_token=7, lease_duration_ms=round(duration * 1000))


def held(duration, sent):
    return pb.LeaseState(
        state=pb.LeaseState.STATE_HELD, lease_duration_ms=round(duration * 1000), sent_at=math.floor(sent * 1000)
    )


async def test_a_slow_reply_makes_no_lease_look_longer(keeper):
    """The duration counts from the moment before the request was sent. Its last tenth is left to stop the work."""
    lease, sent = Lease("a"), now() - 5
    await lease.begin(keeper, granted(100), sent)
    assert 75 < lease.remaining <= 85
    lease.update(held(100, sent + 4))
    assert 79 < lease.remaining <= 89


async def test_an_unrequested_reply_extends_no_lease(keeper):
    """It repeats when the latest request was sent; and a late answer takes nothing away."""
    lease, sent = Lease("a"), now() - 5
    await lease.begin(keeper, granted(100), sent)
    lease.update(held(99, sent))
    lease.update(held(100, 0))
    assert 75 < lease.remaining <= 85


async def test_after_a_wait_the_first_answer_tells_the_end(keeper):
    """The request was sent long before the grant, and the reply says nothing about when the grant was."""
    lease = Lease("a")
    beginning = asyncio.ensure_future(lease.begin(keeper, granted(100), now() - 1000))
    while not keeper.leases:
        await asyncio.sleep(0)
    assert not beginning.done()
    lease.update(held(100, now() - 30))
    await beginning
    assert 50 < lease.remaining <= 60


async def test_an_expired_lease_of_a_client_stays_lost(keeper):
    lease = Lease("a")
    await lease.begin(keeper, granted(100), now())
    lease._until = now() - 1
    with pytest.raises(LockLost, match=r"'a' was lost: its lease is over"):
        lease.check()
    lease.update(held(100, now()))
    assert (lease.lost, lease.valid) == (True, False)


async def test_a_lease_has_one_pending_request_on_a_slow_stream(keeper):
    """However often it was to be kept in the meantime: more requests would make a slow coordinator slower."""
    lease = Lease("a")
    await lease.begin(keeper, granted(100), now())
    for _ in range(9):
        keeper.keep(lease)
        await asyncio.sleep(0)
    pending = [keeper._queue.get_nowait() for _ in range(keeper._queue.qsize())]  # and the end of a refused stream
    assert pending.count(lease) <= 1


async def test_texts_of_a_coordinator_are_short_and_printable(keeper, caplog):
    lease, hostile = Lease("a"), "\x1b[2Jgone\n\x00" + "x" * 100_000
    await lease.begin(keeper, granted(20), now())
    lease.update(pb.LeaseState(state=pb.LeaseState.STATE_HELD, release_requested=True, detail=hostile))
    with caplog.at_level(logging.WARNING, "zklock_client"):
        lease.update(pb.LeaseState(state=pb.LeaseState.STATE_OVER, detail=hostile))
    for text in (lease.release_requested, lease.lost_reason, caplog.messages[0], str(LockTimeout(hostile))):
        assert text.isprintable()
        assert "gone" in text
        assert len(text) < 1100
