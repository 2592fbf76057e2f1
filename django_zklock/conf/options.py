"""The options of locks as they are used: checked, by name, with the settings below those of a call."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from django_zklock.conf.arguments import CHECKS, OPTIONS
from django_zklock.conf.table import Problems, Row, read_keys

LockOptions: TypeAlias = Mapping[str, Any]
"""
Checked options by name; those that were not given are missing. Times are in seconds, and `atomic` is a tuple.

An entry of `ZKLOCK["LOCKS"]` has its `path`, too. Nobody may change the mapping: equal options of two calls are one.
"""

NOT_GIVEN: Final[LockOptions] = MappingProxyType({})
"""No options."""


def given_options(options: Mapping[str, object]) -> LockOptions:
    """
    Return the options of a call, checked like those of the settings.

    Raises `ValueError`, which names all invalid options.
    """
    try:
        return _checked_once(tuple((name, type(value), value) for name, value in options.items()))
    except TypeError:  # a list, for example, cannot be a key
        return _checked(options)


@functools.lru_cache(maxsize=1024)  # equal options are one object: `Config.specs` finds specs by its id
def _checked_once(options: tuple[tuple[str, type, object], ...]) -> LockOptions:
    return _checked({name: value for name, _, value in options})


def _checked(options: Mapping[str, object]) -> LockOptions:
    problems = Problems()
    checked = read_options(options, "", problems, known=CHECKS)
    if problems:
        raise ValueError(" ".join(map(str, problems)))
    problem = contradiction(checked)
    if problem:
        raise ValueError(f"The call has {problem}; change one of them.")
    return checked


def over_defaults(options: LockOptions, defaults: LockOptions) -> LockOptions:
    """
    Return these options, with the gaps filled from those of all locks.

    `kind` and `limit` together decide the type of the lock. If these options have one of the two, the other one is
    not taken from the defaults.
    """
    ignored = {"limit"} if "kind" in options else set()
    if options.get("limit") is not None:
        ignored.add("kind")
    return {**{name: value for name, value in defaults.items() if name not in ignored}, **options}


_EXCLUSIVE: Final = (
    ("limit", "kind", ("read", "write"), ", but a semaphore has no sides"),
    ("min_hold", "compat", None, ", but other clients do not know the minimum hold"),
    ("limit", "compat", None, ", but semaphores cannot share a queue with other clients"),
    ("linger", "limit", None, ", but only exclusive locks linger"),
    ("linger", "kind", ("read",), ", but only exclusive locks linger"),
    ("linger", "min_hold", None, ", which keeps the lock from the next owners in this process, too"),
)
"""Two options that exclude each other, the values of the second one (None: any), and why."""


def contradiction(options: LockOptions) -> str:
    """Return which options exclude each other, as a part of a sentence; empty if none do."""
    for first, second, values, why in _EXCLUSIVE:
        value = options.get(second)
        if options.get(first) and value and (values is None or value in values):
            return f"{_written(first, options)} and {_written(second, options)}{why}"
    max_hold, min_hold = options.get("max_hold"), options.get("min_hold")
    if max_hold and min_hold and max_hold < min_hold:
        return f"{_written('max_hold', options)}, which is less than {_written('min_hold', options)}"
    return ""


def _written(name: str, options: LockOptions) -> str:
    value = options[name]
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value:g}"


def read_options(
    value: object, where: str, problems: Problems, *, known: Mapping[str, Row] = OPTIONS, more: Collection[str] = ()
) -> LockOptions:
    """Read the `known` options of one lock, or of all. The keys in `more` are allowed, too, but not read here."""
    given = problems.dict_of(value, "E009", where, 'For example {"timeout": 5}.')
    return read_keys(given, known, where, problems, more=more, none_is_given=True)
