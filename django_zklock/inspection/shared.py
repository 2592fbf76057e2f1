"""A result that many callers share for some seconds, so that ten open pages cost ZooKeeper no more than one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from django_zklock import clock
from django_zklock.zk import process
from django_zklock.zk.options import SessionOptions

_Value = TypeVar("_Value")


class Shared(Generic[_Value]):
    """The last result of a function. Callers at the same time wait for one call."""

    def __init__(self, compute: Callable[[SessionOptions, float], _Value]) -> None:
        self._compute = compute
        self._last: tuple[float, SessionOptions, _Value] | None = None  # guarded by _mutex
        self._renew_mutex()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_mutex)

    def get(self, reply_timeout: float, max_age: float) -> _Value:
        """
        Return a result that was at most `max_age` seconds old at the call, or is newer.

        The function gets the settings and `reply_timeout`.
        """
        options = process.current().options
        called = clock.now()
        with self._mutex:
            if self._last is None or self._last[1] != options or called - self._last[0] > max_age:
                found = self._compute(options, reply_timeout)
                self._last = clock.now(), options, found
            return self._last[2]

    def _renew_mutex(self) -> None:
        self._mutex = threading.Lock()  # an inherited one may be held by a thread that does not exist in the child
