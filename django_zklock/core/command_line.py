"""
The commands that pages, logs and errors print, to be pasted into a shell.

Other programs have written the values in them. So each value is data, for the shell and for each parser of options, and
all is printable ASCII: no terminal hides or reorders a part of it.
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+=:,./_-]*")  # at the beginning, zsh expands `=`
_SPECIAL: Final = re.compile(rb"[^A-Za-z0-9@%+:,./_-]")


def command(subcommand: str, *keys: str, **options: object) -> str:
    """
    Return a command of `manage.py zklock`, with the options that are not None.

    Django finds `--settings` and `--pythonpath`, which run code, anywhere before `--`. So a value is in one argument
    with its option, and keys come after `--`.
    """
    given = [f"--{name.replace('_', '-')}={word(str(value))}" for name, value in options.items() if value is not None]
    return " ".join(["python manage.py zklock", subcommand, *given, *(["--", *map(word, keys)] if keys else [])])


def zookeeper_command(servers: str, *arguments: str) -> str:
    """Return a command of `zkCli.sh`, for which a path is never an option."""
    return " ".join(map(word, ("zkCli.sh", "-server", servers, *arguments)))


def word(text: str) -> str:
    r"""
    Return a text as one word for a shell.

    Other characters than printable ASCII are escaped as in `$'a\033b'`, which bash, zsh and POSIX.1-2024 know. A NUL or
    a lone surrogate, which no argument can have, is spelled: `\x00` has four characters.
    """
    if _PLAIN.fullmatch(text):
        return text
    if text.isascii() and text.isprintable():
        return "'{}'".format(text.replace("'", "'\"'\"'"))
    data = text.replace("\0", r"\x00").encode(errors="backslashreplace")
    return "$'{}'".format(_SPECIAL.sub(lambda match: b"\\%03o" % match[0][0], data).decode())
