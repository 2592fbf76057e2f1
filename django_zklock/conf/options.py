"""The options of a lock, and the readers that check each of them, in a call or in the settings."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, get_args

from django.db import DEFAULT_DB_ALIAS

from django_zklock.conf import arguments
from django_zklock.conf.errors import LONGEST_WAIT, InvalidValue, Problems, is_text, seconds
from django_zklock.conf.table import boolean, must_be, whole_number
from django_zklock.core.queue import markers
from django_zklock.core.queue.operator_hold import LONGEST

ABORT_ON: Final = get_args(arguments.AbortOn)
KIND: Final = get_args(arguments.KindOfLock)
MOST_PERMITS: Final = markers.MOST_PERMITS
DEFAULT_TIMEOUT: Final = 5.0
"""Seconds to wait for a lock in all code but tasks."""
LONG_HELD: Final = 60.0
"""Seconds from which on pages and commands call a lock long held, unless the admin has another `long_held`."""


class Unset(enum.Enum):
    """The type of `UNSET`. None has another meaning: a timeout of None waits without limit."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return self.name


UNSET: Final = Unset.UNSET
"""An option that was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of one lock, or of all; `UNSET` where they are not given. `conf.arguments` explains them."""

    path: str | None = None
    """A path template. None in `DEFAULTS`, and for a lock without an entry, whose name is the template."""
    timeout: float | Unset | None = UNSET
    on_conflict: str | Unset = UNSET
    abort_on: str | Unset = UNSET
    grace: float | Unset = UNSET
    reentrant: bool | Unset = UNSET
    atomic: tuple[str, ...] | Unset = UNSET
    release_on: str | Unset = UNSET
    kind: str | Unset = UNSET
    limit: int | Unset | None = UNSET
    compat: str | Unset | None = UNSET
    max_hold: float | Unset | None = UNSET
    warn_after: float | Unset | None = UNSET
    min_hold: float | Unset = UNSET
    linger: float | Unset = UNSET
    max_waiters: int | Unset | None = UNSET
    max_conflicts: int | Unset | None = UNSET
    skip_value: Any = UNSET
    on_lost: str | Unset = UNSET

    def given(self) -> dict[str, Any]:
        """Return the options that are given."""
        options = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not UNSET}
        if self.path is None:
            del options["path"]
        return options

    def merged_over(self, other: LockOptions) -> LockOptions:
        """Return these options, with the gaps filled from `other`."""
        if other is NOT_GIVEN:
            return self
        own = self.given()
        return replace(other, **own) if own else other

    def over_defaults(self, defaults: LockOptions) -> LockOptions:
        """
        Return these options, with the gaps filled from those of all locks.

        `kind` and `limit` together decide the type of the lock. If these options have one of the two, the other one is
        not taken from the defaults.
        """
        if self.kind is not UNSET and isinstance(defaults.limit, int):
            defaults = replace(defaults, limit=UNSET)
        if isinstance(self.limit, int) and defaults.kind is not UNSET:
            defaults = replace(defaults, kind=UNSET)
        return self.merged_over(defaults)


NOT_GIVEN: Final = LockOptions()
"""No options."""


def given_options(options: Mapping[str, object]) -> LockOptions:
    """
    Return the options of a call, checked like those of the settings.

    Raises `ValueError`, which names all invalid options.
    """
    if not options:
        return NOT_GIVEN
    try:
        return _checked_once(tuple((name, type(value), value) for name, value in options.items()))
    except TypeError:  # a list, for example, cannot be a key
        return _checked(options)


@functools.lru_cache(maxsize=1024)  # equal options are one object: `Config.specs` finds specs by its id
def _checked_once(options: tuple[tuple[str, type, object], ...]) -> LockOptions:
    return _checked({name: value for name, _, value in options})


def _checked(options: Mapping[str, object]) -> LockOptions:
    problems = Problems()
    checked = read_options(options, "", problems)
    if problems:
        raise ValueError(" ".join(map(str, problems)))
    problem = contradiction(checked)
    if problem:
        raise ValueError(f"The call has {problem}; change one of them.")
    return checked


def contradiction(options: LockOptions) -> str:
    """Return which options exclude each other, as a part of a sentence; empty if none do."""
    max_hold, min_hold = options.max_hold, options.min_hold
    if isinstance(options.limit, int) and options.kind in ("read", "write"):
        return f'limit={options.limit} and kind="{options.kind}", but a semaphore has no sides'
    if isinstance(options.compat, str) and min_hold not in (UNSET, 0):
        return f'min_hold and compat="{options.compat}", but other clients do not know the minimum hold'
    if isinstance(options.compat, str) and isinstance(options.limit, int):
        both = f'limit={options.limit} and compat="{options.compat}"'
        return f"{both}, but semaphores cannot share a queue with other clients"
    if isinstance(max_hold, float) and isinstance(min_hold, float) and max_hold < min_hold:
        return f"max_hold={max_hold:g}, which is less than min_hold={min_hold:g}"
    if options.linger not in (UNSET, 0):
        return _contradiction_of_linger(options)
    return ""


