"""The options of locks as they are used: checked, by name, with the settings below those of a call."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from django_zklock.conf.arguments import CHECKS, OPTION_NAMES
from django_zklock.conf.table import Problems, must_be

LONG_HELD: Final = 60.0
"""Seconds from which on pages and commands call a lock long held, unless the admin has another `long_held`."""

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


def contradiction(options: LockOptions) -> str:
    """Return which options exclude each other, as a part of a sentence; empty if none do."""
    kind, limit, compat, linger = (options.get(name) for name in ("kind", "limit", "compat", "linger"))
    max_hold, min_hold = options.get("max_hold"), options.get("min_hold")
    if limit and kind in ("read", "write"):
        return f'limit={limit} and kind="{kind}", but a semaphore has no sides'
    if compat and min_hold:
        return f'min_hold and compat="{compat}", but other clients do not know the minimum hold'
    if compat and limit:
        return f'limit={limit} and compat="{compat}", but semaphores cannot share a queue with other clients'
    if max_hold and min_hold and max_hold < min_hold:
        return f"max_hold={max_hold:g}, which is less than min_hold={min_hold:g}"
    if linger and limit:
        return f"linger={linger:g} and limit={limit}, but only exclusive locks linger"
    if linger and kind == "read":
        return f'linger={linger:g} and kind="read", but only exclusive locks linger'
    if linger and min_hold:
        return f"linger={linger:g} and min_hold, which keeps the lock from the next owners in this process, too"
    return ""


def read_options(
    value: object,
    where: str,
    problems: Problems,
    *,
    known: Collection[str] = OPTION_NAMES,
    more: tuple[str, ...] = (),
) -> LockOptions:
    """Read the `known` options of one lock, or of all. The keys in `more` are allowed, too, but not read here."""
    if not isinstance(value, Mapping):
        problems.add("E009", f"{where} is a {type(value).__name__}, not a dict.", 'For example {"timeout": 5}.')
        return NOT_GIVEN
    problems.add_unknown_keys(where, value, (*more, *known))
    options: dict[str, Any] = {}
    for name in known:
        if name in value:
            try:
                options[name] = CHECKS[name].read(value[name])
            except (TypeError, ValueError):
                key = f'{where}["{name}"]' if where else name
                hint = "Change it, or remove it to use the default." if where else ""
                problems.add("E009", f"{key} {must_be(CHECKS[name].expected, value[name])}.", hint)
    return options
