"""Knows how what is wrong with settings, or with the options of a call, is found and told: all of it at once."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

# ZooKeeper counts a session's timeout in milliseconds, in 32 bits. The same bound, 24 days, does for every wait.
LONGEST: Final = 2_147_483.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with the settings; `id` as in the table of `django_zklock.checks`."""

    id: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class Findings(list[Problem]):
    """The problems found so far. A reader adds to them and goes on with a default, so that one run names them all."""

    def add(self, id: str, message: str, hint: str) -> None:
        self.append(Problem(id=id, message=message, hint=hint))

    def unknown_keys(self, where: str, keys: Collection[object], known: Collection[str]) -> None:
        for key in keys:
            if key not in known:
                self.add("E002", f'{where} has an unknown key "{key}".', _did_you_mean(key, known))


def _did_you_mean(word: object, known: Collection[str]) -> str:
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), by_lower_case, n=1)
    if near:
        return f'Did you mean "{by_lower_case[near[0]]}"?'
    return f"Known keys: {', '.join(known)}."


def seconds(value: object) -> float | None:
    """Return `value` in seconds, or None if it is no time from 0 to the longest."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= LONGEST else None  # NaN is neither


def is_text(value: object) -> bool:
    """Tell if `value` is a text with something in it that can be sent; a lone surrogate cannot."""
    try:
        return isinstance(value, str) and len(value.encode()) > 0
    except UnicodeEncodeError:
        return False