def _contradiction_of_linger(options: LockOptions) -> str:
    linger = f"linger={options.linger:g}"
    if isinstance(options.limit, int):
        return f"{linger} and limit={options.limit}, but only exclusive locks linger"
    if options.kind == "read":
        return f'{linger} and kind="read", but only exclusive locks linger'
    if options.min_hold not in (UNSET, 0):
        return f"{linger} and min_hold, which keeps the lock from the next owners in this process, too"
    return ""


def read_options(value: object, where: str, problems: Problems, *, more: tuple[str, ...] = ()) -> LockOptions:
    """Read the options of one lock, or of all. The keys in `more` are allowed, too, but not read here."""
    if not isinstance(value, Mapping):
        problems.add("E009", f"{where} is a {type(value).__name__}, not a dict.", 'For example {"timeout": 5}.')
        return NOT_GIVEN
    problems.add_unknown_keys(where, value, (*more, *_OPTIONS))
    options: dict[str, Any] = {}
    for key, (reader, expected) in _OPTIONS.items():
        if key in value:
            try:
                options[key] = reader(value[key])
            except (TypeError, ValueError):
                name = f'{where}["{key}"]' if where else key
                hint = "Change it, or remove it to use the default." if where else ""
                problems.add("E009", f"{name} {must_be(expected, value[key])}.", hint)
    return LockOptions(**options) if options else NOT_GIVEN


_Reader: TypeAlias = Callable[[object], object]


def _or_none(reader: _Reader) -> _Reader:
    """Return a reader that accepts None, too."""
    return lambda value: None if value is None else reader(value)


def _seconds(value: object, most: float = LONGEST_WAIT) -> float:
    number = seconds(value)
    if number is None or number > most:
        raise InvalidValue
    return number


def _positive(value: object) -> float:
    number = _seconds(value)
    if not number:
        raise InvalidValue
    return number


def _limit(value: object) -> object:
    if not is_limit(value):
        raise InvalidValue
    return value


def is_limit(value: object) -> bool:
    """Return whether a semaphore can have this many permits."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PERMITS


def _json(value: object) -> object:
    json.dumps(value)
    return value


def _databases(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (DEFAULT_DB_ALIAS,) if value else ()
    aliases = [value] if isinstance(value, str) else value
    if not isinstance(aliases, (list, tuple)) or not all(map(is_text, aliases)):
        raise InvalidValue
    return tuple(dict.fromkeys(aliases))


def _word(words: tuple[str, ...], value: object) -> object:
    if value not in words:
        raise InvalidValue
    return value


def _choice(literal: Any) -> tuple[_Reader, str]:
    words = get_args(literal)
    return functools.partial(_word, words), f"one of: {', '.join(words)}"


_OPTIONS: Final[Mapping[str, tuple[_Reader, str]]] = {
    "timeout": (
        _or_none(_seconds),
        f"a number of seconds (0 = do not wait, None = no limit; at most {LONGEST_WAIT:.0f})",
    ),
    "on_conflict": _choice(arguments.OnConflict),
    "abort_on": _choice(arguments.AbortOn),
    "grace": (_seconds, f"a number of seconds from 0 to {LONGEST_WAIT:.0f}"),
    "reentrant": (boolean, "True or False"),
    "atomic": (_databases, "True, False, the alias of a database, or a list of aliases"),
    "release_on": _choice(arguments.ReleaseOn),
    "kind": _choice(arguments.KindOfLock),
    "limit": (_or_none(_limit), f"a number of permits from 1 to {MOST_PERMITS}, or None (no semaphore)"),
    "compat": (
        _or_none(functools.partial(_word, get_args(arguments.Compat))),
        '"kazoo", or None (our own names, whose queue processes of Curator share)',
    ),
    "max_hold": (_or_none(_positive), f"a number of seconds above 0 (None = no limit; at most {LONGEST_WAIT:.0f})"),
    "warn_after": (_or_none(_positive), f"a number of seconds above 0 (None = no warning; at most {LONGEST_WAIT:.0f})"),
    "min_hold": (functools.partial(_seconds, most=LONGEST), f"a number of seconds from 0 to {LONGEST:.0f} (a week)"),
    "linger": (_seconds, f"a number of seconds from 0 to {LONGEST_WAIT:.0f}"),
    "max_waiters": (_or_none(whole_number), "a whole number from 0, or None (no limit)"),
    "max_conflicts": (_or_none(whole_number), "a whole number from 0, or None (no limit)"),
    "skip_value": (_json, "a value that JSON can represent; leave it out to have a skipped task end as REVOKED"),
    "on_lost": _choice(arguments.OnLost),
}
"""The reader of each option, and the values that it accepts, as text. For other values it raises an error."""

OPTION_NAMES: Final = tuple(_OPTIONS)
