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
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from support.faults import BackgroundCall
from support.strike import LineStrike, Struck

import django_zklock
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
from django_zklock.core.execution.owner import Owner, current_owner, threads_are_greenlets
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.execution.stack import CUT, MAX_ANSWER, MAX_FRAMES, NO_WORK, OVER, read_answer, stack_of
from django_zklock.core.execution.waiters import Awaited, TaskWaiter
from django_zklock.exceptions import LockLostInterrupt


class Work:
    def __init__(self, blocks: int) -> None:
        self.stopped = False
        self.blocks: list[ThreadAbort] = []
        self._many = blocks
        self._ready = threading.Event()
        self._on = threading.Lock()
        self._on.acquire()
        self._thread = threading.Thread(target=self._run)
        self.owner = Owner("thread", self._thread)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
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

    def end(self) -> None:
        if self._on.locked():
            self._on.release()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def work() -> Iterator[Callable[[int], Work]]:
    def begin(blocks: int) -> Work:
        works.append(Work(blocks))
        return works[-1]

    works: list[Work] = []
    yield begin
    for work in works:
        work.end()


@pytest.mark.parametrize("when", [_is_shielded, _set_async_exception])
def test_a_block_that_is_garbage_during_its_abort_blocks_no_thread(
    work: Callable[[int], Work], when: Callable[..., object]
) -> None:
    """The collector can run in the thread that requests the abort, in the middle of that."""

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is when.__code__:
            sys.settrace(None)  # Python 3.11 would run in circles once an exception is called off
            gc.collect()

    def ask() -> None:
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

    references: list[Any] = []
    busy = work(1)
    (block,) = busy.blocks
    BackgroundCall(ask).result(10)
    assert not block.armed
    busy.end()
    assert not busy.stopped  # its block is over


@pytest.mark.parametrize("read", [lambda busy: busy.blocks[0].request("lost"), lambda busy: stack_of(busy.owner)])
def test_nothing_is_collected_while_frames_of_others_are_read(
    work: Callable[[int], Work], monkeypatch: pytest.MonkeyPatch, read: Callable[[Work], object]
) -> None:
    """In Python 3.11, a finalizer would let other threads go on. If one began or ended just now, the process hung."""

    def recorded(original: Callable[[], object]) -> Callable[[], object]:
        def read_frames() -> object:
            collects.append(gc.isenabled())
            return original()

        return read_frames

    collects: list[bool] = []
    for name in ("_current_frames", "_current_exceptions"):
        monkeypatch.setattr(sys, name, recorded(getattr(sys, name)))
    read(work(1))
    assert collects
    assert not any(collects)
    assert gc.isenabled()


@pytest.mark.parametrize(("aborted", "armed"), [(1, 2), (2, 2), (2, 1)])
def test_disarming_one_block_drops_its_abort_and_keeps_that_of_another(
    work: Callable[[int], Work], aborted: int, armed: int
) -> None:
    busy = work(2)
    for block in busy.blocks[:aborted]:
        block.request("lost")
    busy.blocks[1].armed = armed == 2  # False: another thread is disarming it
    busy.blocks[0].disarm()
    busy.end()
    assert busy.stopped is (aborted == armed)


async def test_a_request_after_the_end_of_a_block_strikes_nothing() -> None:
    for block in (ThreadAbort(), abort_for(current_owner())):
        block.arm()
        block.disarm()
        block.request("lost")
        await asyncio.sleep(0)  # a cancellation would arrive here
        assert not block.delivered


async def test_a_cancellation_by_other_code_is_not_mistaken_for_the_abort() -> None:
    """Python 3.10 does not count them."""
    block = abort_for(owner := current_owner())
    block.arm()
    block.request("lost")
    owner.subject.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(0)
    assert block.is_mine(caught.value) is (sys.version_info < (3, 11))


@pytest.mark.parametrize("change", [{"armed": False}, {"struck": True}], ids=["by another thread", "for an interrupt"])
def test_a_signal_that_arrives_while_the_block_ends_is_dropped(change: dict[str, bool]) -> None:
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


def test_a_child_that_is_forked_during_an_abort_ends_its_block() -> None:
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


def test_a_shielded_function_that_is_struck_at_its_start_is_called() -> None:
    """It gets its arguments. This one is all on its first line, so each place in it is its start."""
    calls: Any = []
    function: Any = shielded(lambda a, *b, c, **d: (calls.append((a, b, c, d)), None if calls[1:] else _Arrival())[1])
    assert type(function(1, 2, 3, c=4, d=5)) is LockLostInterrupt
    assert calls == [(1, (2, 3), 4, {"d": 5})] * 2

    def later() -> BaseException:
        return _Arrival()  # it would be called for ever

    assert type(shielded(later)()) is LockLostInterrupt
    assert type(eval("_Arrival()")) is LockLostInterrupt  # on the first line of code that is not shielded


def test_a_clean_up_that_is_struck_at_its_start_is_made() -> None:
    calls: list[int] = []
    with pytest.raises(Struck), LineStrike([CleanupOnError._end], 0), CleanupOnError(lambda: calls.append(1)):
        raise ValueError
    assert calls


