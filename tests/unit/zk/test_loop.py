"""The loop runs one event at a time and in order, whichever thread it comes from."""

import queue
import threading
from typing import Any

import pytest

from django_zklock.core.log import flush
from django_zklock.core.zk.loop import Loop


@pytest.fixture
def loop():
    loop = Loop("test-loop")
    loop.start()
    yield loop
    loop.stop()
    loop._thread.join(10)  # or the thread would still be listed in another test


def test_delivered_and_posted_events_keep_their_order(loop):
    seen = []
    running = []
    overlaps = []
    done = threading.Event()

    def event(kind, number):
        running.append(1)
        if len(running) > 1:
            overlaps.append(number)
        seen.append((kind, number))
        running.pop()

    def post():
        for number in range(2000):
            loop.post(event, "posted", number)

    poster = threading.Thread(target=post)
    poster.start()
    for number in range(2000):
        loop.deliver(event, "delivered", number)
    poster.join()
    loop.post(done.set)
    assert done.wait(10)
    assert overlaps == []
    for kind in ("posted", "delivered"):
        assert [number for kind_of_event, number in seen if kind_of_event == kind] == list(range(2000))


def test_a_delivered_event_runs_without_a_further_event(loop):
    for _ in range(300):
        started, delivered = threading.Event(), threading.Event()
        loop.post(started.set)
        started.wait(10)
        loop.deliver(delivered.set)
        assert delivered.wait(10)


@pytest.mark.parametrize(
    ("event", "logged"), [(lambda loop: 1 / 0, "ZeroDivisionError"), (lambda loop: loop.call_later(1e12, int), "")]
)
def test_neither_a_failing_event_nor_a_timer_of_centuries_ends_the_loop(loop, caplog, event, logged):
    waiting, done = threading.Event(), threading.Event()
    loop.post(event, loop)
    loop.post(waiting.set)
    assert waiting.wait(10)
    loop._thread.join(0.1)  # it would end here
    loop.post(done.set)
    assert done.wait(10)
    assert flush(5)
    assert logged in caplog.text


def test_timers_run_when_due_and_not_when_cancelled(loop):
    seen = []
    done = threading.Event()

    def arm():
        loop.call_later(1.1, done.set)
        loop.call_later(1.0, lambda: seen.append("late"))
        loop.call_later(0.05, lambda: seen.append("cancelled")).cancel()

    loop.post(arm)
    # This runs on the delivering thread, so the sleeping loop must be woken.
    loop.deliver(lambda: loop.call_later(0.01, lambda: seen.append("early")))
    assert done.wait(10)
    assert seen == ["early", "late"]


def test_a_timer_runs_between_delivered_events():
    """A flood of replies runs on kazoo's thread. It delays no heartbeat, although the loop's thread gets no turn."""
    loop = Loop("test-loop")  # its thread is never started
    seen = []
    loop.deliver(lambda: loop.call_later(0, lambda: seen.append("timer")))
    loop.deliver(seen.append, "reply")
    assert seen == ["timer", "reply"]


def test_a_stopped_loop_ends_its_thread(loop):
    seen = []
    loop.post(seen.append, 1)
    loop.stop()
    loop._thread.join(10)
    assert not loop._thread.is_alive()
    assert seen == [1]


def test_cancelled_timers_are_removed(loop):
    called = []
    done = threading.Event()

    def set_and_cancel():
        kept = [loop.call_later(3600, lambda: called.append(1)) for _ in range(10)]
        for _ in range(5000):
            loop.call_later(24 * 3600, lambda: called.append(2)).cancel()
        loop.call_later(0.01, done.set)
        assert all(timer.pending for timer in kept)

    loop.post(set_and_cancel)
    assert done.wait(10)
    assert len(loop._timers) < 1000
    assert sum(timer.pending for _, _, timer in loop._timers) == 10
    assert called == []


def test_cancelled_timers_do_not_wake_the_thread():
    wakes = []
    done = threading.Event()

    class Counted(Loop):
        def _run_due(self):
            wakes.append(1)
            super()._run_due()

    def set_timers():
        for number in range(100):
            counted.call_later(0.001 * (number + 1), lambda: None).cancel()
        counted.call_later(0.2, done.set)

    counted = Counted("test-loop")
    counted.start()
    counted.post(set_timers)
    assert done.wait(10)
    counted.stop()
    counted.join()
    assert len(wakes) < 10


def test_a_lasting_fault_does_not_end_the_loop(loop, monkeypatch, caplog):
    monkeypatch.setattr("django_zklock.core.zk.loop.START_AGAIN", 0)
    faults = [OSError("no room"), MemoryError()]

    class Events(queue.SimpleQueue[Any]):
        def get(self, block=True, timeout=None):
            if faults:
                raise faults.pop(0)
            return super().get(block, timeout)

    before, done = loop._events, threading.Event()
    loop._events = Events()
    before.put((done.set, ()))  # wakes the thread
    assert done.wait(10)
    done.clear()
    loop.post(done.set)
    assert done.wait(10)
    assert flush(10)
    logged = [record for record in caplog.records if "cannot wait for an event, trying again" in record.getMessage()]
    assert [record.exc_info and record.exc_info[0] for record in logged] == [OSError, MemoryError]
