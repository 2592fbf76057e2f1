"""Names of locks that are no entry of `LOCKS`: those that look misspelt, and with `STRICT` all."""

from __future__ import annotations

import difflib
import re
from typing import Final

from django_zklock.conf import Config
from django_zklock.conf.table import did_you_mean
from django_zklock.exceptions import InvalidLockName, warn
from django_zklock.names.template import Template

MOST_CHECKED: Final = 1000  # words; a program may make millions of names
SIMILAR: Final = 0.8  # ratio of `difflib`, at most 1.0, from which a word counts as misspelt
_OWN: Final = "celery-beat/"  # the lock of our scheduler for Celery needs no entry
_DIGITS: Final = re.compile(r"\d+")


def check_spelling(config: Config, name: str) -> None:
    """
    Warn of a name that looks like an entry of `LOCKS`. With `STRICT`, raise `InvalidLockName` for each other name.

    The path of an entry is its lock, too, but without its options.
    """
    if name in config.locks:
        return
    what = f'{name!r} is not an entry of ZKLOCK["LOCKS"], nor the path of one'
    if config.strict:
        if not config.entries_of_key(Template.parse(name).example) and not name.startswith(_OWN):
            known = [*config.locks, *(entry["path"] for entry in config.locks.values())]
            raise InvalidLockName(f'{what}, and ZKLOCK["STRICT"] is True. Add it. {did_you_mean(name, known)}')
    elif "/" not in name:
        _warn_if_similar(config, name, what)


def _warn_if_similar(config: Config, name: str, what: str) -> None:
    """Warn once of a name that looks like an entry: it is a lock of its own, which protects nothing."""
    word = _DIGITS.sub("", name)  # report1 and report2 differ on purpose
    if word in config.checked_names or len(config.checked_names) >= MOST_CHECKED:
        return
    config.checked_names.add(word)  # before a warning, which may be an error
    entries = {_DIGITS.sub("", entry): entry for entry in config.locks}
    close = difflib.get_close_matches(word, entries, n=1, cutoff=SIMILAR)
    if close and close[0] != word:
        warn(f"{what}, so it is a separate lock. Did you mean {entries[close[0]]!r}? If not, add it to LOCKS.")
