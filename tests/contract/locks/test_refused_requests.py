"""Whichever request of a lock is refused or lost: the caller learns it or goes on, and nothing stays in the queue."""

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
from support.faults import BackgroundCall, acquire_once, connected
from support.primitives import KAZOO, KEY, LINGERING, LOCK, READ, SEMAPHORE, watched
from support.proxy import CONNECTION_LOSS, CREATE2, NO_AUTH, UPKEEP, Proxy, with_error
from support.zoo import Zoo, eventually, settle

from django_zklock import zk_lock
from django_zklock.exceptions import LockChangedHands, LockLost, LockNotAcquired, ZkLockError, ZooKeeperUnavailable
from django_zklock.operations import end_hold, hold_lock

pytestmark = pytest.mark.usefixtures("key_directory")

Way = Callable[[Zoo, Proxy, Callable[[], bool]], object]
"""Uses locks. What others have to end, they end at the latest when the condition is true."""


def cold(zoo, proxy, struck):
    """In a directory that does not exist yet."""
    acquire_once(zk_lock(f"cold/{zoo.client.create(f'{zoo.chroot}/n', sequence=True)[-10:]}", timeout=10))


def wait(primitive, zoo, proxy, struck):
    """Behind others, which leave then."""
    with primitive.full(zoo) as blockers:
        call = BackgroundCall(partial(acquire_once, primitive.lock(timeout=10)))
        eventually(lambda: struck() or not call.is_alive() or watched(zoo) >= set(blockers))
    call.result()


def give_up(primitive, timeout, zoo, proxy, struck):
    """While others hold it."""
    with primitive.full(zoo), pytest.raises((LockNotAcquired, ZooKeeperUnavailable)):
        acquire_once(primitive.lock(timeout=timeout))


def search(zoo, proxy, struck):
    """Its znode, as the reply to the create was unclear."""
    proxy.alter_reply(CREATE2, with_error(CONNECTION_LOSS))
    acquire_once(zk_lock(KEY, timeout=10))


def meet_an_operator(zoo, proxy, struck):
    """First without a wait, then with one that the operator ends."""
    hold = hold_lock(KEY, seconds=2, reason="test", by="test", wait=10, reply_timeout=10)
    try:
        with contextlib.suppress(LockNotAcquired):
            acquire_once(zk_lock(KEY, timeout=0))
        call = BackgroundCall(partial(acquire_once, zk_lock(KEY, timeout=10)))
        eventually(lambda: struck() or not call.is_alive() or len(zoo.children(KEY)) == 2)
    finally:
        with contextlib.suppress(LockChangedHands):  # it has ended by itself
            end_hold(KEY, token=hold.token, by="test", reply_timeout=10)
    call.result()


WAYS = {
    "cold": cold,
    "searches": search,
    "meets an operator": meet_an_operator,
    **{f"{kind} waits": partial(wait, kind) for kind in (LOCK, READ, SEMAPHORE, KAZOO, LINGERING)},
    **{f"{kind} does not wait": partial(give_up, kind, 0) for kind in (LOCK, SEMAPHORE)},
    "lock times out": partial(give_up, LOCK, 0.3),
}


STRIKES = ("refused", "kill_before_op", "kill_after_op")
CASES = [
    pytest.param(way, strike, id=f"{name}-{strike}")
    for name, way in WAYS.items()
    # The search is cut off in `test_lost_replies`, and takes a second each time.
    for strike in (STRIKES if way is not search else STRIKES[:1])
]


@pytest.mark.parametrize(("way", "strike"), CASES)
def test_each_request_in_turn(zoo, proxy, way, strike):
    """It is refused once, or the connection is cut before or after it. The next way is free then."""
    proxy.reset()
    way(zoo, proxy, lambda: False)
    settle()
    frames = [frame for frame in proxy.frames if frame.request]
    requests = [frame.opcode for frame in frames if frame.opcode is not None and frame.opcode not in UPKEEP]
    struck = set()
    for number, opcode in enumerate(requests):
        for _ in range(requests[:number].count(opcode)):
            proxy.alter_reply(opcode, lambda reply: reply)
        if strike == "refused":
            fired = proxy.alter_reply(opcode, with_error(NO_AUTH), carried_out=False)
        else:
            fired = getattr(proxy, strike)(opcode)
        # A cut itself is survived. Work that it finds under a lock is aborted.
        with contextlib.suppress(ZkLockError if strike == "refused" else LockLost):
            way(zoo, proxy, fired.is_set)
        settle()
        struck |= {opcode} if fired.is_set() else set()
        proxy.heal()
        connected()
        acquire_once(zk_lock(KEY, timeout=20))
        eventually(lambda: zoo.children(KEY) == [])
    assert len(struck) > len(set(requests)) / 2, "other requests than in the first run"
