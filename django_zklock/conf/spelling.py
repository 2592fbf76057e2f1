"""
Warn of names of locks that look misspelt, of paths that lose the options of their entries, and of "None" in a name.

With `STRICT`, what is no entry is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Final

from django_zklock.conf import Config
from django_zklock.conf.arguments import UNSET
from django_zklock.conf.options import LockOptions
from django_zklock.exceptions import InvalidLockName, warn
from django_zklock.names.field_values import NO_VALUES
from django_zklock.names.template import Template, shape

MOST_CHECKED: Final = 1000  # names; those that may be formatted are not looked at after that
SIMILAR: Final = 0.8  # ratio of `difflib`, at most 1.0, from which a word counts as misspelt
_OWN: Final = "celery-beat/"  # the lock of our scheduler for Celery needs no entry
_DIGITS: Final = re.compile(r"\d+")
_SEPARATOR: Final = re.compile(r"[/:._-]")


def check_spelling(config: Config, name: str, given: LockOptions, known: Collection[str]) -> None:
    """
    Check the name of a lock, once for each template, and once for all others that differ in digits only.

    A misspelt name of an entry of `LOCKS`, or a misspelt path of one, is a lock of its own that protects nothing. The
    path of an entry is its lock, but without its options. Of these, the caller uses the `known` ones that are not
    `given`. Raises `InvalidLockName` with `STRICT`.
    """
    if name in config.locks:
        return
    is_formatted = "{" not in name  # perhaps by an f-string: there may be millions of them
    is_each = is_formatted and config.strict  # names that differ in digits only may be two entries
    call = (_DIGITS.sub("", name) if is_formatted else name, tuple(given), tuple(known))
    if call in config.checked_names and not is_each:
        return
    _warn_of_missing(config, name)
    if is_formatted and not is_each and len(config.checked_names) >= MOST_CHECKED:
        return
    _check_entries(config, name, set(known) - given.keys(), () if is_each else (call,))


def _warn_of_missing(config: Config, name: str) -> None:
    """Warn once of a "None" in a name: names with one may be many."""
    for missing in NO_VALUES.intersection(name.split("/")):
        text = f"{name!r} has the part {missing!r}, the text of no value. Use a field such as {{pk}}: it refuses None."
        _warn_once(config, "a missing value", text)


def _check_entries(config: Config, name: str, used: Collection[str], checked: tuple[object, ...]) -> None:
    """Compare a name with the entries; remember what is `checked` by that."""
    entries = config.entries_of_key(Template.parse(name).example)
    if config.strict and not entries and not name.startswith(_OWN):
        text = f'{_fault(name)}. Add it there, because ZKLOCK["STRICT"] is True. {_meant(config, name)}'
        raise InvalidLockName(text.rstrip())
    config.checked_names.update(checked)  # before a warning, which may be an error
    if entries:
        _warn_of_lost_options(config, name, entries, used)
    else:
        _warn_if_similar(config, name)


def _fault(name: str) -> str:
    return f'{name!r} is not an entry of ZKLOCK["LOCKS"], nor the path of one'


def _warn_if_similar(config: Config, name: str) -> None:
    """Warn if a name that is no entry is similar to one."""
    meant = _meant(config, name)
    if meant:
        is_formatted = "/" in name and "{" not in name
        text = f"{_fault(name)}, so it is a separate lock. {meant} If not, add it to LOCKS."
        _warn_once(config, meant if is_formatted else text, text)


def _warn_of_lost_options(config: Config, name: str, entries: Sequence[str], used: Collection[str]) -> None:
    """Warn of a path as a name, unless the call has all options of an entry with that path."""
    lost = {
        entry: [option for option in used if _differs(config, entry, option)]
        for entry in entries
        if _is_path(name, config.locks[entry]["path"])
    }
    if lost and all(lost.values()):
        names = " or ".join(map(repr, lost))
        options = ", ".join(sorted(set().union(*lost.values())))
        text = (
            f'{name!r} is the path of an entry of ZKLOCK["LOCKS"], not its name, so the lock does not have the options '
            f"of the entry: {options}. Write the name, {names}, or give these options here."
        )
        _warn_once(config, text if "{" in name else names, text)


def _differs(config: Config, entry: str, option: str) -> bool:
    """Return whether a lock has another value of the option if it has the options of this entry."""
    own = config.locks[entry]
    return option in own and config.defaults.get(option, UNSET) != own[option]


def _is_path(name: str, path: str) -> bool:
    """Return whether a name that has locks of this path is written as it. One that begins with a field fits many."""
    parts, others = shape(name).split("/"), shape(path).split("/")
    if path.startswith("{"):
        return parts == others
    return all(part == other or "{" not in part for part, other in zip(parts, others, strict=True))


def _warn_once(config: Config, key: str, text: str) -> None:
    """Warn once with this key: there may be many names with values."""
    if key not in config.checked_names:
        config.checked_names.add(key)
        warn(text)


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
    texts = [shape(text).replace(":digest}", "}").lower() for text in (name, path)]
    words, others = map(_SEPARATOR.split, texts)
    if len(words) != len(others):
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
