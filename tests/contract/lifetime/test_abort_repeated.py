"""An abort goes on until the block is left: after a swallowed interrupt, and if the signal cannot arrive."""

import asyncio
import builtins
import contextlib
import hashlib
import importlib
import signal

import pytest
from support.faults import within
from support.work import compute, in_each_thread, lose, sleep_in_pieces
from support.zoo import ROOM, eventually

from django_zklock import current_hold
from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import ABORT_SIGNAL, ThreadAbort
from django_zklock.exceptions import LockLost, LockLostInterrupt
from django_zklock.locks.lock import Lock

BaseExceptionGroup = getattr(builtins, "BaseExceptionGroup", None)
if BaseExceptionGroup is None:  # before Python 3.11
    BaseExceptionGroup = importlib.import_module("exceptiongroup").BaseExceptionGroup


@in_each_thread
@pytest.mark.parametrize(("work", "times"), [(compute, 3), (sleep_in_pieces, 3), (compute, 1)])
def test_a_swallowed_interrupt_is_repeated(zoo, reports, run, work, times):
    """Or the block ends then, and raises `LockLost`."""
    caught = []

    def block():
        with Lock("swallowed") as hold:
            for _ in range(times):
                try:
                    if not caught:
                        lose(hold)
                    work(20)
                except BaseException as error:
                    caught.append(error)
            if times > 1:
                work(20)

    with within(2), pytest.raises(LockLost):
        run(block)
    assert [type(error) for error in caught] == [LockLostInterrupt] * times
    (report,) = eventually(lambda: list(reports))
    assert report["receipt"].delivered
    assert report["receipt"].swallowed


@in_each_thread
def test_no_repetition_strikes_the_clean_up_of_a_block(zoo, reports, run):
    done = []

    def clean_up():
        sleep_in_pieces(0.4)
        try:
            raise ValueError from KeyError()
        except ValueError:
            sleep_in_pieces(0.4)
        done.append(True)

    def block():
        with Lock("outer") as outer, Lock("inner") as inner:
            try:
                abort.shielded(lambda: [*map(lose, (outer, inner))])()
                compute(20)
            finally:
                clean_up()

    with pytest.raises(LockLost):
        run(block)
    assert done
    assert eventually(lambda: len(reports) == 2)
    for report in reports:
        assert not report["receipt"].swallowed


def lose_inner():
    with Lock("inner") as inner:
        lose(inner)
        compute(20)


async def lose_inner_in_loop():
    async with Lock("inner") as inner:
        lose(inner)
        await asyncio.sleep(20)


@in_each_thread
@pytest.mark.parametrize("work", [lose_inner, lambda: asyncio.run(lose_inner_in_loop())], ids=["block", "loop"])
def test_a_block_inside_the_clean_up_is_aborted_for_its_own_lock(zoo, run, work):
    done = []

    def block():
        with Lock("outer") as outer:
            try:
                lose(outer)
                compute(20)
            finally:
                try:
                    work()
                except BaseException:
                    sleep_in_pieces(0.4)
                    done.append(True)

    with within(2), pytest.raises(LockLost, match="outer"):
        run(block)
    assert done


async def test_a_swallowed_cancellation_is_repeated(zoo, reports):
    """After a second, because the task may be cleaning up. No cancellation is left over."""
    caught = []
    began = 0.0
    task = asyncio.current_task()
    assert task
    with within(3), pytest.raises(LockLost):
        async with Lock("swallowed") as hold:
            lose(hold)
            for _ in range(2):
                try:
                    await asyncio.sleep(20)
                except asyncio.CancelledError as error:
                    caught.append(error)
                    began = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began < 2 + ROOM
    assert len(caught) == 2
    await asyncio.sleep(0.01)
    (report,) = await asyncio.to_thread(eventually, lambda: list(reports))
    assert (report["receipt"].how, report["receipt"].swallowed) == ("task", True)
    assert task.cancelling() == 0


@pytest.mark.parametrize("inside", [True, False], ids=["block in a task", "task in a block"])
def test_the_clean_up_of_a_task_is_not_struck_within_the_pause(zoo, monkeypatch, inside):
    """The pause is a second. It is longer here, because a busy machine may take a second for anything."""
    monkeypatch.setattr(abort, "AGAIN_AFTER", 60.0)
    done = []

    async def work():
        async with Lock("slow") if inside else contextlib.nullcontext():
            lose(current_hold())
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(0.8)
                done.append(True)

    with pytest.raises(LockLost), contextlib.nullcontext() if inside else Lock("slow"):
        try:
            asyncio.run(work())
        finally:
            sleep_in_pieces(0.4)
            done.append(True)
    assert len(done) == 2


@pytest.fixture
def urgent_signals_as_before():
    handler, mask = signal.getsignal(ABORT_SIGNAL), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.signal(ABORT_SIGNAL, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.usefixtures("urgent_signals_as_before")
@pytest.mark.parametrize(
    "silence",
    [
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {ABORT_SIGNAL}),
        lambda: signal.signal(ABORT_SIGNAL, signal.SIG_IGN),
        lambda: signal.signal(ABORT_SIGNAL, lambda number, frame: None),
    ],
    ids=["blocked", "ignored", "another handler"],
)
def test_the_main_thread_is_interrupted_without_the_signal(zoo, reports, silence):
    with within(1.3), pytest.raises(LockLost), Lock("silent") as hold:
        silence()
        lose(hold)
        compute(20)
    sleep_in_pieces(0.3)  # nothing strikes later
    (report,) = eventually(lambda: list(reports))
    assert report["receipt"].how == "thread"
    assert not report["receipt"].swallowed


@in_each_thread
def test_a_call_into_c_is_interrupted_once_after_its_end(zoo, monkeypatch, reports, run):
    monkeypatch.setattr(ThreadAbort, "again_after", 0.02)  # several times during the call
    done = []

    def block():
        with Lock("late") as hold:
            try:
                lose(hold)
                hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 800_000)
                compute(20)
            finally:
                sleep_in_pieces(0.4)
                done.append(True)

    with pytest.raises(LockLost):
        run(block)
    assert done
    (report,) = eventually(lambda: list(reports))
    assert report["receipt"].how == "thread"
    assert not report["receipt"].swallowed


@in_each_thread
@pytest.mark.parametrize("has_it", [True, False])
def test_a_group_becomes_lock_lost_if_it_has_an_interrupt(zoo, run, has_it):
    def block():
        with Lock("grouped") as hold:
            try:
                lose(hold)
                compute(20)
            except BaseException as error:
                inner = BaseExceptionGroup("step", [error if has_it else KeyError("a step")])
                raise BaseExceptionGroup("steps", [ValueError("a step"), inner]) from None

    with within(1.3), pytest.raises(LockLost if has_it else BaseExceptionGroup) as caught:
        run(block)
    group = caught.value.__cause__ if has_it else caught.value
    assert isinstance(group, BaseExceptionGroup)
    assert isinstance(group.exceptions[0], ValueError)
