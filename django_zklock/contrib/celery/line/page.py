"""
A page of memory that a worker's main process shares with its pool processes: the lease, and a record of each grant.

The main process writes all but the mark of the end, which the pool process sets. A number is written and read in one
step of the processor. A record of text is read again if it was written meanwhile.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import threading
from typing import Any, Final

RECORDS: Final = 1000
"""Grants that the pool processes of one worker can have at a time."""
_RECORD: Final = 4096  # bytes; memory is only used for those that were written
_HEADER: Final = 64
# Places of numbers, in units of eight bytes.
_UNTIL, _SESSION = 0, 1  # in the header
_NUMBER, _VERSION, _LENGTH, _BEGUN, _CANCELLED, _ENDED, _SHARED = range(7)  # in a record
_TEXT: Final = 64  # bytes before the text of a record


class GrantPage:
    """The page; made before the pool processes are forked, which inherit it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._memory = mmap.mmap(-1, _HEADER + RECORDS * _RECORD)
        view = memoryview(self._memory)
        self._floats = view.cast("d")
        self._numbers = view.cast("q")
        self._fence = threading.Lock()
        self._free = list(range(RECORDS))
        self._next = itertools.count(1)
        # The pool processes write to it when a record has news for the main process.
        self.waker, self._bell = os.pipe()
        os.set_blocking(self.waker, False)
        os.set_blocking(self._bell, False)
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
        if not self._free:
            return None
        record, number = self._free.pop(), next(self._next)
        at = self._place(record)
        self._numbers[at + _NUMBER] = number
        for each in (_BEGUN, _CANCELLED, _ENDED, _SHARED):
            self._numbers[at + each] = 0
        self.write(record, {})
        return record, number

    def write(self, record: int, news: dict[str, Any]) -> None:
        """Replace the text of a record."""
        text = json.dumps(news).encode()
        if len(text) > _RECORD - _TEXT:
            raise ValueError(f"{len(text)} bytes are too long for a record.")
        at, begin = self._place(record), _HEADER + record * _RECORD + _TEXT
        self._numbers[at + _VERSION] += 1  # odd: it is being written
        self._memory[begin : begin + len(text)] = text
        self._numbers[at + _LENGTH] = len(text)
        self._numbers[at + _VERSION] += 1

    def remove(self, record: int) -> None:
        """Free a record."""
        self._numbers[self._place(record) + _NUMBER] = 0
        self._free.append(record)

    def begun_by(self, record: int) -> int:
        """Return the process that has begun to work under the grant; 0 if none has."""
        return self._numbers[self._place(record) + _BEGUN]

    def cancel(self, record: int) -> int:
        """Let no process begin any more; return the one that has begun, else 0."""
        self._numbers[self._place(record) + _CANCELLED] = 1
        self._order_memory()
        return self.begun_by(record)

    def has_ended(self, record: int) -> bool:
        """Return whether the pool process has given the lock back."""
        return bool(self._numbers[self._place(record) + _ENDED])

    def is_shared(self, record: int) -> bool:
        """Return whether the pool process goes on as a reader."""
        return bool(self._numbers[self._place(record) + _SHARED])

    def drain(self) -> None:
        """Empty the pipe."""
        try:
            while len(os.read(self.waker, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    # --- in a pool process ----------------------------------------------------------------------------------------

    @property
    def until(self) -> float:
        """When the lease ends, on `clock.now()`."""
        return self._floats[_UNTIL]

    @property
    def session_id(self) -> int:
        """The session that the lease belongs to."""
        return self._numbers[_SESSION]

    def begin(self, record: int, number: int) -> bool:
        """Begin to work under a grant; return False if it is another one's, or was given back meanwhile."""
        at = self._place(record)
        if not self.is_current(record, number):
            return False
        # It writes first and reads then, and `cancel` does the same, so that one of the two sees the other.
        self._numbers[at + _BEGUN] = os.getpid()
        self._order_memory()
        return self.is_current(record, number) and not self._numbers[at + _CANCELLED]

    def is_current(self, record: int, number: int) -> bool:
        """Return whether the record is that of this grant."""
        return self._numbers[self._place(record) + _NUMBER] == number

    def version(self, record: int) -> int:
        """Return a number that changes with the text of the record."""
        return self._numbers[self._place(record) + _VERSION]

    def read(self, record: int) -> dict[str, Any] | None:
        """Return the text of a record; None while it is being written."""
        at, begin = self._place(record), _HEADER + record * _RECORD + _TEXT
        version = self._numbers[at + _VERSION]
        text = bytes(self._memory[begin : begin + self._numbers[at + _LENGTH]])
        if version % 2 or self._numbers[at + _VERSION] != version:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def end(self, record: int, number: int) -> None:
        """Say that the work under this grant is done."""
        if self.is_current(record, number):
            self._numbers[self._place(record) + _ENDED] = 1
            self.ring()

    def share(self, record: int, number: int) -> None:
        """Say that the writer goes on as a reader."""
        if self.is_current(record, number):
            self._numbers[self._place(record) + _SHARED] = 1
            self.ring()

    def ring(self) -> None:
        """Wake the thread of the main process that waits for news."""
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:
            pass  # it is full, so it will be read

    def _order_memory(self) -> None:
        """Have the processor write what was written before it reads what is read next, as a lock does."""
        with self._fence:
            pass

    @staticmethod
    def _place(record: int) -> int:
        return (_HEADER + record * _RECORD) // 8
