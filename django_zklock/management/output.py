"""The output of the sub-commands: JSON for programs, tables and lines for people, escaped for the terminal."""

from __future__ import annotations

import json as json_module
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from django.core.management.base import OutputWrapper

from django_zklock.core.queue.escaping import printable

CELL: Final = 200  # characters of one cell or name
LINE: Final = 4000  # characters of one line


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


def write_json(out: Output, answer: object, *, lines: bool = False) -> None:
    """Write JSON in ASCII, where each control character is escaped; with `lines`, on one line."""
    out.write(json_module.dumps(answer, indent=None if lines else 2) + "\n")
    out.flush()


def write_answer(out: Output, answer: Mapping[str, object], *lines: str, json: bool) -> None:
    """Write what a sub-command has done: the answer as JSON, or these lines for people."""
    if json:
        write_json(out, answer)
        return
    for line in lines:
        write_line(out, line)


def write_table(
    out: Output,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    colours: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
) -> None:
    """Write a table in columns, those in `numbers` to the right; `colours` style words. The last column may be long."""
    lines = [[title.upper() for title in head]]
    lines += [[*(printable(cell, CELL) for cell in row[:-1]), printable(row[-1], LINE)] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = []
        for title, cell, width in zip(head, line, widths, strict=True):
            space, shown = " " * (width - _width(cell)), colours.get(cell, str)(cell)
            padded.append(space + shown if title in numbers else shown + space)
        out.write("  ".join(padded).rstrip() + "\n")


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
