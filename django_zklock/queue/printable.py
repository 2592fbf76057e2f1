"""How a text of unknown origin is shown: in one line, with nothing in it that a terminal, log or page would obey."""

from __future__ import annotations

MAX_SHOWN = 512
"""Characters that are shown of a text unless told otherwise."""


def printable(text: str, limit: int = MAX_SHOWN) -> str:
    r"""
    Return `text` in at most `limit` characters, of which each one prints.

    Control characters, line breaks, lone surrogates, bidirectional and zero-width characters come as `\x1b` or
    `\u202e`, so that they are seen. What is cut ends in an ellipsis. It is plain text: a page still has to escape it.
    """
    shown = text[: limit + 1]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _escaped(char) for char in shown)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