@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_the_loop_that_a_thread_runs_or_starts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Python frames, as with uvloop, by `asyncio.run`. A loop that starts is not struck."""

    class Loop(asyncio.SelectorEventLoop):
        def run_until_complete(self, future: Any) -> Any:
            looks.append(inner_tasks(sys._getframe()))
            return super().run_until_complete(future)

    async def look() -> None:
        looks.append(inner_tasks(sys._getframe()))
        blocks.append(ThreadAbort())

    looks: list[Any] = []
    blocks = [ThreadAbort()]
    monkeypatch.setattr("asyncio.events.new_event_loop", Loop)
    asyncio.run(asyncio.sleep(0))
    assert isinstance(looks[0][0], Loop)
    with contextlib.closing(Loop()) as loop:
        loop.run_until_complete(look())
    assert looks[-1][0] is loop

    def start() -> Any:
        looks[0] = inner_tasks(sys._getframe())
        for block in blocks:
            block.arm()
            block.request("lost")
            block.disarm()
        return asyncio.sleep(0)

    async_to_sync(start)()
    assert looks[0] is not None
    assert [block.delivered for block in blocks] == [False, False]


def test_a_thread_or_a_sub_interpreter_gets_no_handler_and_no_error() -> None:
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


def test_one_place_sets_handlers() -> None:
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


@pytest.mark.parametrize("patched", [True, False])
def test_the_hub_of_eventlet_aborts_greenlets_if_eventlet_has_patched_threads(
    monkeypatch: pytest.MonkeyPatch, patched: bool
) -> None:
    eventlet = Mock()
    eventlet.patcher.is_monkey_patched.return_value = patched
    monkeypatch.setitem(sys.modules, "eventlet", eventlet)
    abort_for(Owner("greenlet", pytest.importorskip("greenlet").getcurrent())).request("lost")
    assert eventlet.hubs.get_hub().schedule_call_global.called is patched
    assert threads_are_greenlets() is patched


def test_a_greenlet_is_struck_in_its_block_alone_and_not_twice_at_once() -> None:
    greenlet = Mock(gr_frame=None)
    block = GreenletAbort(greenlet, lambda call, reason: call(reason))
    for reason, change in (("too early", block.arm), ("lost", bool), ("at once", block.disarm), ("too late", bool)):
        block.request(reason)
        change()
    (struck,) = greenlet.throw.call_args_list
    assert "lost" in str(struck)


async def test_a_coroutine_may_be_woken_twice_before_it_goes_on() -> None:
    waiter: TaskWaiter[int] = TaskWaiter()

    async def wake(value: int) -> None:
        waiter.set(value)

    assert (await asyncio.gather(Awaited(waiter.outcome(30)), wake(1), wake(2)))[0] == 2


# --- owners and their stacks ------------------------------------------------------------------------------------------


class Compiled(Coroutine[Any, Any, tuple[str, bytes, bytes]]):
    """A coroutine of a compiled module. It returns the kind of its owner, and its stack without and with a frame."""

    cr_await = None

    def send(self, value: Any) -> Any:
        owner = current_owner()
        stack = stack_of(owner)
        self.cr_frame = sys._getframe()
        raise StopIteration((owner.kind, stack, stack_of(owner)))

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...

    def __await__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("unsafe", [False, True], ids=["", "DJANGO_ALLOW_ASYNC_UNSAFE"])
def test_a_task_of_compiled_code_is_an_owner(monkeypatch: pytest.MonkeyPatch, unsafe: bool) -> None:
    pytest.importorskip("greenlet")
    if unsafe:
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        monkeypatch.delitem(sys.modules, "greenlet")
    kind, *stacks = asyncio.run(Compiled())
    assert kind == "task"
    assert [stack.endswith(OVER.encode()) for stack in stacks] == [True, False]


def deep(depth: int) -> bytes:
    return deep(depth - 1) if depth else stack_of(current_owner())


def test_at_most_so_many_frames_are_shown_the_innermost_ones() -> None:
    lines = read_answer(deep(500))
    assert len(lines) == 1 + MAX_FRAMES + 1
    assert all(line.startswith("deep at ") for line in lines[5:-1])
    assert lines[-1] == CUT
    whole = pytest.importorskip("greenlet").greenlet(deep).switch(MAX_FRAMES - 4)  # three are of `stack_of`
    assert whole.count(b"deep at ") == MAX_FRAMES - 3


def test_an_answer_has_a_limit_however_long_the_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    source, name = "def f(depth):\n    return f(depth - 1) if depth else call()\n", "ж" * 400
    module: dict[str, Any] = {"call": lambda: stack_of(current_owner())}
    exec(compile(source, name, "exec"), module)
    with ThreadPoolExecutor(1, "pool") as pool:
        answer, whole = pool.submit(module["f"], 50).result(), pool.submit(module["f"], 5).result()
        monkeypatch.setattr("django_zklock.core.execution.stack.MAX_ANSWER", len(whole))
        assert pool.submit(module["f"], 5).result() == whole
    assert len(answer) <= MAX_ANSWER
    assert answer.endswith(CUT.encode())
    assert all(name in line for line in read_answer(answer)[5:-1])


def test_code_without_line_numbers_is_shown() -> None:
    code = compile("stack_of(current_owner())", "generated", "eval").replace(co_linetable=b"")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(eval, code, globals())
    assert "<module> at generated:0: " in str(call.exception() or call.result())  # pytest fails to show such a frame


def test_a_message_whose_work_has_not_begun_has_no_stack() -> None:
    assert stack_of(Owner("message", None)) == NO_WORK.encode()


def test_the_name_of_an_owner_is_one_line() -> None:
    with ThreadPoolExecutor(1, "a\nb\x1b[2J\ud800") as pool:
        answer = pool.submit(lambda: stack_of(current_owner())).result()
    assert read_answer(answer)[0] == r"thread 'a\nb\x1b[2J\ud800_0'"


def test_any_bytes_are_read_as_a_few_lines_that_print() -> None:
    for data in (b"", b"\xff\xfe\x00", b"\x1b[31m\r\n\xe2\x80\xae", b"\n" * 2**20, b"x" * 2**20, b"<script>"):
        lines = read_answer(data)
        assert len(lines) <= MAX_FRAMES + 2
        assert all(line.isprintable() and len(line) <= 512 for line in lines)
