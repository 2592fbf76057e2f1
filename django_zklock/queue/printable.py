"""How texts of unknown origin are shown (in one line that no terminal, log or page would obey), and session ids."""

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


def session_hex(session_id: int | None) -> str:
    """Return a session id as ZooKeeper prints it, in unsigned hexadecimal; empty for none."""
    return f"{session_id & 0xFFFFFFFFFFFFFFFF:#x}" if session_id else ""


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
