"""Aborts of threads that are called off from elsewhere, as by the collector of garbage."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from django_zklock.exceptions import LockLostInterrupt
from django_zklock.execution.abort import ThreadAbort, _is_shielded, _set_async_exception


class Work:
    """A thread in blocks of which each can be stopped; it is in one blocking call until it is told to go on."""

    def __init__(self, blocks: int) -> None:
        self.stopped = False
        self.blocks: list[ThreadAbort] = []
        self._many = blocks
        self._ready = threading.Event()
        self._on = threading.Lock()
        self._on.acquire()
        self._thread = threading.Thread(target=self._run)
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
    for each in works:
        each.end()


class Torn:
    """What goes with garbage."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("when", [_is_shielded, _set_async_exception])
def test_a_block_that_is_collected_while_its_abort_is_asked_for_hangs_nobody(
    work: Callable[[int], Work], when: Callable[..., object]
) -> None:
    """The collector runs at any allocation, so also in the thread that asks, in the midst of that."""

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is when.__code__:
            sys.settrace(None)  # Python 3.11 would run in circles once an exception is called off
            gc.collect()

    def ask() -> None:
        gc.disable()
        torn = Torn()
        references.append(weakref.ref(torn, lambda _: block.disarm()))
        del torn
        sys.settrace(trace)
        try:
            block.ask("lost")
        finally:
            gc.enable()

    references: list[Any] = []
    busy = work(1)
    (block,) = busy.blocks
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert not block.armed
    busy.end()
    assert not busy.stopped  # its block is over


def test_the_abort_of_one_block_is_not_called_off_with_that_of_another(work: Callable[[int], Work]) -> None:
    """Both locks go with the session, and one of the blocks has been torn off: the work in the other one is stopped."""
    busy = work(2)
    for block in busy.blocks:
        block.ask("lost")
    busy.blocks[0].disarm()
    busy.end()
    assert busy.stopped


def test_what_was_asked_of_a_block_that_is_over_strikes_nobody(work: Callable[[int], Work]) -> None:
    """Though it was on its way."""
    busy = work(2)
    busy.blocks[0].ask("lost")
    busy.blocks[0].disarm()
    busy.end()
    assert not busy.stopped
