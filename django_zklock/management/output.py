"""The output of the subcommands: JSON for programs, tables and lines for people, escaped for the terminal."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from django_zklock.queue.escaping import printable, session_hex

if TYPE_CHECKING:
    from django_zklock.inspection import ContenderInfo, LockInfo, ScannedContender, SetLimit, Wait

CELL: Final = 200  # characters of one cell or name
LINE: Final = 4000  # characters of one line


class Output(Protocol):
    """Where a subcommand writes."""

    def write(self, text: str) -> object:
        """Write a text."""

    def flush(self) -> object:
        """Show it."""


def is_terminal(out: object) -> bool:
    """Return True if a person reads this at a terminal."""
    isatty = getattr(out, "isatty", None)
    return bool(isatty and isatty())


def write_line(out: Output, text: str) -> None:
    """Write one line, escaped, and show it at once: a program may wait for it at the other end of a pipe."""
    out.write(f"{printable(text, LINE)}\n")
    out.flush()


def write_json(out: Output, answer: object, *, lines: bool = False) -> None:
    """Write JSON in ASCII, where each control character is escaped; with `lines`, on one line."""
    out.write(json.dumps(answer, indent=None if lines else 2) + "\n")
    out.flush()


def write_table(
    out: Output, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Write a table: drawn by rich at a terminal, if that is installed, else in plain columns."""
    cells = [[printable(cell, CELL) for cell in row] for row in rows]
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
        table.add_row(*(Text(cell) for cell in row))  # rich would read markup in a str
    drawn = io.StringIO()
    Console(file=drawn, force_terminal=True, width=shutil.get_terminal_size().columns).print(table)
    return drawn.getvalue()


# --- Texts about locks ----------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a span of time in a few characters: 0.4s, 12s, 2m41s, 3h05m, 2d04h."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if not minutes:
        return f"{whole}s"
    if not hours:
        return f"{minutes}m{rest:02d}s"
    return f"{days}d{hours_left:02d}h" if days else f"{hours}h{minutes_left:02d}m"


def process_of(contender: ContenderInfo) -> str:
    """Return the process of a contender, or the operator, or the other client."""
    if contender.operator is not None:
        return contender.operator.who
    if contender.client != "zklock":
        return f"{contender.client}, session {session_hex(contender.session_id)}"
    return f"{contender.host}:{contender.pid}"


def work_of(contender: ScannedContender) -> str:
    """Return what a contender runs, for how long nobody uses the lock, or the end and reason of an operator hold."""
    if contender.idle_for is not None:
        return f"kept for the next user, idle for {duration(contender.idle_for)}"
    hold = contender.operator
    return contender.what if hold is None else f"until {hold.until:%Y-%m-%d %H:%M:%S} UTC: {hold.reason}"


def kind(lock: LockInfo) -> str:
    """Return the kind of a lock; for a semaphore, how many permits are in use."""
    if lock.limit is None:
        return lock.kind
    used = len(lock.holders) if any(each.kind == "semaphore" for each in lock.holders) else 0
    return f"{used} of {lock.limit}"


def over(contender: ContenderInfo) -> str:
    """Return that an operator hold is over."""
    return f"{process_of(contender)}: its time is over"


def limit_text(limit: SetLimit) -> str:
    """Return a limit that was set, by whom, when and why."""
    when = f" on {limit.when:%Y-%m-%d %H:%M:%S} UTC" if limit.when is not None else ""
    return f"limit {limit.limit}, set by {limit.by or 'an unknown person'}{when}: {limit.reason}"


def different_limits(lock: LockInfo) -> str:
    """Return a warning that the processes use different limits for a semaphore; empty if they do not."""
    if not lock.own_limits:
        return ""
    limits = f"{', '.join(map(str, lock.own_limits[:-1]))} and {lock.own_limits[-1]}"
    advice = "Use the same limit everywhere, or set one for all processes"
    return f"its holders and waiters have different limits in their code, {limits}, and each uses its own. {advice}"


def deadlock(cycle: Sequence[Wait]) -> str:
    """Return a deadlock in one line."""
    return "; ".join(f"{wait.who} holds {wait.holds} and waits for {wait.waits_for}" for wait in cycle)
