"""Read a dict of settings by a table that has a reader for each of its keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_zklock.conf.errors import LONGEST_WAIT, InvalidValue, Problems, seconds
from django_zklock.core.queue.escaping import printable

SECONDS_ADVICE: Final = f"Seconds, up to {LONGEST_WAIT:.0f}, or a timedelta."
_SHOWN: Final = 60  # characters of an invalid value that a message quotes


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
