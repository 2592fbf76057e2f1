"""Knows the options of a lock: what may be given for each, in a call or in the settings, and what it means."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from django.db import DEFAULT_DB_ALIAS

from django_zklock.conf import arguments
from django_zklock.conf.errors import LONGEST as LONGEST_WAIT
from django_zklock.conf.errors import Findings, is_text, seconds
from django_zklock.queue import markers
from django_zklock.queue.escaping import printable
from django_zklock.queue.operator_hold import LONGEST

ON_CONFLICT: Final = get_args(arguments.OnConflict)
ON_LOST: Final = get_args(arguments.OnLost)
ABORT_ON: Final = get_args(arguments.AbortOn)
RELEASE_ON: Final = get_args(arguments.ReleaseOn)
KIND: Final = get_args(arguments.KindOfLock)
COMPAT: Final = get_args(arguments.Compat)
MOST_PERMITS: Final = markers.MOST_PERMITS
_SHOWN: Final = 60  # characters of a value that is refused


class Unset(enum.Enum):
    """The type of `UNSET`. None would not do: a timeout of None waits without limit."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return self.name


UNSET: Final = Unset.UNSET
"""An option that was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of one lock, or of all; `UNSET` where they are not given. `conf.arguments` has their meaning."""

    path: str | None = None
    """A path template. None in `DEFAULTS`, and for a lock without an entry: its name is the template."""
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
    max_waiters: int | Unset | None = UNSET
    max_conflicts: int | Unset | None = UNSET
    skip_value: Any = UNSET
    on_lost: str | Unset = UNSET

    def merged_over(self, other: LockOptions) -> LockOptions:
        """Return these options, with the gaps filled from `other`."""
        if other is NOT_GIVEN:
            return self
        own = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not UNSET}
        if own["path"] is None:
            del own["path"]  # for which None says that it was not given
        return replace(other, **own) if own else other

    def over_defaults(self, defaults: LockOptions) -> LockOptions:
        """
        Return these options, with the gaps filled from those of all locks.

        `kind` and `limit` together say what a lock is. So who says one of them is not given the other one by what was
        said of all.
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
    Return the options that a call gave, each checked as in the settings.

    Raises `ValueError`, which names all that are invalid.
    """
    if not options:
        return NOT_GIVEN
    found = Findings()
    checked = read_options(options, "", found)
    if found:
        raise ValueError(" ".join(map(str, found)))
    problem = contradiction(checked)
    if problem:
        raise ValueError(f"The call has {problem}; change one of them.")
    return checked


def contradiction(options: LockOptions) -> str:
    """Return what is wrong with options each of which is fine, and which cannot be had together; empty if nothing."""
    longest, least = options.max_hold, options.min_hold
    if isinstance(options.limit, int) and options.kind in ("read", "write"):
        return f'limit={options.limit} and kind="{options.kind}", but a semaphore has no sides'
    if isinstance(options.compat, str) and least not in (UNSET, 0):
        return f'min_hold and compat="{options.compat}", but other clients would not know when that time is over'
    if isinstance(options.compat, str) and isinstance(options.limit, int):
        both = f'limit={options.limit} and compat="{options.compat}"'
        return f"{both}, but semaphores cannot share a queue with other clients"
    if isinstance(longest, float) and isinstance(least, float) and longest < least:
        return f"max_hold={longest:g}, which is less than min_hold={least:g}"
    return ""


def read_options(value: object, where: str, found: Findings, *, more: tuple[str, ...] = ()) -> LockOptions:
    """Read the options of one lock, or of all; `more` are keys that somebody else reads."""
    if not isinstance(value, Mapping):
        found.add("E009", f"{where} is a {type(value).__name__}, not a dict.", 'For example {"timeout": 5}.')
        return NOT_GIVEN
    found.unknown_keys(where, value, (*more, *_OPTIONS))
    options: dict[str, Any] = {}
    for key, (reader, expected) in _OPTIONS.items():
        if key in value:
            options[key] = reader(value[key])
            if options[key] is UNSET:
                given = printable(repr(value[key]), _SHOWN)
                kind = "the string " if isinstance(value[key], str) else ""
                name = f'{where}["{key}"]' if where else key
                hint = "Change it, or remove it to use the default." if where else ""
                found.add("E009", f"{name} must be {expected}; got {kind}{given}.", hint)
    return LockOptions(**options) if options else NOT_GIVEN


