"""Aborts of threads that another thread disarms, such as the garbage collector; the owner of a lock, and its stack."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from support.faults import BackgroundCall
from support.strike import LineStrike, Struck

import django_zklock
from django_zklock.contrib.celery.beat import DeferSignals
from django_zklock.core.execution.abort import (
    ABORT_SIGNAL,
    CleanupOnError,
    GreenletAbort,
    MainThreadAbort,
    ThreadAbort,
    _Arrival,
    _has_handler,
    _is_shielded,
    _set_async_exception,
    abort_for,
    shielded,
)
from django_zklock.core.execution.inner_tasks import inner_tasks
from django_zklock.core.execution.owner import Owner, current_owner
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.execution.stack import MAX_FRAMES, MAX_TEXT, Stack, frames_of, read
from django_zklock.core.execution.waiters import Awaited, TaskWaiter
from django_zklock.core.zk.loop import quiet_thread, users_thread
from django_zklock.exceptions import LockLostInterrupt


class Work:
    def __init__(self, blocks):
        self.stopped = False
        self.blocks = []
        self._many = blocks
        self._ready = threading.Event()
        self._on = threading.Lock()
        self._on.acquire()
        self._thread = threading.Thread(target=self._run)
        self.owner = Owner("thread", self._thread)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self):
        try:
            for _ in range(self._many):
                self.blocks.append(ThreadAbort())
                self.blocks[-1].arm()
            self._ready.set()
            self._on.acquire()
            for _ in range(1000):
                pass
        except LockLostInterrupt:
            self.stopped = True
        for block in self.blocks:
            block.disarm()

    def end(self):
        if self._on.locked():
            self._on.release()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def work():
    def begin(blocks):
        works.append(Work(blocks))
        return works[-1]

    works = []
    yield begin
    for work in works:
        work.end()


@pytest.mark.parametrize("when", [_is_shielded, _set_async_exception])
def test_a_block_that_is_garbage_during_its_abort_blocks_no_thread(work, when):
    """The collector can run in the thread that requests the abort, in the middle of that."""

    def trace(frame, event, arg):
        if frame.f_code is when.__code__:
            gc.collect()

    def ask():
        gc.disable()
        torn = threading.Event()
        vars(torn)["me"] = torn  # only the collector finds it
        references.append(weakref.ref(torn, lambda _: block.disarm()))
        del torn
        sys.settrace(trace)
        try:
            block.request("lost")
        finally:
            gc.enable()

    references = []
    busy = work(1)
    (block,) = busy.blocks
    BackgroundCall(ask).result(10)
    assert not block.armed
    busy.end()
    assert not busy.stopped  # its block is over


TRACED = """
import faulthandler, sys, threading, time
from django_zklock.core.execution.abort import LockLostInterrupt, ThreadAbort
from django_zklock.core.zk.loop import quiet_thread

faulthandler.dump_traceback_later(30, exit=True)

def trace(frame, event, arg):
    return trace

def request_until_the_end(block):
    while block.armed:
        block.request("lost")
        time.sleep(0.001)

def work(latch):
    for _ in range(20):
        block = ThreadAbort()
        asking = quiet_thread("asking", lambda: ready.acquire() and request_until_the_end(block))
        asking.start()
        try:
            block.arm()
            ready.release()
            latch.acquire()
            while True:
                time.sleep(0.001)
        except LockLostInterrupt:
            aborted.append(block)
        finally:
            block.disarm()
        asking.join()

aborted, ready = [], threading.Semaphore(0)
free = threading.Semaphore(20)  # the thread computes when it is struck
taken = threading.Lock()  # it blocks; meanwhile the other thread, which is traced, must go on
taken.acquire()
"""


@pytest.mark.parametrize("set_tracer", ["settrace", "setprofile"])
def test_an_abort_ends_work_that_is_traced_and_holds_up_no_other_thread(set_tracer):
    """In Python 3.11, a traced thread runs in circles while an exception is under way to any thread."""
    script = f"""{TRACED}
