"""The share of a body in its lock ends once and wholly, whatever strikes, and whoever else ends at the same moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from support.strike import first_line, strides, struck
from support.zoo import Zoo, eventually

from django_zklock import signals, zk_lock, zk_locked
from django_zklock.execution import abort
from django_zklock.http import streaming, transfer
from django_zklock.http.transfer import Share
from django_zklock.locks import guard, held, table
from django_zklock.locks.lock import Lock

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.django_db(databases=[]),  # a response that is closed has Django look at the connections there are
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
]


def functions_of_a_body() -> list[Callable[..., object]]:
    """All functions that a body runs through in its reader's thread, and a block does not."""
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
    """A page whose rendering takes its lock again."""

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
    """Whatever line its reader is struck in, nobody keeps the lock, nor is taken for its owner, nor stopped later."""
    functions = functions_of_a_body()
    work("warm/up")
    first, leaks = first_line(stride), []
    end = first
    for at, where, key in struck(functions, work, first, stride):
        end = at + stride
        try:
            zoo.assert_empty()
            assert not table.held_locks._kept
            assert not list(table.held_locks._weak.values())
            assert not table.held_locks._guards
            assert not abort._main_thread_aborts
            with Lock(key, timeout=20):
                pass
        except Exception as error:
            leaks.append((at, where, repr(error)))
            table.held_locks._guards.clear()
            abort._main_thread_aborts.clear()
    assert end > 100
    assert not leaks, leaks


def test_block_and_shares_that_end_at_once_leave_nothing_and_tell_it_once(zoo: Zoo) -> None:
    """Whoever is last lets go of the lock, and if nobody can tell who that was, then somebody does."""
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
            shares = [Share(mutex, taken) for _ in range(3)]
            barrier = threading.Barrier(len(shares) + 1)

            def end(one: Share, barrier: threading.Barrier = barrier, pause: float = chance.random() * 1e-4) -> None:
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


def test_two_that_both_find_themselves_the_last_tell_the_end_once(zoo: Zoo) -> None:
    """Each notes its leaving before it looks at the other, so both may see nobody left."""
    told: list[str] = []

    def released(lock: str, **kwargs: Any) -> None:
        told.append(lock)

    signals.lock_released.connect(released)
    try:
        mutex = zk_lock("both")
        taken = mutex.acquire()
        assert taken
        other = Share(mutex, taken)
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
    """The lock is one owner's in each step; the one who is in it goes on."""
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
        with pytest.raises(RuntimeError, match="Two at a time"):
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
    """The child does not hold its parent's locks, so it sends nothing that they protect."""
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


def test_a_response_without_a_body_to_come_has_no_share(zoo: Zoo) -> None:
    """Everything else is done when the function returns."""
    for result in (None, 7, HttpResponseBase()):

        @zk_locked("plain")
        def work(result: object = result) -> object:
            return result

        assert work() is result
        assert zoo.children("plain") == []
