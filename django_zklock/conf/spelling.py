"""Find bare names that are not in `ZKLOCK["LOCKS"]`: misspelt ones get a warning, and with `STRICT` each is refused."""

from __future__ import annotations

import difflib
import re
import sys
import warnings

from django_zklock.conf import Config
from django_zklock.exceptions import InvalidLockName

SIMILAR = 0.85  # of 1.0, the ratio of `difflib` from which a name looks like a misspelt one
_DIGITS = re.compile(r"\d+")


def check_spelling(config: Config, name: str) -> None:
    """
    Look at the name of a lock, once for each name.

    A name is bare if it has neither a slash nor a field. A bare name that is no entry of `LOCKS` is a lock of its own,
    so a misspelt name of an entry protects nothing. Raises `InvalidLockName` with `STRICT`.
    """
    if name in config.locks or name in config.checked_names or not (config.locks or config.strict):
        return
    if "/" not in name and "{" not in name:
        close = difflib.get_close_matches(name, config.locks, n=1, cutoff=SIMILAR)
        meant = f"Did you mean {close[0]!r}?" if close else ""
        if config.strict:
            raise InvalidLockName(
                f'The lock name {name!r} is no entry of ZKLOCK["LOCKS"], and ZKLOCK["STRICT"] is True. {meant}'.rstrip()
            )
        if meant and not _differ_in_digits(name, close[0]):
            config.checked_names.add(name)  # before the warning, which may be an error
            warnings.warn(
                f'The lock name {name!r} is no entry of ZKLOCK["LOCKS"], so it is another lock. {meant} '
                "If it is another one, add it to LOCKS.",
                stacklevel=_frames_of_package(),
            )
    config.checked_names.add(name)


def _differ_in_digits(one: str, other: str) -> bool:
    return _DIGITS.sub("", one) == _DIGITS.sub("", other)


def _frames_of_package() -> int:
    """Return the stack level, for `warnings.warn` in the calling function, of the first frame outside this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_zklock."):
        frame = frame.f_back
        level += 1
    return level
