"""Collect the problems of the settings, or of the options of a call, so that one error names them all."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

# Seconds: 24 days. ZooKeeper stores a session timeout in milliseconds, in 32 bits. All waits have the same limit.
LONGEST_WAIT: Final = 2_147_483.0


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
                self.add("E002", f'{where} has an unknown key "{key}".', _did_you_mean(key, known))


def _did_you_mean(word: object, known: Collection[str]) -> str:
    by_lower_case = {name.lower(): name for name in known}
    meant = "url" if str(word).lower() in ("host", "hosts", "location", "servers") else str(word).lower()
    near = difflib.get_close_matches(meant, by_lower_case, n=1)
    if near:
        return f'Did you mean "{by_lower_case[near[0]]}"?'
    return f"Known keys: {', '.join(known)}."


def seconds(value: object) -> float | None:
    """Return a number or a timedelta in seconds; None for anything else, or if it is not from 0 to `LONGEST_WAIT`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= LONGEST_WAIT else None  # also None for NaN


def is_text(value: object) -> bool:
    """Return whether `value` is a non-empty string that UTF-8 can encode, so without lone surrogates."""
    try:
        return isinstance(value, str) and len(value.encode()) > 0
    except UnicodeEncodeError:
        return False