threading.{set_tracer}(trace)
sys.{set_tracer}(trace)
for latch in (free, taken):
    thread = threading.Thread(target=work, args=[latch])
    thread.start()
    while thread.is_alive():
        if taken.locked():
            taken.release()
        time.sleep(0.001)
print(len(aborted))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout, ended.returncode) == ("40\n", 0), ended.stderr


def test_no_tracer_runs_on_threads_of_the_protocol():
    calls = []

    def record(frame, event, argument):
        calls.append(f"{frame.f_code.co_name} on {threading.current_thread().name}")

    threading.settrace(record)
    threading.setprofile(record)
    try:
        threads = [quiet_thread("quiet", current_owner), users_thread("users", current_owner)]
        for thread in threads:
            thread.start()
            thread.join(10)
    finally:
        threading.settrace(None)
        threading.setprofile(None)
    assert "current_owner on users" in calls
    assert "current_owner on quiet" not in calls


def test_a_block_that_ends_does_not_wait_for_ever_for_a_request(monkeypatch):
    """A debugger may have stopped the thread that makes the request."""
    monkeypatch.setattr("django_zklock.core.execution.abort.REQUEST_LOOKS", 10)
    block = ThreadAbort()
    block.arm()
    block.requesting = True
    BackgroundCall(block.disarm).result(10)
    assert not block.armed


def test_no_thread_sees_that_the_collector_is_off(work):
    """A child that is forked meanwhile would never collect."""

    def look():
        while not over.is_set():
            seen.append(gc.isenabled())

    over, seen, interval = threading.Event(), list[bool](), sys.getswitchinterval()
    busy = work(1)
    looking = BackgroundCall(look)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3000):
            read(frames_of(busy.owner.subject.ident), "f_code")
    finally:
        sys.setswitchinterval(interval)
        over.set()
        looking.result(10)
    assert all(seen)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the collector runs between two instructions only")
def test_nothing_is_collected_while_frames_of_others_are_read(work, monkeypatch):
    """In Python 3.11, a finalizer would let other threads go on. If one began or ended just now, the process hung."""

    def recorded(original):
        def read_frames():
            collects.append(gc.isenabled())
            return original()

        return read_frames

    collects = []
    for name in ("_current_frames", "_current_exceptions"):
        monkeypatch.setattr(sys, name, recorded(getattr(sys, name)))
    work(1).blocks[0].request("lost")
    assert collects
    assert not any(collects)
    assert gc.isenabled()


@pytest.mark.parametrize("switch", [gc.enable, gc.disable])
def test_the_collector_is_as_before_after_frames_were_read(switch):
    try:
        switch()
        before = gc.isenabled()
        read(frames_of(threading.get_ident()), "f_code")
        with pytest.raises(AttributeError):
            read(frames_of(threading.get_ident()), "missing")
        assert gc.isenabled() is before
    finally:
        gc.enable()


def test_a_thread_with_the_number_of_one_that_has_ended_is_not_aborted(work):
    """A generator keeps its block open when its thread has ended."""

    def begin():
        blocks.append(ThreadAbort())
        blocks[-1].arm()

    blocks = []
    old = threading.Thread(target=begin)
    old.start()
    old.join()
    new = work(0)
    blocks[0].ident = new.owner.subject.ident  # the number is mostly the same
    blocks[0].request("lost")
    new.end()
    blocks[0].disarm()
    assert not new.stopped
    assert not blocks[0].delivered


@pytest.mark.parametrize(("aborted", "armed"), [(1, 2), (2, 2), (2, 1)])
def test_disarming_one_block_drops_its_abort_and_keeps_that_of_another(work, aborted, armed):
    busy = work(2)
    for block in busy.blocks[:aborted]:
        block.request("lost")
    busy.blocks[1].armed = armed == 2  # False: another thread is disarming it
    busy.blocks[0].disarm()
    busy.end()
    assert busy.stopped is (aborted == armed)


