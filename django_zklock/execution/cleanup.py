"""
Clean up after an exception, even if a second exception strikes the clean-up.

The handler of a signal (a soft time limit, Ctrl-C) may raise at the first instruction of any function. So an `except`
clause is no guarantee: the function that it calls may be struck before its first line. The rule of this package: the
caller changes shared state by single steps, and one idempotent call gives back whatever is left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from django_zklock.execution import abort

Finalizers: TypeAlias = "tuple[weakref.ref[Any], weakref.ref[Any]]"


def finalizers_of(end: Callable[..., None], on_destroyed: Callable[[object], None]) -> Finalizers:
    """
    Return weak references that call `on_destroyed` when Python destroys `end`. The caller must keep them.

    Python keeps the `__exit__` of a `with` block on the stack of its frame, where nothing else refers to it: no
    variable, and no traceback. If an exception strikes `__exit__` itself, Python drops that object at once, and calls
    its weak references. `end` has to be a new object for each block. Python swallows an exception that strikes such a
    call, so there are two of them.
    """
    return weakref.ref(end, on_destroyed), weakref.ref(end, on_destroyed)


class CleanupOnError:
    """`with CleanupOnError(call):` runs `call()` if an exception ends the block. `call` must be idempotent."""

    __slots__ = ("_call", "_finalizers")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._finalizers: Finalizers | None = None

    def __enter__(self) -> None: ...

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302 - it returns the method
        end = functools.partial(self._end)
        self._finalizers = finalizers_of(end, self._on_destroyed)
        return end

    @abort.shielded
    def _end(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._call()
        self._finalizers = None

    @abort.shielded
    def _on_destroyed(self, end: object) -> None:
        if self._finalizers is not None:
            self._call()
            self._finalizers = None
