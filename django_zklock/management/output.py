"""The output of the sub-commands: JSON for programs, tables and lines for people, escaped for the terminal."""

from __future__ import annotations

import json as json_module
import os
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from django.core.management.base import OutputWrapper

from django_zklock.core.queue.escaping import printable

CELL: Final = 200  # characters of one cell or name
LINE: Final = 4000  # characters of one line
GAP: Final = 2  # columns of a terminal between two of a table
LEAST: Final = 10  # columns of a terminal that a text keeps
LONG: Final = 30  # the same of a last column that goes on below
IDENTIFYING: Final = ("session", "thread", "token")
"""Columns that programs want. They are left out first; JSON and `--wide` have them."""


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
    width: int | None = None,
    drop: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """
    Write a table in columns, those in `numbers` to the right; `colours` style words. The last column may be long.

    To fit into `width`, leave out those that identify; then cut the texts in `cut`, and if that is not enough, leave
    out those in `drop`. A last column that is not cut goes on in further lines.
    """
    columns = _columns(head, rows)
    widths = {title: max(map(_width, cells)) for title, cells in columns.items()}
    wraps = head[-1] if width is not None and head[-1] not in (*cut, *IDENTIFYING) else None
    if width is not None:
        least = dict.fromkeys(cut, LEAST)
        _fit(widths, width, drop, least if wraps is None else {**least, wraps: LONG})

    def padded(title: str, text: str) -> str:
        text = _cut(text, widths[title])
        space, shown = " " * (widths[title] - _width(text)), colours.get(text, str)(text)
        return space + shown if title in numbers else shown + space

    for index in range(len(rows) + 1):
        cells = {title: columns[title][index] for title in widths}
        for line in _wrapped(cells, wraps, widths):
            out.write("  ".join(padded(title, text) for title, text in line.items()).rstrip() + "\n")


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the cells of each column, escaped, below its title."""
    lines = [[title.upper() for title in head]]
    lines += [[*(printable(cell, CELL) for cell in row[:-1]), printable(row[-1], LINE)] for row in rows]
    return dict(zip(head, zip(*lines, strict=True), strict=True))


def _wrapped(cells: dict[str, str], last: str | None, widths: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Yield the lines of a row. The last column goes on in further ones, unless it is None."""
    if last is None:
        yield cells
        return
    first, *others = textwrap.wrap(cells[last], widths[last]) or [""]
    yield {**cells, last: first}
    for part in others:
        yield {**dict.fromkeys(cells, ""), last: part}


def width_of(out: Output, *, wide: bool = False) -> int | None:
    """Return the width of the terminal, which COLUMNS sets, too; None for a pipe, and with `wide`: show all."""
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    return None if wide or not (out.isatty() or is_set) else shutil.get_terminal_size().columns


def _fit(widths: dict[str, int], width: int, drop: Sequence[str], least: Mapping[str, int]) -> None:
    """Leave out columns, and narrow those in `least`, the widest first, until all fit."""

    def excess(*, cut: bool) -> int:
        rooms = (min(room, least.get(title, room)) if cut else room for title, room in widths.items())
        return sum(rooms) + GAP * (len(widths) - 1) - width

    for title in (*IDENTIFYING, *drop):
        if title in widths and excess(cut=title not in IDENTIFYING) > 0:
            del widths[title]
    while excess(cut=False) > 0 and (long := [title for title in widths if widths[title] > least.get(title, width)]):
        widths[max(long, key=lambda title: widths[title])] -= 1


def _cut(text: str, width: int) -> str:
    """Return a text of at most this width, with an ellipsis in its middle."""
    if _width(text) <= width:
        return text
    kept = len(text) - 1
    while _width(text[: (kept + 1) // 2]) + _width(text[len(text) - kept // 2 :]) >= width:
        kept -= 1
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
