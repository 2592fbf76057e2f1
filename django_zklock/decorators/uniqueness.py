"""Read the options of `zk_locked` that make a Celery task unique."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_zklock.conf import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniqueness:
    """How a task is unique."""

    until_done: bool = False
    """Whether it is unique until it is done; if not, until it starts."""
    on_duplicate: str = "return"
    """Whether a later caller gets the first task's result ("return"), or an error ("raise")."""
    seconds: float | None = None
    """How long a reservation counts while no process runs the task; None: until it is released."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Uniqueness | None:
        """Return how a task with these options is unique; None if it is not. Raises `ValueError`."""
        unique = options.get("unique")
        on_duplicate = options.get("on_duplicate")
        unique_for = options.get("unique_for")
        if unique is None:
            if on_duplicate is not None or unique_for is not None:
                raise ValueError('on_duplicate and unique_for need unique="until_start" or unique="until_done".')
            return None
        if unique not in ("until_start", "until_done"):
            raise ValueError(f'unique must be "until_start" or "until_done"; got {unique!r}.')
        if on_duplicate not in (None, "return", "raise"):
            raise ValueError(f'on_duplicate must be "return" or "raise"; got {on_duplicate!r}.')
        seconds = None if unique_for is None else errors.seconds(unique_for)
        if unique_for is not None and not seconds:
            raise ValueError(f"unique_for must be a number of seconds above 0, or a timedelta; got {unique_for!r}.")
        return cls(until_done=unique == "until_done", on_duplicate=on_duplicate or "return", seconds=seconds)
