"""The commands that pages, logs and errors print, to be pasted into a shell. Each value in them is data."""

from __future__ import annotations

import shlex
import sys

from django_zklock.core.queue.escaping import printable


def command(subcommand: str, *keys: str, **options: object) -> str:
    """
    Return a command of `manage.py zklock`, with the options that are not None.

    Django finds `--settings` and `--pythonpath`, which run code, anywhere before `--`. So a value is in one argument
    with its option, and keys come after `--`.
    """
    given = [f"--{name.replace('_', '-')}={word(str(value))}" for name, value in options.items() if value is not None]
    return " ".join(["python manage.py zklock", subcommand, *given, *(["--", *map(word, keys)] if keys else [])])


def word(text: str) -> str:
    """Return a text as one word for a shell. What does not print is spelled, as in all texts that we show."""
    return shlex.quote(printable(text, sys.maxsize))
