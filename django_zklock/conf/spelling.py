"""Warn of misspelt names of entries in `ZKLOCK["LOCKS"]`, and of "None" in a name; with `STRICT`, refuse bare names."""

from __future__ import annotations

import difflib
import re
import sys
import warnings

from django_zklock.conf import Config
from django_zklock.exceptions import InvalidLockName

SIMILAR = 0.8  # ratio of `difflib`, at most 1.0, from which a name counts as misspelt
_DIGITS = re.compile(r"\d+")


def check_spelling(config: Config, name: str) -> None:
    """
    Check the name of a lock, once for each bare name.

    A name is bare if it has neither a slash nor a field. A bare name that is no entry of `LOCKS` is a lock of its own,
    so a misspelt name of an entry protects nothing. Raises `InvalidLockName` with `STRICT`.
    """
    # An empty string in `checked_names` says that a "None" was warned of.
    has_none = "None" in name and "" not in config.checked_names and "None" in name.split("/")
    is_bare = "/" not in name and "{" not in name and bool(config.locks or config.strict)
    if not (is_bare or has_none) or name in config.locks or name in config.checked_names:
        return
    warning = ""
    if has_none:
        warning = f"{name!r} has the part 'None', the text of no value. Use a field such as {{pk}}: it refuses None."
    if is_bare:
        close = difflib.get_close_matches(name, config.locks, n=1, cutoff=SIMILAR)
        meant = f"Did you mean {close[0]!r}?" if close else ""
        if config.strict:
            raise InvalidLockName(
                f'{name!r} is not an entry of ZKLOCK["LOCKS"], and ZKLOCK["STRICT"] is True. {meant}'.rstrip()
            )
        if meant and _DIGITS.sub("", name) != _DIGITS.sub("", close[0]):  # report1 and report2 differ on purpose
            fault = f'{name!r} is not an entry of ZKLOCK["LOCKS"], so it is a separate lock.'
            warning = f"{fault} {meant} If not, add it to LOCKS."
    config.checked_names.add(name if is_bare else "")  # before the warning, which may be an error
    if warning:
        warnings.warn(warning, stacklevel=frames_of_package())


def frames_of_package() -> int:
    """Return the stack level, for `warnings.warn` in the calling function, of the first frame outside this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_zklock."):
        frame = frame.f_back
        level += 1
    return level
