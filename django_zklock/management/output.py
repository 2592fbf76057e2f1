"""The output of the sub-commands: JSON for programs, tables and lines for people, escaped for the terminal."""

from __future__ import annotations

import json as json_module
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from django.core.management.base import OutputWrapper

from django_zklock.core.queue.escaping import printable

CELL: Final = 200  # characters of one cell
LINE: Final = 4000  # characters of one line
LEAST: Final = 10  # columns of a terminal that a text keeps

Output: TypeAlias = OutputWrapper
"""Where a sub-command writes."""


def write_line(out: Output, text: str) -> None:
    """Write one line, escaped, and show it at once: a program may wait for it at the other end of a pipe."""
    out.write(f"{printable(text, LINE)}\n")
    out.flush()


def discard(out: Output) -> None:
    """Throw away what is written from now on, after a failed write. Python would write the rest again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def write_json(out: Output, answer: object) -> None:
    """Write JSON in ASCII, where each control character is escaped."""
    out.write(json_module.dumps(answer, indent=2) + "\n")
    out.flush()


def write_table(
    out: Output,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
    cut: Sequence[str] = (),
) -> None:
    """Write a table; `colours` style words. On a terminal, the texts in the columns `cut` share what room there is."""
    lines = [[title.upper() for title in head], *([printable(cell, CELL) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if out.isatty() and cut:
        excess = sum(widths) + 2 * len(head) - shutil.get_terminal_size().columns
        share = max(0, excess) // len(cut)
        for index in map(head.index, cut):
            widths[index] = min(widths[index], max(LEAST, widths[index] - share))
    for line in lines:
        cells = [_cell(text, width, colours.get(text, str)) for text, width in zip(line, widths, strict=True)]
        out.write("  ".join(cells).rstrip() + "\n")


def _cell(text: str, width: int, style: Callable[[str], str]) -> str:
    """Return a text with this width: cut at its end, or with spaces behind it."""
    shown = text if len(text) <= width else f"{text[: width - 1]}…"
    return style(shown) + " " * (width - len(shown))
