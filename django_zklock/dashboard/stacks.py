"""The stacks of the holders of a lock: asked twice, so that it is seen whether they move; the libraries folded."""

from __future__ import annotations

import re
import time
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from django.utils.translation import gettext as _

from django_zklock.report import lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import ContenderInfo

PAUSE: Final = 1.0
"""Seconds between the two."""
MAX_NAMED: Final = 3
"""Libraries that a fold names."""
_FRAME: Final = re.compile(r".+ at (.+):\d+: ")
_LIBRARY: Final = re.compile(
    r".*[\\/](?:site-packages|dist-packages|[Pp]ython3[\d.]*|Lib)[\\/]([^\\/.]+)|<frozen ([\w.]+)"
)
_OURS: Final = re.compile(r".*[\\/]django_zklock[\\/]")


class Part(NamedTuple):
    """Frames that follow each other: of the project, or of libraries."""

    lines: Sequence[str]
    libraries: str
    """Their names; empty for frames of the project, and for lines that are no frames."""


class Stack(NamedTuple):
    """The stack of a holder."""

    holder: ContenderInfo
    owner: str
    """Its thread, task or greenlet; or why there are no frames."""
    parts: Sequence[Part]
    moves: bool
    """Whether the second answer differs."""


def ask_twice(key: str, *, by: str) -> list[Stack]:
    """Ask the holders of a lock for their stacks, and again a second later. Raises as `operations.show_stacks` does."""
    first = lazy.operations.show_stacks(key, by=by)
    if not any(lines[1:] for lines in first.values()):
        return [Stack(holder, _(lines[0]), (), moves=False) for holder, lines in first.items()]
    time.sleep(PAUSE)
    before = {holder.token: lines for holder, lines in first.items()}
    again = lazy.operations.stacks.ask_holders(key, by=by, recorded=before)
    return [
        Stack(holder, _(lines[0]), parts_of(lines[1:]), moves=before.get(holder.token) != lines)
        for holder, lines in again.items()
    ]


def parts_of(lines: Sequence[str]) -> list[Part]:
    """Return the frames of a stack in parts, in their order."""
    parts = []
    for is_library, group in groupby([(line, _library(line)) for line in lines], key=lambda pair: bool(pair[1])):
        pairs = list(group)
        names = list(dict.fromkeys(name for _line, name in pairs))
        named = ", ".join(names[:MAX_NAMED]) + (" …" if names[MAX_NAMED:] else "")
        shown = [line if _FRAME.match(line) else _(line) for line, _name in pairs if line]  # the notes are translated
        parts.append(Part(shown, named if is_library else ""))
    return parts


def _library(line: str) -> str:
    """Return the name of the library that a frame belongs to; empty if it belongs to the project."""
    frame = _FRAME.match(line)
    path = frame[1] if frame else ""
    library = _LIBRARY.match(path)
    if library:
        return library[1] or library[2]
    return "django_zklock" if _OURS.match(path) else ""
