"""Read a dict of settings by a table of its keys, and collect the problems, so that one error names them all."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.untrusted import is_encodable

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

    def add_unknown_keys(self, where: str, keys: Collection[object], known: Collection[str]) -> None:
        for key in keys:
            if key not in known:
                self.add("E002", f'{where} has an unknown key "{key}".', did_you_mean(key, known))


def did_you_mean(word: object, known: Collection[str]) -> str:
    """Return a question about the key that was meant, or the list of all keys."""
    by_lower_case = {name.lower(): name for name in known}
    meant = "url" if str(word).lower() in ("host", "hosts", "location", "servers") else str(word).lower()
    near = difflib.get_close_matches(meant, by_lower_case, n=1)
    if near:
        return f'Did you mean "{by_lower_case[near[0]]}"?'
    return f"Known keys: {', '.join(known)}."


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
) -> dict[str, Any]:
    """
    Return the valid values, by their keys in lower case.

    A key whose value is None counts as not given. The keys in `more` are allowed, too, but not read here.
    """
    problems.add_unknown_keys(where, given, (*table, *more))
    values: dict[str, Any] = {}
    for name, row in table.items():
        if given.get(name) is None:
            continue
        try:
            values[name.lower()] = row.read(given[name])
        except InvalidValue as error:
            problems.add(row.id, f'{where}["{name}"] {error}.', error.hint or row.advice)
    return values


# --- readers ------------------------------------------------------------------------------------------------------


def must_be(expected: str, value: object) -> InvalidValue:
    """Return the error for an invalid value that is no secret. The message quotes it."""
    kind = "the string " if isinstance(value, str) else ""
    return InvalidValue(f"must be {expected}; got {kind}{printable(repr(value), _SHOWN)}")


def boolean(value: object) -> bool:
    """Read True or False."""
    if not isinstance(value, bool):
        raise must_be("True or False", value)
    return value


def whole_number(value: object) -> int:
    """Read a whole number from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise must_be("a whole number from 0", value)
    return value


def positive_seconds(value: object) -> float:
    """Read seconds above 0 from a number, a timedelta, or a text such as an environment variable."""
    try:
        number = seconds(float(value) if isinstance(value, str) else value)
    except ValueError:
        number = None
    if not number:
        raise must_be("a time above 0", value)
    return number


def seconds(value: object) -> float | None:
    """Return a number or a timedelta in seconds; None for anything else, or if it is not from 0 to `LONGEST_WAIT`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= LONGEST_WAIT else None  # also None for NaN


def is_text(value: object) -> bool:
    """Return whether `value` is a non-empty string that UTF-8 can encode, so without lone surrogates."""
    return isinstance(value, str) and value != "" and is_encodable(value)
