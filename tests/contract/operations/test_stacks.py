"""The stacks of holders: the function and line that each runs, read while it works or hangs."""

import asyncio
import logging
import select
import socket
import threading
import time
from dataclasses import replace
from functools import partial

import greenlet
import pytest
from support.faults import BackgroundCall, acquired_by_many, proxied, within
from support.primitives import watched
from support.proxy import GET_CHILDREN
from support.work import seen
from support.zoo import ROOM, eventually, next_line

from django_zklock import zk_lock
from django_zklock.core.execution import stack
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk import process
from django_zklock.exceptions import LockChangedHands
from django_zklock.operations import hold_lock, request_release, show_stacks
from django_zklock.operations.stacks import FOREIGN, NO_ANSWER

SECRET = "a value that nobody may see"


def shown(key="k"):
    (lines,) = show_stacks(key, by="anna").values()
    return lines


def answers(zoo):
    return zoo.names(f"{zoo.base}/{stack.DIRECTORY}")


def is_over(near):
    return bool(select.select([near], [], [], 0)[0])


def socket_read(near):
    near.recv(1)  # here


def sleep(near, _secret=SECRET):
    while not is_over(near):
        time.sleep(0.5)  # here


def computation(near):
    any(iter(partial(is_over, near), True))  # here


def hanging(zoo, call):
    """Return the lines of a call that hangs under the lock, and end it."""
    near, far = socket.socketpair()
    with near, far:
        holder = BackgroundCall(lambda: call(near))
        zoo.wait_contenders("k", 1)
        eventually(lambda: any(line.endswith("# here") for line in shown()))
        with within(2):
            lines = shown()
        far.send(b"x")
        holder.result(30)
    return lines


@pytest.mark.parametrize("work", [socket_read, sleep, computation])
@pytest.mark.parametrize(
    "start", [lambda call, near: call(near), lambda call, near: greenlet.greenlet(call).switch(near)]
)
def test_a_thread_or_greenlet_shows_the_line_that_it_hangs_in(zoo, work, start):
    def locked(near, _secret=SECRET):
        with zk_lock("k"):
            work(near)

    lines = hanging(zoo, lambda near: start(locked, near))
    places = [line for line in lines if line.endswith("# here")]
    assert len(places) == 1
    assert places[0].startswith(f"{work.__name__} at {__file__}:")
    assert any(line.startswith("locked at ") and line.endswith(": work(near)") for line in lines)
    assert SECRET not in "".join(lines)
    eventually(lambda: answers(zoo) == [])


async def inner(end):
    await end.wait()  # here


async def steps(end):
    await inner(end)
    yield 1


async def loop_over(end):
    async for _ in steps(end):
        pass


@pytest.mark.parametrize(
    ("hang", "between"),
    [(inner, []), (loop_over, ["steps", "loop_over"]), (lambda end: asyncio.create_task(inner(end)), [])],
    ids=["coroutine", "generator", "task"],
)
def test_a_coroutine_shows_what_it_awaits(zoo, hang, between):
    async def locked():
        end = asyncio.Event()
        async with zk_lock("k"):
            asking = asyncio.create_task(asyncio.to_thread(shown))
            asking.add_done_callback(lambda _done: end.set())
            await hang(end)
        return await asking

    lines = asyncio.run(locked())
    names = [line.partition(" at ")[0] for line in lines]
    here = names.index("inner")
    assert lines[here].endswith(": await end.wait()  # here")
    assert names[here + 1 : -1] == between
    assert names[-1].endswith("locked")
    assert lines[0].startswith("task 'Task-")


def test_a_task_that_runs_shows_the_functions_that_it_calls(zoo):
    async def locked(near):
        async with zk_lock("k"):
            sleep(near)

    lines = hanging(zoo, lambda near: asyncio.run(locked(near)))
    assert lines[0].startswith("task ")
    assert lines[-1].endswith(": sleep(near)")


def test_each_holder_of_a_shared_lock_answers(zoo):
    with acquired_by_many("k", 2, 2, kind="read") as holds:
        stacks = show_stacks("k", by="anna")
        assert {holder.token for holder in stacks} == {hold.token for hold in holds}
        assert all(len(lines) > 1 for lines in stacks.values())
    with pytest.raises(LockChangedHands, match="has no holder"):
        show_stacks("k", by="anna")


