"""Knows the decorated function behind a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from django_zklock.conf.options import LockOptions
from django_zklock.operations.reservations import Uniqueness


class Locked(Protocol):
    """What `@zk_locked` makes of a function."""

    @property
    def uniqueness(self) -> Uniqueness | None:
        """What was asked for."""

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call."""

    def options_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LockOptions:
        """Return the options of a call."""


def function_of(task: object) -> Callable[..., Any] | None:
    """Return what runs when the task is run; a bound method if the task is bound."""
    # autoretry_for puts another function in front.
    function: Callable[..., Any] | None = getattr(task, "_orig_run", getattr(task, "run", None))
    return function


def locked_of(task: object) -> Locked | None:
    """Return what is known of a task's function, if it is decorated."""
    locked: Locked | None = getattr(function_of(task), "zk_locked", None)
    return locked


def arguments(task: object, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the function is called with when the task is called with these."""
    bound = getattr(function_of(task), "__self__", None)
    before = () if bound is None else (bound,)
    return (*before, *(args or ())), dict(kwargs or {})
