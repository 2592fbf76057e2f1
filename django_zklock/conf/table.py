"""Read a dict of settings or options by a table of its keys, and collect the problems: one error names them all."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.untrusted import integer, is_encodable, number

# Seconds: 24 days. ZooKeeper stores a session timeout in milliseconds, in 32 bits. All waits have the same limit.
LONGEST_WAIT: Final = 2_147_483.0
SECONDS_ADVICE: Final = f"Seconds, up to {LONGEST_WAIT:.0f}, or a timedelta."
_SHOWN: Final = 60  # characters of an invalid value that a message quotes


class InvalidValue(ValueError):
    """A value is invalid. The message continues a sentence that begins with the key, and quotes no credential."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of the settings. docs/reference/settings.md explains each `id`."""

    id: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class Problems(list[Problem]):
    """All problems. Each reader adds its own and continues with a default, so that one run finds them all."""

    def add(self, id: str, message: str, hint: str) -> None:
        self.append(Problem(id=id, message=message, hint=hint))

    def dict_of(self, value: object, id: str, where: str, hint: str) -> Mapping[Any, Any]:
        """Return a value that must be a dict. Anything else is a problem, and counts as empty."""
        if isinstance(value, Mapping):
            return value
        self.add(id, f"{where} is a {type(value).__name__}, not a dict.", hint)
        return {}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return a question about the key that was meant, or the list of all keys."""
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return f'Did you mean "{by_lower_case[near[0]]}"?' if near else f"Known: {', '.join(known)}."


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one key: the id of its problems, its reader, and the advice for an invalid value."""

    id: str
    read: Callable[[Any], Any]
    """Return the value to use. Raise `InvalidValue` with the end of a sentence that begins with the key."""
    advice: str


def read_keys(
    given: Mapping[Any, Any],
    table: Mapping[str, Row],
    where: str,
    problems: Problems,
    *,
    more: Collection[str] = (),
    none_is_given: bool = False,
) -> dict[str, Any]:
    """
    Return the valid values, by their keys in lower case.

    A key whose value is None mostly counts as not given. The keys in `more` are allowed, too, but not read here.
    Without `where`, the keys are the arguments of a call.
    """
    known = (*table, *more)
    for key in given:
        if key not in known:
            problems.add("E002", f'{where} has an unknown key "{key}".', did_you_mean(str(key), known))
    values: dict[str, Any] = {}
    for name, row in table.items():
        if name not in given or (given[name] is None and not none_is_given):
            continue
        try:
            values[name.lower()] = row.read(given[name])
        except InvalidValue as error:
            key = f'{where}["{name}"]' if where else name
            problems.add(row.id, f"{key} {error}.", error.hint or row.advice)
    return values


# --- readers ------------------------------------------------------------------------------------------------------


def must_be(expected: str, value: object) -> InvalidValue:
    """Return the error for an invalid value that is no secret. The message quotes it."""
    kind = "the string " if isinstance(value, str) else ""
    return InvalidValue(f"must be {expected}; got {kind}{printable(repr(value), _SHOWN)}")


def accepts(expected: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader whose error for an invalid value, which is no secret, says what it expects."""

    def read_or_say(value: object) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError):
            raise must_be(expected, value) from None

    return read_or_say


def boolean(value: object) -> bool:
    """Read True or False."""
    if not isinstance(value, bool):
        raise must_be("True or False", value)
    return value


def seconds(value: object, *, positive: bool = False, most: float = LONGEST_WAIT) -> float:
    """Read a number of seconds, or a timedelta. Raises `ValueError`."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    return number(given, math.ulp(0.0) if positive else 0, most)


def _time_of_text(value: object) -> float:
    return seconds(float(value) if isinstance(value, str) else value, positive=True)


whole_number: Final = accepts("a whole number from 0", integer)
positive_seconds: Final = accepts("a time above 0", _time_of_text)
"""Read seconds above 0 from a number, a timedelta, or a text such as an environment variable."""


def is_text(value: object) -> bool:
    """Return whether `value` is a non-empty string that UTF-8 can encode, so without lone surrogates."""
    return isinstance(value, str) and value != "" and is_encodable(value)
