"""The protocol package runs on the protocol's thread, but for a short list."""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.faults import BackgroundCall, acquire_once, expire, session
from support.primitives import KEY
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import zk_lock, zk_write
from django_zklock.core import protocol
from django_zklock.core.zk import process
from django_zklock.exceptions import LockBusy, LockTimeout
from django_zklock.operations import break_lock

PROTOCOL = str(Path(protocol.__path__[0]))
OWN_THREADS = ("zklock-loop", "zklock-connection")  # events are delivered on either, never on both at once

ANYWHERE = {
    # A contender is made and started, and gets messages. It is described for an error.
    "contender.py": {
        "start",
        "abandon",
        "when_released",
        "ahead",
        "in_local_queue",
        "guid",
        "info",
        "_describe",
        # The wait of a caller, which its process may grant without the protocol.
        "report_queued",
        "end",
    },
    "local_queue.py": {"has"},
    # A reader of a queue is made, started and stopped.
    "story.py": {"__init__", "start", "stop"},
    # The end of a block looks for modules that tell others.
    "tellers.py": {"connect"},
    # A description is a value.
    "contender_info.py": {
        "__str__",
        "_granted",
        "_renewal_due",
        "client_of",
        "foreign_payload",
        "from_node",
        "since",
    },
    # So is an error.
    "errors.py": {"__init__"},
    # Any thread reads a grant, and observes it.
    "grant.py": {
        "__init__",
        "check",
        "first_to_report_end",
        "detach",
        "has_events",
        "inherited",
        "nobody",
        "observe",
        "overdue",
        "release",
        "why_invalid",
        "why_overdue",
    },
}


@contextmanager
def recorded():
    """Yield the set of the protocol's functions, with their modules, that other threads call meanwhile."""
    functions = set()

    def on_event(frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PROTOCOL) or code.co_name.startswith("<"):
            return
        if not threading.current_thread().name.startswith(OWN_THREADS):
            functions.add((Path(code.co_filename).name, code.co_name))

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        yield functions
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def wait_for_the_lock(zoo):
    with zoo.hold_elsewhere(KEY):
        waiter = BackgroundCall(lambda: acquire_once(KEY, timeout=20))
        eventually(lambda: session().observers)  # the next line would create the registry, if it came before the waiter
        zoo.wait_contenders(KEY, 2)
        assert_refused(zk_lock(KEY, timeout=0.1), LockTimeout)
        assert_refused(zk_lock(KEY, timeout=0), LockBusy)
    waiter.result()


def lose_the_lock(zoo):
    with zk_lock(KEY, abort_on="never") as hold:
        expire(zoo)
        assert hold.wait_lost(20)


def have_it_broken(zoo):
    with zk_lock(KEY, abort_on="never") as hold:
        break_lock(KEY, guid=guid_of(hold.path), token=hold.token, reason="a test", by="tester")
        assert hold.wait_lost(20)


def read_on(zoo):
    with zk_write(KEY):
        acquire_once(KEY, kind="read")


def pass_it_on(zoo):
    lock = zk_lock(KEY, linger=60, timeout=20)
    with lock:
        waiter = BackgroundCall(lambda: lock.acquire() and lock.release())
        eventually(lambda: len(session().observers) > 1)
    waiter.result()


@pytest.mark.parametrize("action", [wait_for_the_lock, lose_the_lock, have_it_broken, read_on, pass_it_on])
def test_callers_post_to_the_protocol_and_call_nothing_else(zoo, action):
    process.reset()  # so that the protocol's threads start below
    with recorded() as functions:
        action(zoo)
        process.reset()
    assert not {(module, name) for module, name in functions if name not in ANYWHERE.get(module, ())}
    assert functions
