"""A lock above a decorator that connects the function to a signal is refused: the signal would call it unlocked."""

import celery.signals
import pytest
from django.db import transaction
from django.dispatch import Signal, receiver

from django_zklock import zk_locked

signal = Signal()


@pytest.mark.parametrize("connect", [receiver(signal), celery.signals.task_success.connect], ids=["Django", "Celery"])
@pytest.mark.parametrize("between", [lambda function: function, transaction.atomic], ids=["", "atomic"])
def test_a_lock_above_the_receiver_of_a_signal_is_refused(connect, between):
    def handler(**kwargs): ...

    with pytest.raises(TypeError, match=r"A signal has .*handler already, and would call it without .* directly above"):
        zk_locked("k")(between(connect(handler)))


def test_a_lock_below_the_receiver_of_a_signal_is_right():
    @receiver(signal)
    @zk_locked("k")
    def handler(**kwargs): ...


def test_a_receiver_that_its_module_calls_without_the_lock_may_be_locked_elsewhere(monkeypatch):
    def handler(**kwargs): ...

    monkeypatch.setitem(globals(), "handler", handler)
    signal.connect(handler)
    assert zk_locked("k")(handler)
