"""
A page of memory that a worker's main process shares with its pool processes: the lease, and a record of each grant.

Each number on it has one writer, and is written and read in one step of the processor. Every mark in a record holds
the number of its grant, so that a mark that comes late means nothing for the next grant of the record.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import threading
from collections import deque
from typing import Any, Final

from django_zklock.contrib.celery.line.wakeup import WakeupPipe

RECORDS: Final = 1000
"""Grants that the pool processes of one worker can have at a time."""
_RECORD: Final = 4096  # bytes; memory is only used for those that were written
_HEADER: Final = 64
_UNTIL, _SESSION = 0, 1  # places of numbers in the header, in units of eight bytes
_NUMBER, _VERSION, _LENGTH, _BEGUN, _CANCELLED, _ENDED, _SHARED = range(7)  # likewise in a record
_TEXT: Final = 64  # bytes before the text of a record
_PID_BITS: Final = 22  # of a process id, at most


class GrantPage:
    """The page; made before the pool processes are forked, which inherit it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + RECORDS * _RECORD)
        view = memoryview(self._memory)
        self._floats = view.cast("d")
        self._numbers = view.cast("q")
        self._free = deque(range(RECORDS))
        self._next = itertools.count(1)
        self.wakeup = WakeupPipe()
        """Wakes the thread of the main process that waits for news from the pool processes."""
        self._floats[_UNTIL] = float("-inf")

    # --- in the main process --------------------------------------------------------------------------------------

    def set_lease(self, until: float, session_id: int) -> None:
        """Write when the lease ends, on `clock.now()`, and whose it is."""
        if self._numbers[_SESSION] != session_id:
            self._floats[_UNTIL] = float("-inf")  # or the old session would have the lease of the new one
            self._numbers[_SESSION] = session_id
        self._floats[_UNTIL] = until

    def add(self) -> tuple[int, int] | None:
        """Return the place of a new record, and the number of its grant; None if there is no room."""
        with contextlib.suppress(IndexError):
            place, number = self._free.popleft(), next(self._next)
            self._write_text(place, b"{}")
            self._numbers[_at(place) + _NUMBER] = number
            return place, number
        return None

    def write(self, place: int, number: int, news: dict[str, Any]) -> None:
        """Replace the text of the record of this grant."""
        if self.is_current(place, number):
            self._write_text(place, json.dumps(news, ensure_ascii=False).encode())

    def _write_text(self, place: int, text: bytes) -> None:
        if len(text) > _RECORD - _TEXT:
            raise ValueError(f"{len(text)} bytes are too long for a record.")
        at, begin = _at(place), _HEADER + place * _RECORD + _TEXT
        self._numbers[at + _VERSION] += 1  # odd: it is being written
        self._memory[begin : begin + len(text)] = text
        self._numbers[at + _LENGTH] = len(text)
        self._numbers[at + _VERSION] += 1

    def remove(self, place: int) -> None:
        """Free a record."""
        self._numbers[_at(place) + _NUMBER] = 0
        self._free.append(place)

    def begun_by(self, place: int, number: int) -> int:
        """Return the process that has begun to work under the grant; 0 if none has."""
        begun, pid = divmod(self._numbers[_at(place) + _BEGUN], 1 << _PID_BITS)
        return pid if begun == number else 0

    def cancel(self, place: int, number: int) -> int:
        """Let no process begin any more; return the one that has begun, else 0."""
        self._numbers[_at(place) + _CANCELLED] = number
        _order_memory()
        return self.begun_by(place, number)

    def has_ended(self, place: int, number: int) -> bool:
        """Return whether the pool process has given the lock back."""
        return self._numbers[_at(place) + _ENDED] == number

    def shared(self, place: int, number: int) -> str:
        """Return whether the pool process goes on as a reader: "asked" if its work has asked for it, "yes" or ""."""
        shared, asked = divmod(self._numbers[_at(place) + _SHARED], 2)
        return "" if shared != number else "asked" if asked else "yes"

    # --- in a pool process ----------------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """When the lease ends, on `clock.now()`."""
        return self._floats[_UNTIL]

    @property
    def session_id(self) -> int:
        """The session that the page has the lease of."""
        return self._numbers[_SESSION]

    def begin(self, place: int, number: int) -> bool:
        """Begin to work under a grant; return False if it was given back meanwhile."""
        if not self.is_current(place, number):
            return False
        # It writes first and reads then, and `cancel` does the same, so that one of the two sees the other.
        self._numbers[_at(place) + _BEGUN] = (number << _PID_BITS) + os.getpid()
        _order_memory()
        return self.is_current(place, number) and self._numbers[_at(place) + _CANCELLED] != number

    def is_current(self, place: int, number: int) -> bool:
        """Return whether the record is that of this grant."""
        return self._numbers[_at(place) + _NUMBER] == number

    def version(self, place: int) -> int:
        """Return a number that changes with the text of the record."""
        return self._numbers[_at(place) + _VERSION]

    def read(self, place: int) -> dict[str, Any] | None:
        """Return the text of a record; None while it is being written."""
        at, begin = _at(place), _HEADER + place * _RECORD + _TEXT
        version = self._numbers[at + _VERSION]
        text = bytes(self._memory[begin : begin + self._numbers[at + _LENGTH]])
        if version % 2 or self._numbers[at + _VERSION] != version:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def end(self, place: int, number: int) -> None:
        """Say that the work under this grant is done; saying it again changes nothing."""
        if self.is_current(place, number):
            self._numbers[_at(place) + _ENDED] = number
            self.wakeup.wake()

    def share(self, place: int, number: int, *, asked: bool) -> None:
        """Say that the writer goes on as a reader, and whether its work has asked for that."""
        if self.is_current(place, number):
            self._numbers[_at(place) + _SHARED] = 2 * number + asked
            self.wakeup.wake()


def _at(place: int) -> int:
    return (_HEADER + place * _RECORD) // 8


def _order_memory() -> None:
    """Have the processor write what was written before it reads what is read next, as each lock does."""
    fence = threading.Lock()
    fence.acquire()
    fence.release()
