"""Knows how the threads of this package are made: so that a signal is delivered to none that runs the protocol."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from django_zklock.execution.owner import threads_are_greenlets

_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}  # meant for the thread they strike


def protocol_thread(name: str, call: Callable[[], object]) -> threading.Thread:
    """
    Return a thread (a greenlet where gevent or eventlet has patched threads) for `call()` that takes no signals.

    The kernel gives a signal to any thread of the process that does not block it. Who blocks one in the main thread,
    because something must not be torn apart, would be betrayed by ours. So would a pool process of Celery's that ends
    by SIGTERM, while it has the lock of the pool's result queue: the second SIGTERM would end it there, and leave all
    its siblings waiting for ever.
    """

    def run() -> None:
        if hasattr(signal, "pthread_sigmask") and not threads_are_greenlets():  # a greenlet's mask is the main thread's
            signal.pthread_sigmask(signal.SIG_BLOCK, {each for each in signal.Signals if each.name not in _FAULTS})
        call()

    return threading.Thread(target=run, name=name, daemon=True)


def users_thread(name: str, call: Callable[[], object]) -> threading.Thread:
    """Return a thread for `call()` that may run users' code: what that starts would inherit what is blocked."""
    return threading.Thread(target=call, name=name, daemon=True)
