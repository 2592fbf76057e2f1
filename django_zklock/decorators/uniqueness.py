"""Unique Celery tasks: what the options of `zk_locked` mean for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniqueness:
    """How a task is unique."""

    done: bool = False
    """Whether it is unique until it is done; else until it starts."""
    on_duplicate: str = "return"
    """Whether a later caller gets the first task's result ("return"), or an error ("raise")."""
    seconds: float | None = None
    """How long a reservation counts while no process runs the task; None: until it is released."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Uniqueness | None:
        """Return how a task with these options is unique; None if it is not. Raises `ValueError`."""
        unique = options.get("unique")
        on_duplicate = options.get("on_duplicate")
        seconds: Any = options.get("unique_for")
        if unique is None:
            if on_duplicate is not None or seconds is not None:
                raise ValueError('on_duplicate and unique_for need unique="until_start" or unique="until_done".')
            return None
        if unique not in ("until_start", "until_done"):
            raise ValueError(f'unique must be "until_start" or "until_done"; got {unique!r}.')
        if on_duplicate not in (None, "return", "raise"):
            raise ValueError(f'on_duplicate must be "return" or "raise"; got {on_duplicate!r}.')
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if seconds is not None and not _is_span(seconds):
            raise ValueError(f"unique_for must be a number of seconds above 0, or a timedelta; got {seconds!r}.")
        return cls(done=unique == "until_done", on_duplicate=on_duplicate or "return", seconds=seconds)


def _is_span(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
