"""Knows how the arguments of a decorated function fill the name of a lock; knows neither locks nor settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction
from django.views import View

from django_zklock.queue.names import Template

Name: TypeAlias = str | Callable[..., str]
"""The name of a lock, with fields for the arguments; or what gets the arguments and returns the key."""


class Naming:
    """A name, and the function whose arguments fill it."""

    def __init__(self, name: Name, function: Callable[..., Any]) -> None:
        self._name = name
        # method_decorator hands over a partial of the bound method that claims to wrap the unbound one.
        self.signature = inspect.signature(function, follow_wrapped=not isinstance(function, functools.partial))

    def check_fields(self, path: str) -> None:
        """Raise `InvalidLockName` if the template `path` asks for what the function does not get."""
        parameters = self.signature.parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            Template.parse(path).check_fields(parameters)

    def name_and_fields(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Mapping[str, object]]:
        """Return the name for one call, and the values of its fields, defaults applied."""
        if not isinstance(self._name, str):
            # The key as it is: a brace in it is no field.
            return self._name(*args, **kwargs).replace("{", "{{").replace("}", "}}"), {}
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        fields: dict[str, object] = {}
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                fields.update(bound.arguments[parameter.name])
            else:
                fields[parameter.name] = bound.arguments[parameter.name]
        return self._name, fields


def async_view(function: Callable[..., Any], args: tuple[Any, ...]) -> View | None:
    """Return the class-based view whose `dispatch` this is, if it is async: it only returns a coroutine then."""
    if getattr(function, "__name__", "") != "dispatch" or iscoroutinefunction(function):
        return None
    bound = function.func if isinstance(function, functools.partial) else function
    view = getattr(bound, "__self__", args[0] if args else None)
    return view if isinstance(view, View) and view.view_is_async else None