def test_a_lock_that_lingers_shows_its_owner(zoo):
    with zk_lock("k", linger=60):
        assert any("test_a_lock_that_lingers_shows_its_owner at " in line for line in shown())
    assert shown() == ["No work runs under the lock."]
    process.reset()


def test_a_later_event_of_the_holder_asks_for_nothing(zoo):
    with proxied(zoo, 20) as proxy, zk_lock("k") as hold:
        shown()
        proxy.reset()
        request_release("k", "deploy", by="anna")
        eventually(lambda: hold.release_requested)
        assert proxy.counts[GET_CHILDREN] <= 1, "the request reads the queue"


def test_an_owner_that_has_ended_is_named(zoo):
    """Its number may be that of another thread by now."""
    lock = zk_lock("k")
    ended = threading.Thread(target=lambda: lock.acquire(timeout=5), name="old")
    ended.start()
    ended.join()
    assert shown() == ["thread 'old'", stack.OVER]
    lock.release()


def test_many_operators_may_ask_at_the_same_time(zoo, caplog):
    with caplog.at_level(logging.WARNING, "zklock.audit"), zk_lock("k") as hold:
        asking = [BackgroundCall(shown) for _ in range(8)]
        assert all(len(call.result(30)) > 1 for call in asking)
        eventually(lambda: answers(zoo) == [])
        hold.check()
    asked = [record.getMessage().partition("; ")[0] for record in caplog.records if record.name == "zklock.audit"]
    assert asked == ["the stack of the holder of lock 'k' was asked for by anna"] * 8


def test_a_request_is_no_sign_of_life_of_a_leader(zoo):
    """A leader that hangs would count as alive for a while; its next write counts again."""
    with zk_lock("k") as hold:
        eventually(lambda: b"waited" in zoo.client.get(hold.path)[0])  # its own last write
        payload = Payload.decode(zoo.client.get(hold.path)[0])
        assert payload is not None
        zoo.client.set(hold.path, replace(payload, lasts="leader", renewed_within=5000).encode())

        def due():
            lock = seen("k")
            assert lock.holders[0].renewal_due is not None
            return lock.holders[0].renewal_due.timestamp()

        before = due()
        time.sleep(1.1)
        shown()
        shown()
        assert before - 1 <= due() <= before
        data, stat = zoo.client.get(hold.path)
        zoo.client.set(hold.path, data, stat.version)
        assert due() > before + 1


def test_without_stacks_the_holder_shows_none(zoo):
    with zoo.configured(STACKS=False), zk_lock("k"):
        assert shown() == ["STACKS is False in its settings."]


def test_an_operator_hold_has_no_stack(zoo):
    hold_lock("k", seconds=60, reason="drain", by="ben")
    assert shown() == [FOREIGN]
    zoo.delete("k")


def test_a_process_whose_interpreter_is_busy_is_named_after_two_seconds(zoo):
    """A call into C keeps the interpreter from all threads. The znode for the answer goes away."""
    script = "import ctypes\nwith zk_lock('k'):\n    print('held', flush=True)\n    ctypes.PyDLL(None).sleep(300)"
    with zoo.running(script) as busy:
        assert next_line(busy) == "held"
        eventually(lambda: shown() == [NO_ANSWER])
        began = time.monotonic()
        assert shown() == [NO_ANSWER]
        assert 1.9 < time.monotonic() - began < 4 + ROOM
        eventually(lambda: answers(zoo) == [])
    zoo.wait_contenders("k", 0)


def test_an_answer_goes_away_after_a_loss_of_the_connection(zoo, proxy):
    with zoo.running("import os, signal\nwith zk_lock('k'):\n    os.kill(os.getpid(), signal.SIGSTOP)"):
        zoo.wait_contenders("k", 1)
        asking = BackgroundCall(shown)
        eventually(lambda: answers(zoo) and any(stack.DIRECTORY in path for path in watched(zoo)))
        proxy.hang = True
        assert asking.result(30) == [NO_ANSWER]
        proxy.heal()
        proxy.cut_all()
        eventually(lambda: answers(zoo) == [], timeout=4)
    zoo.wait_contenders("k", 0)
