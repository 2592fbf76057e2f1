"""Knows how the arguments of a decorated function fill the name of a lock; knows neither locks nor settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction
from django.views import View

from django_zklock.queue.names import Template

Name: TypeAlias = str | Callable[..., str]
"""The name of a lock, with fields for the arguments; or what gets the arguments and returns the key."""

Names: TypeAlias = Name | Callable[..., Sequence[str]] | Sequence[Name]
"""The name of a lock, or the names of several; a callable may return several keys, too."""

_MANY = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True)
class Named:
    """What one call names."""

    names: tuple[str, ...]
    fields: Mapping[str, object]
    """Their values, defaults applied."""
    several: bool
    """Whether a list was given, of however many names."""


class Naming:
    """The name of a lock, or those of several, and the function whose arguments fill it."""

    def __init__(self, name: Names, function: Callable[..., Any]) -> None:
        self._several = not isinstance(name, str) and not callable(name)
        self._names: tuple[Any, ...] = (name,) if isinstance(name, str) or callable(name) else tuple(name)
        # method_decorator hands over a partial of the bound method that claims to wrap the unbound one.
        self._function = getattr(function, "__qualname__", repr(function))
        self.signature = inspect.signature(function, follow_wrapped=not isinstance(function, functools.partial))

    @property
    def templates(self) -> tuple[str, ...]:
        """The names that no callable is to make."""
        return tuple(name for name in self._names if isinstance(name, str))

    def check_fields(self, path: str) -> None:
        """Raise `InvalidLockName` if the template `path` asks for what the function does not get."""
        parameters = self.signature.parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            Template.parse(path).check_fields(parameters)

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Named:
        """Return what one call names."""
        names: list[str] = []
        several = self._several
        for name in self._names:
            if isinstance(name, str):
                names.append(name)
                continue
            made = name(*args, **kwargs)
            several = several or isinstance(made, _MANY)
            # The key as it is: a brace in it is no field.
            names += [_escaped(key) for key in (made if isinstance(made, _MANY) else [made])]
        return Named(tuple(names), self._fields(args, kwargs) if self.templates else {}, several)

    def name_and_fields(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Mapping[str, object]]:
        """Return the name for one call, where there is but one, and the values of its fields."""
        named = self.named(args, kwargs)
        if named.several:
            raise TypeError(f"one key is needed here, not several: {', '.join(map(repr, named.names))}.")
        return named.names[0], named.fields

    def _fields(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}{self.signature}: {error}.{self._about_self(args)}") from error
        bound.apply_defaults()
        fields: dict[str, object] = {}
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                fields.update(bound.arguments[parameter.name])
            else:
                fields[parameter.name] = bound.arguments[parameter.name]
        return fields

    def _about_self(self, args: tuple[Any, ...]) -> str:
        """Return what to do if this looks like a task that gets itself unasked, or asks in vain."""
        first = next(iter(self.signature.parameters), "")
        given = bool(args) and hasattr(args[0], "apply_async")
        if given and first != "self":
            return " A task with bind=True gets itself as its first argument: add the parameter self, or take bind out."
        if first == "self" and not given:
            return " A Celery task gets itself as self only with bind=True."
        return ""


def _escaped(key: Any) -> Any:
    return key.replace("{", "{{").replace("}", "}}") if isinstance(key, str) else key  # the lock refuses other types


def async_view(function: Callable[..., Any], args: tuple[Any, ...]) -> View | None:
    """Return the class-based view whose `dispatch` this is, if it is async: it only returns a coroutine then."""
    if getattr(function, "__name__", "") != "dispatch" or iscoroutinefunction(function):
        return None
    bound = function.func if isinstance(function, functools.partial) else function
    view = getattr(bound, "__self__", args[0] if args else None)
    return view if isinstance(view, View) and view.view_is_async else None