async def test_a_request_after_the_end_of_a_block_strikes_nothing():
    for block in (ThreadAbort(), abort_for(current_owner())):
        block.arm()
        block.disarm()
        block.request("lost")
        await asyncio.sleep(0)  # a cancellation would arrive here
        assert not block.delivered


async def test_a_cancellation_by_other_code_is_not_mistaken_for_the_abort():
    block = abort_for(owner := current_owner())
    block.arm()
    block.request("lost")
    owner.subject.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(0)
    assert not block.is_mine(caught.value)


@pytest.mark.parametrize("change", [{"armed": False}, {"struck": True}], ids=["by another thread", "for an interrupt"])
def test_a_signal_that_arrives_while_the_block_ends_is_dropped(change):
    assert _has_handler()
    block = MainThreadAbort()
    block.arm()
    signal.pthread_sigmask(signal.SIG_BLOCK, {ABORT_SIGNAL})
    with pytest.raises(LockLostInterrupt, match="earlier"):
        try:
            BackgroundCall(lambda: block.request("lost")).result()
            vars(block).update(change)
            raise LockLostInterrupt("earlier")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {ABORT_SIGNAL})  # it arrives here
            block.disarm()


def test_a_child_that_is_forked_during_an_abort_ends_its_block():
    """It has no copy of the thread that asks for the abort, and for which the end of the block waits."""
    block = ThreadAbort()
    block.arm()
    block.requesting = True  # by another thread
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        block.disarm()
        os._exit(0)
    block.requesting = False
    block.disarm()
    assert os.waitpid(child, 0)[1] == 0


def test_a_shielded_function_that_is_struck_at_its_start_is_called():
    """It gets its arguments. This one is all on its first line, so each place in it is its start."""
    calls = []
    function = shielded(lambda a, *b, c, **d: (calls.append((a, b, c, d)), None if calls[1:] else _Arrival())[1])
    assert type(function(1, 2, 3, c=4, d=5)) is LockLostInterrupt
    assert calls == [(1, (2, 3), 4, {"d": 5})] * 2

    def later():
        return _Arrival()  # it would be called for ever

    assert type(shielded(later)()) is LockLostInterrupt
    assert type(eval("_Arrival()")) is LockLostInterrupt  # on the first line of code that is not shielded


def test_a_clean_up_that_is_struck_at_its_start_is_made():
    calls = []
    with pytest.raises(Struck), LineStrike([CleanupOnError._end], 0), CleanupOnError(lambda: calls.append(1)):
        raise ValueError
    assert calls


@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_the_loop_that_a_thread_runs_or_starts_is_found(monkeypatch):
    """Without Python frames, as with uvloop, by `asyncio.run`. A loop that starts is not struck."""

    class Loop(asyncio.SelectorEventLoop):
        def run_until_complete(self, future):
            looks.append(inner_tasks(threading.get_ident()))
            return super().run_until_complete(future)

    async def look():
        looks.append(inner_tasks(threading.get_ident()))
        blocks.append(ThreadAbort())

    looks = []
    blocks = [ThreadAbort()]
    monkeypatch.setattr("asyncio.events.new_event_loop", Loop)
    asyncio.run(asyncio.sleep(0))
    assert isinstance(looks[0][0], Loop)
    with contextlib.closing(Loop()) as loop:
        loop.run_until_complete(look())
    assert looks[-1][0] is loop

    def start():
        looks[0] = inner_tasks(threading.get_ident())
        for block in blocks:
            block.arm()
            block.request("lost")
            block.disarm()
        return asyncio.sleep(0)

    async_to_sync(start)()
    assert looks[0] is not None
    assert [block.delivered for block in blocks] == [False, False]


