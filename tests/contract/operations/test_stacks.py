"""A holder logs its own stack at each release request, and after `warn_after`: the lines that it works or hangs in."""

import asyncio
import os
import select
import socket
import threading
import time
from functools import partial

import greenlet
import pytest
from support.faults import BackgroundCall, acquired_by_many
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.operations import request_release

SECRET = "a value that nobody may see"


def logged(caplog):
    return [record for record in caplog.records if record.name == "django_zklock.locks" and "holder" in record.msg]


def asked(caplog, reason="why"):
    """Ask the holder for its release; return the record that it logs."""
    request_release("k", reason, by="anna")
    (record,) = eventually(lambda: [record for record in logged(caplog) if record.reason == reason])
    return record


def is_over(near):
    return bool(select.select([near], [], [], 0)[0])


def socket_read(near):
    near.recv(1)  # here


def sleep(near, _secret=SECRET):
    while not is_over(near):
        time.sleep(0.5)  # here


def computation(near):
    any(iter(partial(is_over, near), True))  # here


def hanging(zoo, caplog, call):
    """Return the record of a holder that hangs in this call, and end it."""
    near, far = socket.socketpair()
    with near, far:
        holder = BackgroundCall(lambda: call(near))
        zoo.wait_contenders("k", 1)
        for number in range(100):
            record = asked(caplog, str(number))
            if "# here" in record.stack_info:
                break
        far.send(b"x")
        holder.result(30)
    return record


@pytest.mark.parametrize("work", [socket_read, sleep, computation])
@pytest.mark.parametrize(
    "start", [lambda call, near: call(near), lambda call, near: greenlet.greenlet(call).switch(near)]
)
def test_a_thread_or_greenlet_logs_the_line_that_it_hangs_in(zoo, caplog, work, start):
    def locked(near, _secret=SECRET):
        with zk_lock("k"):
            work(near)

    record = hanging(zoo, caplog, lambda near: start(locked, near))
    assert record.stack_info.startswith("Stack (most recent call last):\n")
    assert f'  File "{__file__}", line ' in record.stack_info
    assert f"in {work.__name__}\n" in record.stack_info
    assert "in locked\n    work(near)\n" in record.stack_info
    assert SECRET not in record.stack_info


def test_the_record_names_lock_token_host_process_and_operator(zoo, caplog):
    with zk_lock("k") as hold:
        record = asked(caplog, "deploy 42")
    assert record.getMessage() == (
        f"the holder of lock 'k' (token {hold.token}) is asked to release by anna: deploy 42; "
        f"it is thread 'MainThread' in process {os.getpid()} on {socket.gethostname()}"
    )
    assert (record.lock, record.token, record.user, record.reason) == ("k", hold.token, "anna", "deploy 42")


async def inner(end):
    await end.wait()  # here


async def awaits(end):
    await inner(end)


async def in_generator(end):
    async for _ in steps(end):
        pass


async def steps(end):
    await inner(end)
    yield 1


@pytest.mark.parametrize(
    ("hang", "innermost"),
    [(awaits, "await end.wait()  # here"), (in_generator, "async for _ in steps(end):")],
)
def test_a_coroutine_logs_what_it_awaits(zoo, caplog, hang, innermost):
    """The step of an asynchronous generator is an object in C. The frames below it cannot be seen."""

    async def locked():
        end = asyncio.Event()
        async with zk_lock("k"):
            asking = asyncio.create_task(asyncio.to_thread(asked, caplog))
            asking.add_done_callback(lambda _done: end.set())
            await hang(end)
        return await asking

    record = asyncio.run(locked())
    assert "; it is task 'Task-" in record.getMessage()
    assert f"in {hang.__name__}\n" in record.stack_info
    assert innermost in record.stack_info
    assert record.stack_info.index("in locked") < record.stack_info.index(f"in {hang.__name__}")


def test_a_task_that_runs_logs_the_functions_that_it_calls(zoo, caplog):
    async def locked(near):
        async with zk_lock("k"):
            sleep(near)

    record = hanging(zoo, caplog, lambda near: asyncio.run(locked(near)))
    assert "; it is task 'Task-" in record.getMessage()
    assert "in locked\n    sleep(near)\n" in record.stack_info


def test_each_holder_of_a_shared_lock_logs_its_own_stack(zoo, caplog):
    with acquired_by_many("k", 2, 2, kind="read") as holds:
        request_release("k", "why", by="anna")
        records = eventually(lambda: len(logged(caplog)) == 2 and logged(caplog))
    assert {record.token for record in records} == {hold.token for hold in holds}
    assert len({record.getMessage().partition("; it is ")[2] for record in records}) == 2
    assert all(record.stack_info for record in records)


def test_a_lock_that_is_asked_twice_logs_twice(zoo, caplog):
    with zk_lock("k"):
        asked(caplog, "first")
        asked(caplog, "second")
    assert [record.reason for record in logged(caplog)] == ["first", "second"]


def test_a_lock_that_lingers_logs_the_stack_of_its_owner(zoo, caplog):
    with zk_lock("k", linger=60):
        assert "in test_a_lock_that_lingers_logs_the_stack_of_its_owner\n" in asked(caplog).stack_info
    assert len(logged(caplog)) == 1


def test_a_lock_that_is_idle_logs_no_stack(zoo, caplog):
    with zk_lock("k", linger=60):
        pass
    request_release("k", "why", by="anna")
    zoo.wait_contenders("k", 0)
    assert not logged(caplog)


def test_an_owner_that_has_ended_is_named_without_a_stack(zoo, caplog):
    """Its number may be that of another thread by now."""
    lock = zk_lock("k")
    ended = threading.Thread(target=lambda: lock.acquire(timeout=5), name="old")
    ended.start()
    ended.join()
    record = asked(caplog)
    assert "; it is thread 'old', which has ended without a release, in process " in record.getMessage()
    assert not record.stack_info
    lock.release()


def test_a_hold_that_lasts_longer_than_warn_after_logs_its_stack_once(zoo, caplog):
    with zk_lock("k", warn_after=0.2) as hold:
        (record,) = eventually(lambda: logged(caplog))
        assert record.getMessage().startswith(f"lock 'k' (token {hold.token}) has been held for 0.")
        assert "longer than warn_after, 0.2 s; its holder is thread 'MainThread' in process " in record.getMessage()
        assert "in test_a_hold_that_lasts_longer_than_warn_after_logs_its_stack_once\n" in record.stack_info
    assert len(logged(caplog)) == 1
