"""The library whose workers call decorated functions: Celery, or none. Django imports this module at its start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from django_zklock.decorators.context import FunctionContext


class TaskLibrary:
    """
    A library whose workers call decorated functions. This one has no workers; `contrib.celery` overrides its methods.

    A process may import Celery at any time, or never.
    """

    def connect(self, *, unique: bool) -> None:
        """
        Connect to the library if the process has imported it; repeating it is harmless.

        With `unique`, some functions have the option `unique`, which needs the library.
        """

    def context_of(self, wrapper: Callable[..., Any]) -> FunctionContext | None:
        """Return the context of a call of the decorated function `wrapper`; None if no worker makes this call."""
        return None

    def functions(self) -> Iterable[Callable[..., Any]]:
        """Return the functions that calls of the library's tasks go through."""
        return ()


CELERY: Final = "django_zklock.contrib.celery"
NONE: Final = TaskLibrary()
current = NONE
"""The library of this process. `register` writes it."""
_unique = False  # True as soon as a function has the option `unique`


def register(registered: TaskLibrary) -> None:
    """Support a task library. It is connected now if the process uses it, else as soon as a function is decorated."""
    global current
    current = registered
    current.connect(unique=_unique)


def connect(*, unique: bool) -> None:
    """
    Connect to the task library. The decorator calls this for each function.

    A unique task does not wait for Django to start: a program without `django.setup()` would send all duplicates.
    """
    global _unique
    _unique = _unique or unique
    if unique and current is NONE:
        import_module(CELERY).register()  # a higher layer
    current.connect(unique=_unique)
