"""A transferred hold ends completely and once: after an exception at any line, and with concurrent calls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from support.strike import strides, sweep
from support.zoo import Zoo, eventually

from django_zklock import signals, zk_lock, zk_locked
from django_zklock.execution import abort
from django_zklock.http import streaming, transfer
from django_zklock.http.transfer import TransferredHold
from django_zklock.locks import guard, held, table
from django_zklock.locks.lock import Lock

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.django_db(databases=[]),  # a response that is closed has Django look at the connections there are
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # Python drops what strikes `__del__`
]


def functions_of_a_body() -> list[Callable[..., object]]:
    """Return the functions that run in the reader's thread for a body, but not for a block."""
    found: list[Callable[..., object]] = [
        held.HeldLock.release_to,
        guard.Guard.watch,
        guard.Guard.begin_step,
        guard.Guard.end_step,
        guard.Guard.disarm,
        table.HeldLocks.open_block,
        table.HeldLocks.close_block,
        table.HeldLocks.add,
        table.HeldLocks.remove,
        held.HeldLock.__init__,
    ]
    for module in (streaming, transfer):
        for thing in vars(module).values():
            if getattr(thing, "__module__", "") != module.__name__:
                continue
            members = vars(thing).values() if isinstance(thing, type) else [thing]
            functions = [getattr(member, "fget", member) for member in members]
            found += [function for function in functions if hasattr(function, "__code__")]
    return found


class Page(SimpleTemplateResponse):
    """A page that acquires its lock again while it is rendered."""

    key = ""

    @property
    def rendered_content(self) -> str:
        with Lock(self.key, timeout=0):
            return "page"


def parts() -> Iterator[bytes]:
    yield b"first"
    yield b"second"


def read(key: str) -> None:
    @zk_locked(key)
    def view() -> Any:
        return StreamingHttpResponse(parts())

    assert list(view()) == [b"first", b"second"]


def close(key: str) -> None:
    @zk_locked(key)
    def view() -> Any:
        return StreamingHttpResponse(parts())

    response = view()
    next(iter(response))
    response.close()


def render(key: str) -> None:
    @zk_locked(key)
    def view() -> Any:
        page = Page("none")
        page.key = key
        return page

    assert view().render().content == b"page"


@pytest.mark.timeout(240)  # hundreds of lines, each struck once in a traced interpreter
@strides
@pytest.mark.parametrize("work", [read, close, render])
def test_an_exception_at_any_line_of_a_body_leaves_nothing(zoo: Zoo, work: Callable[[str], None], stride: int) -> None:
    """No hold, owner or abort is left, whichever line the exception interrupts."""

    def check(key: str) -> None:
        zoo.assert_empty()
        assert not table.held_locks._kept
        assert not list(table.held_locks._weak.values())
        assert not table.held_locks._guards
        assert not abort._main_thread_aborts
        with Lock(key, timeout=20):
            pass

    def clean() -> None:
        table.held_locks._guards.clear()
        abort._main_thread_aborts.clear()

    sweep(functions_of_a_body(), work, check, stride, clean=clean, least=100)


def test_a_block_and_bodies_that_end_at_the_same_time_release_once(zoo: Zoo) -> None:
    """The last of them releases the lock, and `lock_released` is sent once."""
    told: list[str] = []

    def released(lock: str, **kwargs: Any) -> None:
        told.append(lock)

    chance = random.Random(5)
    signals.lock_released.connect(released)
    try:
        for turn in range(150):
            mutex = zk_lock(f"turn/{turn}")
            taken = mutex.acquire()
            assert taken
            shares = [TransferredHold(mutex, taken) for _ in range(3)]
            barrier = threading.Barrier(len(shares) + 1)

            def end(
                one: TransferredHold, barrier: threading.Barrier = barrier, pause: float = chance.random() * 1e-4
            ) -> None:
                barrier.wait()
                threading.Event().wait(pause)
                one.end()
                one.end()

            threads = [threading.Thread(target=end, args=(one,)) for one in shares]
            for thread in threads:
                thread.start()
            barrier.wait()
            mutex.release()
            for thread in threads:
                thread.join()
        zoo.assert_empty()
        with zk_lock("last"):
            pass
        eventually(lambda: "last" in told)
    finally:
        signals.lock_released.disconnect(released)
    assert sorted(told) == sorted([*(f"turn/{turn}" for turn in range(150)), "last"])


def test_two_holds_that_both_seem_the_last_signal_the_end_once(zoo: Zoo) -> None:
    """Each removes its claim before it looks at the others, so both may see none left."""
    told: list[str] = []

    def released(lock: str, **kwargs: Any) -> None:
        told.append(lock)

    signals.lock_released.connect(released)
    try:
        mutex = zk_lock("both")
        taken = mutex.acquire()
        assert taken
        other = TransferredHold(mutex, taken)
        taken._grant.parts.clear()  # as both have left it
        mutex.release()
        other.end()
        with zk_lock("last"):
            pass
        eventually(lambda: "last" in told)
    finally:
        signals.lock_released.disconnect(released)
    assert told == ["both", "last"]


def test_two_readers_of_one_body_are_refused(zoo: Zoo) -> None:
    """One owner has the lock during a step, and continues."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __iter__(self) -> Slow:
            return self

        def __next__(self) -> bytes:
            inside.set()
            go_on.wait(10)
            return b"part"

    @zk_locked("two")
    def view() -> Any:
        return StreamingHttpResponse(Slow())

    response: Any = view()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(next(iter(response))))
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(RuntimeError, match="iterated twice"):
            next(iter(response))
        assert len(zoo.children("two")) == 1
    finally:
        go_on.set()
        thread.join()
    assert got == [b"part"]
    assert next(iter(response)) == b"part"
    response.close()
    zoo.wait_contenders("two", 0)


def test_a_body_that_is_read_in_a_fork_has_no_lock_there(zoo: Zoo) -> None:
    """The child does not hold the locks of its parent, so it sends nothing that they protect."""
    script = """
import os
from django.http import StreamingHttpResponse
from django_zklock.exceptions import LockLost

@zk_locked("forked")
def view():
    return StreamingHttpResponse(iter([b"a", b"b"]))

response = view()
body = iter(response)
print(next(body))
if os.fork() == 0:
    try:
        next(body)
    except LockLost as error:
        print("refused", flush=True)
    response.close()
    os._exit(0)
os.wait()
print(next(body), list(body))
"""
    with zoo.spawn(script) as process:
        output, errors = process.communicate(timeout=30)
    assert output.split("\n") == ["b'a'", "refused", "b'b' []", ""], errors


def test_a_result_that_is_complete_keeps_no_lock(zoo: Zoo) -> None:
    """Other results need no lock after the function has returned."""
    for result in (None, 7, HttpResponseBase()):

        @zk_locked("plain")
        def work(result: object = result) -> object:
            return result

        assert work() is result
        assert zoo.children("plain") == []
