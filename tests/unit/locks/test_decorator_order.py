"""A decorator below `@zk_locked` that registers the function is told: what it was registered with has no lock."""

import argparse
import functools
import gc
import re
import weakref

import celery.signals
import pytest
from django import template
from django.contrib import admin
from django.contrib.auth.decorators import login_required
from django.core.checks import run_checks
from django.db import transaction
from django.dispatch import Signal, receiver
from django.test import override_settings
from django.views.decorators.http import require_POST
from ninja import NinjaAPI
from rest_framework.decorators import action, api_view

from django_zklock import zk_locked

library = template.Library()
signal = Signal()
api = NinjaAPI()
kept = []


def keep_filter(function):
    kept.append(new := template.Library())  # a new one, as below
    registered = new.filter(function)
    return registered


def append(function):
    kept.append([function])  # a new list: this process has frozen the older ones, so the collector does not see them
    return function


def dispatch(function):
    kept.append(generic := functools.singledispatch(lambda value: None))
    generic.register(int)(function)
    return function


def counting(function):
    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    wrapper.reset = lambda: setattr(wrapper, "calls", 0)
    return wrapper


def keeping(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    wrapper.original = function
    return wrapper


def delegating(function):
    runner = argparse.Namespace(run=function)

    def call(*args):
        return runner.run(*args)

    @functools.wraps(function)
    def wrapper(*args):
        return call(*args)

    return wrapper


times = weakref.WeakKeyDictionary()


def timed(function):
    times[function] = 0.0
    return function


@pytest.fixture(autouse=True)
def _settings():
    gc.collect()  # locked functions of other tests
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x"}, ROOT_URLCONF=None):
        yield


def told(name):
    """Return what `manage.py check` says of the function."""
    messages = [message for message in run_checks(tags=["zklock"]) if message.id == "zklock.W013"]
    return "".join(message.msg for message in messages if f".{name} is locked" in message.msg)


@pytest.mark.parametrize("connect", [receiver(signal), celery.signals.task_success.connect], ids=["Django", "Celery"])
@pytest.mark.parametrize("between", [lambda function: function, transaction.atomic], ids=["", "atomic"])
def test_a_lock_above_the_receiver_of_a_signal_is_refused(connect, between):
    def handler(**kwargs): ...

    with pytest.raises(TypeError, match=r"A signal has .*handler already, and would call it without .* directly above"):
        zk_locked("k")(between(connect(handler)))


def test_a_receiver_that_is_locked_by_hand_is_told_by_the_check():
    def handler(**kwargs): ...

    handler.__globals__["handler"] = handler
    signal.connect(handler)
    try:
        locked = zk_locked("k")(handler)
        assert not told("handler"), "other code may call the function without the lock"
        handler.__globals__["handler"] = locked
        assert "a signal has the function" in told("handler")
    finally:
        del handler.__globals__["handler"]


@pytest.mark.parametrize(
    "register",
    [
        keep_filter,
        library.simple_tag,
        library.inclusion_tag("x.html"),
        api.post("work"),
        dispatch,
        receiver(signal, weak=False),
        append,
    ],
    ids=["filter", "simple tag", "inclusion tag", "ninja", "singledispatch", "strong receiver", "list"],
)
@pytest.mark.parametrize("between", [lambda function: function, transaction.atomic], ids=["", "atomic"])
def test_a_lock_above_a_decorator_that_registers_is_told_by_the_check(register, between):
    def make():  # so that nothing else has the function
        def work(value=1): ...

        return zk_locked("k")(between(register(work)))

    work = make()
    assert re.search("(an object of type|another function).* has the function below its lock", told("work"))
    del work


@pytest.mark.parametrize(
    "decorate",
    [
        lambda work: library.filter(zk_locked("k")(work)),
        lambda work: receiver(signal, weak=False)(zk_locked("k")(work)),
        lambda work: api.get("good")(zk_locked("k")(work)),
        lambda work: zk_locked("k")(action(detail=True)(work)),
        lambda work: zk_locked("k")(api_view(["POST"])(work)),
        lambda work: zk_locked("k")(admin.action(description="x")(work)),
        lambda work: zk_locked("k")(transaction.atomic(login_required(require_POST(work)))),
        lambda work: zk_locked("k")(zk_locked("l")(work)),
        lambda work: zk_locked("k")(counting(work)),
        lambda work: zk_locked("k")(keeping(work)),
        lambda work: zk_locked("k")(delegating(delegating(work))),
        lambda work: zk_locked("k")(timed(work)),
        lambda work: zk_locked("k")(functools.lru_cache(work)),
    ],
)
def test_a_lock_in_its_place_is_not_told(decorate):
    def make():  # so that nothing else has the function
        def work(value=1): ...

        return decorate(work)

    work = make()
    assert work
    assert not told("work")