def test_a_thread_or_a_sub_interpreter_gets_no_handler_and_no_error():
    """In a sub-interpreter, `main_thread()` is a thread without signals."""
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(set_handler, signal.SIGTERM, signal.SIG_DFL).result()
    pytest.importorskip("_testcapi")
    script = f"""
import sys
import _testcapi
_testcapi.run_in_subinterp('''
import asyncio, signal, sys
sys.path[:0] = {sys.path!r}
from django_zklock.contrib.celery.beat import DeferSignals
from django_zklock.core.execution.signals import set_handler
from django_zklock.management.zklock.run import _signals_to
with _signals_to([]):
    deferred = DeferSignals()
    deferred.begin()
    deferred.end()
print(set_handler(signal.SIGTERM, signal.SIG_DFL), flush=True)
''')
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_a_child_that_is_forked_while_signals_are_deferred_ends_by_the_first_one():
    deferred = DeferSignals()
    deferred.begin()
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    deferred.end()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_one_place_sets_handlers():
    """The commands that `zklock run` starts are programs of their own: their texts are no calls here."""
    package = Path(django_zklock.__file__).parent
    calls = {
        path.name
        for path in package.rglob("*.py")
        if "signal.signal(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal"
    }
    assert calls - {"signals.py"} == set()


def test_a_greenlet_is_struck_in_its_block_alone_and_not_twice_at_once():
    greenlet = Mock(gr_frame=None)
    block = GreenletAbort(greenlet, lambda call, reason: call(reason))
    for reason, change in (("too early", block.arm), ("lost", bool), ("at once", block.disarm), ("too late", bool)):
        block.request(reason)
        change()
    (struck,) = greenlet.throw.call_args_list
    assert "lost" in str(struck)


async def test_a_coroutine_may_be_woken_twice_before_it_goes_on():
    waiter = TaskWaiter()

    async def wake(value):
        waiter.set(value)

    assert (await asyncio.gather(Awaited(waiter.outcome(30)), wake(1), wake(2)))[0] == 2


# --- owners and their stacks ------------------------------------------------------------------------------------------


def deep(depth):
    return deep(depth - 1) if depth else str(Stack(current_owner()))


def calls_deep(depth):
    """Call `deep` from a function that differs from it, so that no two lines of the stack are equal."""
    return (
        deep(0)
        if depth == 0
        else eval(compile("call(depth - 1)", f"file {depth}", "eval"), {"call": calls_deep, "depth": depth})
    )


def test_a_stack_has_the_innermost_functions_alone():
    text = calls_deep(MAX_FRAMES)
    assert text.count("  File ") == MAX_FRAMES
    assert "in deep\n" in text


def test_a_stack_has_a_limit_however_long_the_names_are():
    module = {"call": lambda: str(Stack(current_owner()))}
    for number in range(50):
        source = f"def f{number}(): return {'call' if number == 0 else f'f{number - 1}'}()"
        exec(compile(source, "ж" * 400, "exec"), module)
    text = module["f49"]()
    assert len(text) <= MAX_TEXT + 100
    assert "in __init__\n" in text


def test_code_without_line_numbers_has_a_stack():
    code = compile("str(Stack(current_owner()))", "generated", "eval").replace(co_linetable=b"")
    with ThreadPoolExecutor(1) as pool:
        assert 'File "generated", line' in pool.submit(eval, code, globals()).result()


def test_a_message_whose_work_has_not_begun_has_no_stack():
    stack = Stack(Owner("message", None))
    assert str(stack.holder).startswith("a task that has not begun in process ")
    assert not str(stack)


def test_the_name_of_a_holder_is_one_line():
    with ThreadPoolExecutor(1, "a\nb\x1b[2J\ud800") as pool:
        stack = pool.submit(lambda: Stack(current_owner())).result()
    assert str(stack.holder).startswith(r"thread 'a\nb\x1b[2J\ud800_0' in process ")
