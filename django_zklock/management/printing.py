"""Knows how answers are written: JSON for programs, tables for people, and nothing that a terminal would obey."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol

LIMIT: Final = 200  # characters of one cell
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls (escapes, line ends), invisible characters (among them those that turn the writing round), surrogates."""


class Output(Protocol):
    """Where answers are written to."""

    def write(self, text: str) -> object:
        """Write a text."""

    def flush(self) -> object:
        """Show it."""


def clean(text: str, limit: int = LIMIT) -> str:
    """Return a text of unknown origin as a terminal may show it: capped, what would steer the terminal escaped."""
    capped = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        char if unicodedata.category(char) not in _HARMFUL else char.encode("unicode_escape").decode()
        for char in capped
    )


def write_json(out: Output, answer: object, *, lines: bool = False) -> None:
    """Write JSON in ASCII, in which every control character is escaped; with `lines`, one line for each answer."""
    out.write(json.dumps(answer, indent=None if lines else 2, default=_plain) + "\n")
    out.flush()


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")


def is_terminal(out: object) -> bool:
    """Tell whether somebody looks at a terminal."""
    isatty = getattr(out, "isatty", None)
    return bool(isatty and isatty())


def write_table(
    out: Output, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Write a table: drawn by rich, if that is installed and somebody looks; in plain columns else."""
    cells = [[clean(cell) for cell in row] for row in rows]
    if is_terminal(out) and importlib.util.find_spec("rich") is not None:
        out.write(_drawn(head, cells, numbers))
    else:
        out.write(_columns(head, cells, numbers))


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> str:
    lines = [[title.upper() for title in head], *rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    text = ""
    for line in lines:
        padded = [
            " " * (width - _width(cell)) + cell if title in numbers else cell + " " * (width - _width(cell))
            for title, cell, width in zip(head, line, widths, strict=True)
        ]
        text += "  ".join(padded).rstrip() + "\n"
    return text


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _drawn(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> str:
    from rich import box  # noqa: PLC0415 - an extra
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in head:
        table.add_column(title, justify="right" if title in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # a Text, as a str would be read as rich's markup
    drawn = io.StringIO()
    Console(file=drawn, force_terminal=True, width=shutil.get_terminal_size().columns).print(table)
    return drawn.getvalue()
