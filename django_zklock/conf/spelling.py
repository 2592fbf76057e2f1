"""Warn of names of locks that look misspelt, and of "None" in a name; with `STRICT`, refuse what is no entry."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from typing import Final

from django_zklock.conf import Config
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.template import Template

MOST_CHECKED: Final = 1000  # names; formatted ones with numbers are not checked after that
SIMILAR: Final = 0.8  # ratio of `difflib`, at most 1.0, from which a word counts as misspelt
_OWN: Final = "celery-beat/"  # the lock of our scheduler for Celery needs no entry
_DIGITS: Final = re.compile(r"\d+")
_FIELD: Final = re.compile(r"\{[^{}]*\}")
_SEPARATOR: Final = re.compile(r"[/:._-]")


def check_spelling(config: Config, name: str) -> None:
    """
    Check the name of a lock, once for each bare name and each template with a field.

    A name is bare if it has neither a slash nor a field. A misspelt name of an entry of `LOCKS`, or a misspelt path of
    one, is a lock of its own that protects nothing. Raises `InvalidLockName` with `STRICT`.
    """
    if name in config.locks or name in config.checked_names:
        return
    if "None" in name:
        _warn_of_none(config, name)
    is_formatted = "/" in name and "{" not in name  # perhaps by an f-string: there may be millions of them
    if config.strict:
        if _is_separate(config, name):
            raise InvalidLockName(f'{_fault(name)}, and ZKLOCK["STRICT"] is True. {_meant(config, name)}'.rstrip())
        if not is_formatted:
            config.checked_names.add(name)
    elif config.locks:
        _warn_if_similar(config, name, _DIGITS.sub("", name) if is_formatted else name)


def _warn_if_similar(config: Config, name: str, checked: str) -> None:
    """Warn once of a name that looks like an entry. Formatted names are `checked` without numbers, and only some."""
    if checked in config.checked_names or (checked != name and len(config.checked_names) >= MOST_CHECKED):
        return
    config.checked_names.add(checked)  # before the warning, which may be an error
    meant = _meant(config, name) if _is_separate(config, name) else ""
    if meant:
        text = f"{_fault(name)}, so it is a separate lock. {meant} If not, add it to LOCKS."
        warnings.warn(text, stacklevel=frames_of_package())


def _is_separate(config: Config, name: str) -> bool:
    """Return whether this is neither our own name nor the path of an entry."""
    return not (name.startswith(_OWN) or config.entry_of_key(Template.parse(name).example))


def _fault(name: str) -> str:
    return f'{name!r} is not an entry of ZKLOCK["LOCKS"], nor the path of one'


def _warn_of_none(config: Config, name: str) -> None:
    """Warn once of a "None" in a name, which is then a part of it in `checked_names`: names with one may be many."""
    if "None" in name.split("/") and "" not in config.checked_names:
        config.checked_names.add("")
        text = f"{name!r} has the part 'None', the text of no value. Use a field such as {{pk}}: it refuses None."
        warnings.warn(text, stacklevel=frames_of_package())


def _meant(config: Config, name: str) -> str:
    """Return a question about the entry, or the path of one, that this name looks like; empty without any."""
    close = difflib.get_close_matches(name, config.locks, n=1, cutoff=SIMILAR)
    if "{" in name or "/" in name:
        close = [entry["path"] for entry in config.locks.values() if _differ_in_a_letter(name, entry["path"])]
    is_similar = close and _DIGITS.sub("", name) != _DIGITS.sub("", close[0])  # report1 and report2 differ on purpose
    return f"Did you mean {close[0]!r}?" if is_similar else ""


def _differ_in_a_letter(name: str, path: str) -> bool:
    """
    Return whether two templates have the same words but for one, which looks misspelt, or other separators.

    A formatted name has values where the template has fields.
    """
    texts = [_FIELD.sub("{}", text) for text in (name, path)]
    words, others = (_SEPARATOR.split(text.lower()) for text in texts)
    if texts[0] == texts[1] or len(words) != len(others):
        return False
    is_formatted = "{" not in name
    different = [
        (word, other)
        for word, other in zip(words, others, strict=True)
        if word != other and not (is_formatted and "{}" in other)
    ]
    return len(different) <= 1 and all(
        difflib.SequenceMatcher(None, word, other).ratio() >= SIMILAR for word, other in different
    )


def frames_of_package() -> int:
    """Return the stack level, for `warnings.warn` in the calling function, of the first frame outside this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_zklock."):
        frame = frame.f_back
        level += 1
    return level
