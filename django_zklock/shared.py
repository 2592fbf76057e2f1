"""Results that callers share for some time, so that ten open pages cost ZooKeeper no more than one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from django_zklock.core import clock, fork

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Result(Generic[_Value]):
    """The last result for one key."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.last: tuple[float, _Value] | None = None  # with the time of its call; guarded by mutex


class Shared(Generic[_Key, _Value]):
    """The last results of a function, by key; may decorate it. Callers at the same time wait for one call."""

    def __init__(self, compute: Callable[[_Key, float], _Value], *, most: int = 8) -> None:
        self._compute = compute
        self._most = most
        self.clear()
        # An inherited mutex may be locked by a thread that does not exist in the child.
        fork.in_child(self.clear)

    def get(self, key: _Key, timeout: float, max_age: float) -> _Value:
        """
        Return a result of a call that began at most `max_age` seconds before this one, or later.

        The function gets the key, and the seconds that remain of `timeout`: waiting for other callers takes from them.
        """
        called = clock.now()
        with self._mutex:
            result = self._results.get(key)
            if result is None:
                result = self._results[key] = _Result()
                if len(self._results) > self._most:
                    del self._results[next(iter(self._results))]
        with result.mutex:
            if result.last is None or called - result.last[0] > max_age:
                began = clock.now()
                result.last = began, self._compute(key, max(0.0, timeout - (began - called)))
            return result.last[1]

    def clear(self) -> None:
        """Forget all results."""
        self._mutex = threading.Lock()
        self._results: dict[_Key, _Result[_Value]] = {}  # the newest key is the last; guarded by _mutex