def _wait(value: object) -> float | Unset | None:
    return None if value is None else _pause(value)


def _pause(value: object) -> float | Unset:
    found = seconds(value)
    return UNSET if found is None else found


def _span(value: object) -> float | Unset | None:
    found = _wait(value)
    return UNSET if found == 0 else found


def _least(value: object) -> float | Unset:
    found = _pause(value)
    return found if isinstance(found, float) and found <= LONGEST else UNSET


def _permits(value: object) -> int | Unset | None:
    found = _count(value)
    return found if found is None or is_limit(found) else UNSET


def is_limit(value: object) -> bool:
    """Tell whether a semaphore can have so many permits."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PERMITS


def _flag(value: object) -> bool | Unset:
    return value if isinstance(value, bool) else UNSET


def _count(value: object) -> int | Unset | None:
    if value is None:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else UNSET


def _json(value: object) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return UNSET
    return value


def _aliases(value: object) -> tuple[str, ...] | Unset:
    if isinstance(value, bool):
        return (DEFAULT_DB_ALIAS,) if value else ()
    aliases = [value] if isinstance(value, str) else value
    if not isinstance(aliases, (list, tuple)) or not all(map(is_text, aliases)):
        return UNSET
    return tuple(dict.fromkeys(aliases))


def _one_of(words: tuple[str | None, ...], value: object) -> object:
    return value if value in words else UNSET


_OPTIONS: Final[Mapping[str, tuple[Callable[[object], object], str]]] = {
    "timeout": (
        _wait,
        f"a number of seconds (0 = do not wait, None = no limit; at most {LONGEST_WAIT:.0f})",
    ),
    "on_conflict": (functools.partial(_one_of, ON_CONFLICT), f"one of: {', '.join(ON_CONFLICT)}"),
    "abort_on": (functools.partial(_one_of, ABORT_ON), f"one of: {', '.join(ABORT_ON)}"),
    "grace": (_pause, f"a number of seconds from 0 to {LONGEST_WAIT:.0f}"),
    "reentrant": (_flag, "True or False"),
    "atomic": (_aliases, "True, False, the alias of a database, or a list of aliases"),
    "release_on": (functools.partial(_one_of, RELEASE_ON), f"one of: {', '.join(RELEASE_ON)}"),
    "kind": (functools.partial(_one_of, KIND), f"one of: {', '.join(KIND)}"),
    "limit": (_permits, f"a number of permits from 1 to {MOST_PERMITS}, or None (no semaphore)"),
    "compat": (functools.partial(_one_of, (*COMPAT, None)), f"one of: {', '.join(COMPAT)}; or None (our own names)"),
    "max_hold": (_span, f"a number of seconds above 0 (None = no limit; at most {LONGEST_WAIT:.0f})"),
    "warn_after": (
        _span,
        f"a number of seconds above 0 (None = no warning; at most {LONGEST_WAIT:.0f})",
    ),
    "min_hold": (_least, f"a number of seconds from 0 to {LONGEST:.0f} (a week)"),
    "max_waiters": (_count, "a whole number from 0, or None (no limit)"),
    "max_conflicts": (_count, "a whole number from 0, or None (no limit)"),
    "skip_value": (_json, "a value that JSON can represent; leave it out to have a skipped task end as REVOKED"),
    "on_lost": (functools.partial(_one_of, ON_LOST), f"one of: {', '.join(ON_LOST)}"),
}
"""For each option its reader, which returns `UNSET` for what it cannot use, and what it can."""

OPTION_NAMES: Final = tuple(_OPTIONS)
