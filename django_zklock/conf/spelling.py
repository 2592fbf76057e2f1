"""
Warn of names of locks that look misspelt, of paths that lose the options of their entries, and of "None" in a name.

With `STRICT`, what is no entry is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from django_zklock.conf import Config
from django_zklock.conf.arguments import UNSET
from django_zklock.conf.options import LockOptions
from django_zklock.exceptions import InvalidLockName, warn
from django_zklock.names.field_values import NO_VALUES
from django_zklock.names.template import Template

MOST_CHECKED: Final = 1000  # names; those that may be formatted are not looked at after that
SIMILAR: Final = 0.8  # ratio of `difflib`, at most 1.0, from which a word counts as misspelt
_OWN: Final = "celery-beat/"  # the lock of our scheduler for Celery needs no entry
_DIGITS: Final = re.compile(r"\d+")
_FIELD: Final = re.compile(r"\{[^{}:]*")  # without the end of {url:digest}, which makes another key
_SEPARATOR: Final = re.compile(r"[/:._-]")


def check_spelling(config: Config, name: str, given: LockOptions, known: Collection[str]) -> None:
    """
    Check the name of a lock, once for each template, and once for all others that differ in digits only.

    A misspelt name of an entry of `LOCKS`, or a misspelt path of one, is a lock of its own that protects nothing. The
    path of an entry is its lock, but without its options. Of these, the caller uses the `known` ones that are not
    `given`. Raises `InvalidLockName` with `STRICT`.
    """
    if name in config.locks or name in config.checked_names:
        return
    _warn_of_none(config, name)
    is_formatted = "{" not in name  # perhaps by an f-string: there may be millions of them
    checked = _DIGITS.sub("", name) if is_formatted else name
    is_checked = checked in config.checked_names or (is_formatted and len(config.checked_names) >= MOST_CHECKED)
    if (is_checked or not config.locks) and not config.strict:
        return
    entries = _entries_of(config, name)
    is_separate = not entries and not name.startswith(_OWN)
    if is_separate and config.strict:
        text = f'{_fault(name)}. Add it there, because ZKLOCK["STRICT"] is True. {_meant(config, name)}'
        raise InvalidLockName(text.rstrip())
    if is_checked:
        return
    lost = {entry: _lost_options(config, entry, given, known) for entry in entries if _is_path(config, entry, name)}
    has_all = not all(lost.values())
    if has_all and all(len(config.locks[entry]) > 1 for entry in lost):
        return  # another call may not give what this one gives
    config.checked_names.add(checked)  # before the warning, which may be an error
    if lost and not has_all:
        _warn_of_lost_options(config, name, lost)
    elif is_separate and (meant := _meant(config, name)):
        _warn_once(config, name, f"{_fault(name)}, so it is a separate lock.", f"{meant} If not, add it to LOCKS.")


def _entries_of(config: Config, name: str) -> tuple[str, ...]:
    """Return the entries whose path can become the key of this lock, or an example of its keys."""
    entries = config.entries_of_templates.get(name)
    if entries is None:
        entries = config.entries_of_key(Template.parse(name).example)
        if "{" in name:
            config.entries_of_templates[name] = entries
    return entries


def _is_path(config: Config, entry: str, name: str) -> bool:
    """Return whether one of these names is written as the path of the entry. A path of fields only fits any name."""
    path = config.locks[entry]["path"]
    shape = _FIELD.sub("{", path)
    return _FIELD.sub("{", name) == shape or ("{" not in name and bool(shape.replace("{}", "").strip("/")))


def _lost_options(config: Config, entry: str, given: LockOptions, known: Collection[str]) -> list[str]:
    """Return the options of an entry that a call with its path does not have."""
    return [
        option
        for option, value in config.locks[entry].items()
        if option in known and option not in given and config.defaults.get(option, UNSET) != value
    ]


def _warn_of_lost_options(config: Config, name: str, lost: Mapping[str, list[str]]) -> None:
    """Warn that a call with a path does not have the options of an entry, nor those of another one with that path."""
    options = " or ".join(f"{' and '.join(names)} of {entry!r}" for entry, names in lost.items())
    fields = {field for entry in lost for field in Template.parse(config.locks[entry]["path"]).fields}
    differ = sorted(fields.difference(Template.parse(name).fields))
    hint = f", which has the field {' and '.join(f'{{{field}}}' for field in differ)}" if differ else ""
    _warn_once(
        config,
        name,
        f'{name!r} is the path of an entry of ZKLOCK["LOCKS"], not its name, so the lock does not have {options}.',
        f"Write the name {' or '.join(map(repr, lost))}{hint}, or give these options here.",
    )


def _warn_once(config: Config, name: str, fault: str, remedy: str) -> None:
    """Warn. There may be many names with values, so warn of one of those with this remedy."""
    is_formatted = "/" in name and "{" not in name
    if not (is_formatted and remedy in config.checked_names):
        config.checked_names.add(remedy)
        warn(f"{fault} {remedy}")


def _fault(name: str) -> str:
    return f'{name!r} is not an entry of ZKLOCK["LOCKS"], nor the path of one'


def _warn_of_none(config: Config, name: str) -> None:
    """Warn once of a "None" in a name, which is then a part of it in `checked_names`: names with one may be many."""
    missing = next((part for part in name.split("/") if part in NO_VALUES), None)
    if missing is not None and "" not in config.checked_names:
        config.checked_names.add("")
        warn(f"{name!r} has the part {missing!r}, the text of no value. Use a field such as {{pk}}: it refuses None.")


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
    texts = [_FIELD.sub("{", text).replace(":digest}", "}").lower() for text in (name, path)]
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
