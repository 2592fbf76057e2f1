"""The first lock of a process starts the session. A signal may strike at any moment of that."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

import pytest
from support.strike import LineStrike, Struck, alarm, functions_of
from support.zoo import Zoo, eventually

from django_zklock.core.execution import waiters
from django_zklock.core.zk import loop, process, session
from django_zklock.locks.lock import Lock

pytestmark = [pytest.mark.zookeeper, pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "zklock-loop"]


def test_a_signal_at_any_line_of_the_first_lock_raises_its_own_exception(zoo: Zoo) -> None:
    functions = functions_of(process, session, loop, threading, waiters)
    at, struck = 0, True
    while struck:
        process.reset()
        strike = LineStrike(functions, at)
        with contextlib.suppress(Struck), strike, Lock(f"first/{at}"):
            pass
        struck, at = bool(strike.where), at + 1
        with Lock(f"second/{at}") as hold:
            hold.check()
        assert eventually(lambda: threads() == ["zklock-loop"]), strike.where
    assert at > 15


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.001, 0.002, 0.004])
def test_a_signal_at_any_time_of_the_first_lock_raises_its_own_exception(zoo: Zoo, delay: float) -> None:
    process.reset()
    with contextlib.suppress(Struck), alarm(delay), Lock("first"):
        pass
    with Lock("second") as hold:
        hold.check()


def test_a_signal_handler_may_take_the_first_lock(zoo: Zoo) -> None:
    """At any line of the first lock of the code that it interrupts."""

    def handler(number: int, frame: Any) -> None:
        with Lock("handler"):
            done.append(number)

    class Ring(LineStrike):
        def _on_line(self, frame: Any, event: str, argument: object) -> Any:
            try:
                return super()._on_line(frame, event, argument)
            except Struck:
                signal.raise_signal(signal.SIGUSR1)
                return None

    done: list[int] = []
    previous = signal.signal(signal.SIGUSR1, handler)
    functions = functions_of(process, waiters)
    try:
        at = 0
        while len(done) == at:
            process.reset()
            with Ring(functions, at), Lock(f"first/{at}"):
                pass
            at += 1
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert at > 15


def test_an_error_of_the_start_is_raised_in_the_caller(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    process.reset()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
        patch.setattr(threading.Thread, "start", fail)
        Lock("first").acquire()
    with Lock("first") as hold:
        hold.check()


def test_many_threads_start_one_session(zoo: Zoo) -> None:
    def work() -> None:
        barrier.wait()
        sessions.append(process.current())

    process.reset()
    barrier = threading.Barrier(20)
    sessions: list[session.Session] = []
    running = [threading.Thread(target=work) for _ in range(20)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(set(map(id, sessions))) == 1
    assert threads() == ["zklock-loop"]
