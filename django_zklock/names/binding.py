"""Fill the fields of a lock's name with the arguments of a decorated function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from asgiref.sync import AsyncToSync

from django_zklock.exceptions import InvalidLockName
from django_zklock.names.field_values import NoneArgument
from django_zklock.names.template import Template

Name: TypeAlias = str | Callable[..., str]
"""The name of a lock, with fields for the arguments; or a callable that gets the arguments and returns the key."""

Names: TypeAlias = Name | Callable[..., Sequence[str]] | Sequence[Name]
"""The name of a lock, or the names of several. A callable may return several keys, too."""

_MANY = (list, tuple, set, frozenset)

_UNEVALUATED: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _UNEVALUATED = {"annotation_format": Format.FORWARDREF}


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature. Its annotations may name what is imported for type checkers only."""
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_UNEVALUATED)


@dataclass(frozen=True, slots=True)
class KeyBinding:
    """The lock names of one call, and the values for their fields."""

    names: tuple[str, ...]
    fields: Mapping[str, object]
    """The call's arguments, defaults applied."""
    several: bool
    """Whether a list was given, even if it has one name only."""


class KeyBinder:
    """Binds the arguments of a function to the name of its lock, or to the names of several."""

    def __init__(self, name: Names, function: Callable[..., Any]) -> None:
        self.several = not isinstance(name, str) and not callable(name)
        names: Any = name
        self._names: tuple[Any, ...] = tuple(names) if self.several else (names,)
        self.templates = tuple(name for name in self._names if isinstance(name, str))
        """The names that are not callables."""
        self.is_static = len(self.templates) == len(self._names)
        self._wraps = hasattr(function, "__wrapped__")  # such a decorator may take arguments of its own, as `@paginate`
        self._function = getattr(function, "__qualname__", repr(function))
        partial = partial_below(function)
        if isinstance(function, AsyncToSync):  # it has no signature of its own
            function = function.awaitable
        self.signature = signature_of(partial or function, follow_wrapped=partial is None)
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        self._accepts_any = inspect.Parameter.VAR_KEYWORD in kinds

    def check_fields(self, path: str) -> None:
        """Raise `InvalidLockName` if the template `path` has a field that is no parameter of the function."""
        if not self._accepts_any:
            Template.parse(path).check_fields(self.signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeyBinding:
        """Return the names and fields of one call."""
        names: list[str] = []
        several = self.several
        for name in self._names:
            if isinstance(name, str):
                names.append(name)
                continue
            keys = name(*args, **kwargs)
            several = several or isinstance(keys, _MANY)
            # A key is used as it is: a brace in it begins no field.
            names += [_escaped(key) for key in (keys if isinstance(keys, _MANY) else [keys])]
        if not names:
            raise InvalidLockName(
                f"{self._function} got no lock: the callable in its @zk_locked returned no key. Return one at least, "
                "or do not call the function."
            )
        return KeyBinding(tuple(names), self._fields(args, kwargs) if self.templates else {}, several)

    def bind_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Mapping[str, object]]:
        """Return the name and fields of one call. Raises `TypeError` if it has several names."""
        binding = self.bind(args, kwargs)
        if binding.several:
            keys = ", ".join(map(repr, binding.names))
            raise TypeError(f"{self._function} needs one key, not several: {keys}. Give it one name, or a callable.")
        return binding.names[0], binding.fields

    def _fields(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        if self._wraps and not self._accepts_any:
            kwargs = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}{self.signature}: {error}.") from error
        bound.apply_defaults()
        fields: dict[str, object] = {}
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:  # it may have the name of a positional-only parameter, too
                fields = bound.arguments[parameter.name] | fields
            else:
                value = bound.arguments[parameter.name]
                fields[parameter.name] = NoneArgument() if value is None is parameter.default else value
        return fields


def _escaped(key: Any) -> Any:
    return key.replace("{", "{{").replace("}", "}}") if isinstance(key, str) else key  # the lock refuses other types


def partial_below(function: Callable[..., Any]) -> functools.partial[Any] | None:
    """Return what `method_decorator` decorates: a partial of the bound method that claims to wrap the unbound one."""
    inner = inspect.unwrap(function, stop=lambda layer: isinstance(layer, functools.partial))
    return inner if isinstance(inner, functools.partial) else None
