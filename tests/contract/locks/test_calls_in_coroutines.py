"""No call of the public API stops an event loop: one that may wait refuses, and says what to await instead."""

import inspect
import sys
import threading
from functools import partial

import pytest
from django.core.exceptions import SynchronousOnlyOperation

import django_zklock
from django_zklock import ReadWriteLock, inspection, operations, zk_leader, zk_lock, zk_locks
from django_zklock.core.execution.waiters import ThreadWaiter

MODULES = (django_zklock, inspection, operations)
WAITS = {ThreadWaiter.outcome.__code__, threading.Condition.wait.__code__}
ARGUMENTS = {
    **dict.fromkeys(("key", "name", "text", "title", "identity", "reason", "by", "guid"), "x"),
    **dict.fromkeys(("seconds", "token", "limit"), 1),
    "callback": lambda hold: None,
    "function": lambda hold: None,
    "obj": object(),
    "origin": "command",
    "waits": (),
}
"""A value for each argument that a call needs, by its name."""
ASYNC = {"aacquire", "alocked", "arelease", "arun", "afence"}
ASYNC |= {"await_released"}


def public_calls(objects):
    """Yield each function, and each method of these objects, that users may call."""
    for module in MODULES:
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield name, getattr(module, name)
    for name, subject in objects.items():
        for attribute in dir(type(subject)):
            if not attribute.startswith("_") and attribute not in ASYNC:
                yield f"{name}.{attribute}", partial(attribute_of, subject, attribute)


def attribute_of(subject, name):
    value = getattr(subject, name)
    return with_arguments(value) if inspect.ismethod(value) else value


def with_arguments(call):
    """Call with what the signature asks for."""
    asked = [
        parameter
        for parameter in inspect.signature(call).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    positional = [ARGUMENTS[item.name] for item in asked if item.kind is not item.KEYWORD_ONLY]
    named = {item.name: ARGUMENTS[item.name] for item in asked if item.kind is item.KEYWORD_ONLY}
    return call(*positional, **named)


def waits(call):
    """Return whether the call begins to wait in this thread. Raises what it raises before that."""
    begun = []

    def on_call(frame, event, argument):
        if event == "call" and frame.f_code in WAITS:
            begun.append(frame.f_code)

    sys.setprofile(on_call)
    try:
        call()
    except SynchronousOnlyOperation:
        raise
    except Exception:
        return bool(begun)  # it did not like the arguments
    finally:
        sys.setprofile(None)
    return bool(begun)


async def test_each_public_call_that_may_wait_refuses_and_names_what_to_await(zoo):
    refused, stopped = {}, []
    async with zk_lock("k") as hold, zk_locks("a", "b") as holds, zk_leader("l") as leading:
        leader, both = zk_leader("m"), ReadWriteLock("r")
        subjects = {"Lock": zk_lock("k"), "MultiLock": zk_locks("a", "b"), "Hold": hold, "MultiHold": holds}
        for name, call in public_calls({**subjects, "Leader": leader, "ReadWriteLock": both}):
            try:
                if waits(call if "." in name else partial(with_arguments, call)):
                    stopped.append(name)
            except SynchronousOnlyOperation as error:
                refused[name] = str(error)
        leading.check()
    assert stopped == []
    assert all("await " in text or "async with" in text for text in refused.values())
    expected = {"Lock.acquire", "Hold.wait_lost", "MultiHold.wait_lost", "Hold.wait_release_requested", "Leader.run"}
    expected |= {"look_at", "snapshot", "check_quorum", "ensemble", "hold_lock"}
    assert expected <= refused.keys()


async def test_a_look_at_a_hold_that_does_not_wait_is_allowed(zoo):
    """Type checkers believe that a property does not change, but not that a method does not."""
    async with zk_lock("k") as hold, zk_locks("a", "b") as holds:
        assert hold.wait_lost(0) is holds.wait_lost(0) is False
        assert hold.wait_release_requested(0) is None


def test_a_call_outside_of_a_coroutine_waits(zoo):
    """So the test above would notice a call that waits."""
    with zk_lock("k") as hold:
        assert waits(partial(hold.wait_lost, 0.01))
        assert waits(partial(inspection.look_at, "k"))
        with pytest.raises(AssertionError):
            assert not waits(zk_lock("free").locked)
