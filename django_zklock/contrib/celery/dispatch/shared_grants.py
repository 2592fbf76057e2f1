"""
The memory that a worker's main process shares with its pool processes: the lease, the grants, and who is ready.

Each number has one writer, and is eight bytes at a multiple of eight: all processors that Python runs on, ARM too, read
and write it in one step. The order of two numbers counts in a few places, where a processor may change it. There, a
memory barrier stands between the two, in the writer and in the reader (`_order_memory`).

A record belongs to one grant at a time. The numbers that a pool process writes are the number of its grant, so that
what comes late means nothing for the next grant. The text of a record only grows while the grant lasts: its length is
written after the text, and read before it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from django_zklock.contrib.celery.dispatch.wakeup import WakeupPipe

RECORDS: Final = 1000
"""Grants that the pool processes of one worker can have at a time."""
PROCESSES: Final = 1022
"""Pool processes that can say that they are ready."""
LONGEST_EVENT: Final = 1000  # bytes; what is longer is cut

_HEADER: Final = 8 * (2 + PROCESSES)
_RECORD: Final = 4096  # bytes; memory is only used for those that were written
_UNTIL, _SESSION, _READY = 0, 1, 2  # indices of numbers in the header
_NUMBER, _LENGTH, _SUSPECT, _CANCELLED, _BEGUN, _ENDED, _SHARED = range(7)  # in a record: four of the main process
_TEXT: Final = 64  # bytes before the text of a record
_PID_BITS: Final = 22  # of a process id, at most


class SharedGrants:
    """The memory; made before the pool processes are forked, which inherit it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + RECORDS * _RECORD)
        view = memoryview(self._memory)
        self._floats = view.cast("d")
        self._numbers = view.cast("q")
        self._free = deque(range(RECORDS))
        self._next = itertools.count(1)
        self.wakeup = WakeupPipe()
        """Wakes the thread of the main process that waits for the pool processes."""
        self._floats[_UNTIL] = float("-inf")

    # --- in the main process --------------------------------------------------------------------------------------

    def set_lease(self, until: float, session_id: int) -> None:
        """Write when the lease ends, on `clock.now()`, and which session has it."""
        if self._numbers[_SESSION] != session_id:
            self._floats[_UNTIL] = float("-inf")  # or the old session would have the lease of the new one
            _order_memory()
            self._numbers[_SESSION] = session_id
            _order_memory()
        self._floats[_UNTIL] = until

    def ready_processes(self, limit: int) -> dict[int, int]:
        """Return the processes that are ready for tasks, by index, of a pool with `limit` processes."""
        indices = range(min(limit, PROCESSES))
        return {index: pid for index in indices if (pid := self._numbers[_READY + index])}

    def add(self) -> tuple[int, int] | None:
        """Return the index of a new record, and the number of its grant; None if there is no room."""
        with contextlib.suppress(IndexError):
            index, number = self._free.popleft(), next(self._next)
            self._numbers[_at(index) + _LENGTH] = self._numbers[_at(index) + _SUSPECT] = 0
            _order_memory()
            self._numbers[_at(index) + _NUMBER] = number
            return index, number
        return None

    def set_suspect(self, index: int, *, suspect: bool) -> None:
        """Write whether a quorum confirms the session at the moment."""
        self._numbers[_at(index) + _SUSPECT] = int(suspect)

    def append(self, index: int, event: Mapping[str, Any]) -> None:
        """Add an event to the text of a record, unless that is full; there is always room for one that is `lost`."""
        text = json.dumps(event, ensure_ascii=False).encode() + b"\n"
        length = self._numbers[_at(index) + _LENGTH]
        room = _RECORD - _TEXT - length - (0 if "lost" in event else LONGEST_EVENT)
        if len(text) <= room:
            begin = _HEADER + index * _RECORD + _TEXT + length
            self._memory[begin : begin + len(text)] = text
            _order_memory()
            self._numbers[_at(index) + _LENGTH] = length + len(text)

    def remove(self, index: int) -> None:
        """Free a record."""
        self._numbers[_at(index) + _NUMBER] = 0
        self._free.append(index)

    def begun_by(self, index: int, number: int) -> int:
        """Return the process that has begun to work under the grant; 0 if none has."""
        begun, pid = divmod(self._numbers[_at(index) + _BEGUN], 1 << _PID_BITS)
        return pid if begun == number else 0

    def cancel(self, index: int, number: int) -> int:
        """Let no process begin any more; return the one that has begun, else 0."""
        self._numbers[_at(index) + _CANCELLED] = number
        _order_memory()
        return self.begun_by(index, number)

    def has_ended(self, index: int, number: int) -> bool:
        """Return whether the pool process has given the lock back."""
        return self._numbers[_at(index) + _ENDED] == number

    def shared(self, index: int, number: int) -> str:
        """Return whether the pool process goes on as a reader: "asked" if its work has asked for it, "yes" or ""."""
        shared, asked = divmod(self._numbers[_at(index) + _SHARED], 2)
        return "" if shared != number else "asked" if asked else "yes"

    # --- in a pool process ----------------------------------------------------------------------------------------

    def set_ready(self, index: int, pid: int) -> None:
        """Say that the process with this index in the pool is ready for tasks; 0: it is not any more."""
        if index < PROCESSES:
            self._numbers[_READY + index] = pid
            self.wakeup.wake()

    @property
    def until(self) -> float:
        """When the lease ends, on `clock.now()`. Read it before the session."""
        until = self._floats[_UNTIL]
        _order_memory()
        return until

    @property
    def session_id(self) -> int:
        """The session that has the lease."""
        return self._numbers[_SESSION]

    def begin(self, index: int, number: int) -> bool:
        """Begin to work under a grant; return False if it was given back meanwhile."""
        if not self.is_current(index, number):
            return False
        # It writes first and reads then, and `cancel` does the same, so that one of the two sees the other.
        self._numbers[_at(index) + _BEGUN] = (number << _PID_BITS) + os.getpid()
        _order_memory()
        return self.is_current(index, number) and self._numbers[_at(index) + _CANCELLED] != number

    def is_current(self, index: int, number: int) -> bool:
        """Return whether the record is that of this grant."""
        return self._numbers[_at(index) + _NUMBER] == number

    def is_suspect(self, index: int) -> bool:
        """Return whether no quorum confirms the session at the moment."""
        return bool(self._numbers[_at(index) + _SUSPECT])

    def events(self, index: int, begin: int) -> tuple[list[dict[str, Any]], int]:
        """Return the events in the text of a record from byte `begin` on, and where the text ends."""
        length = self._numbers[_at(index) + _LENGTH]
        if length <= begin:
            return [], begin
        _order_memory()
        text = _HEADER + index * _RECORD + _TEXT
        return [json.loads(line) for line in self._memory[text + begin : text + length].splitlines()], length

    def end(self, index: int, number: int) -> None:
        """Say that the work under this grant is done. The call is idempotent."""
        if self.is_current(index, number):
            self._numbers[_at(index) + _ENDED] = number
            self.wakeup.wake()

    def share(self, index: int, number: int, *, asked: bool) -> None:
        """Say that the writer goes on as a reader, and whether its work has asked for that."""
        if self.is_current(index, number):
            self._numbers[_at(index) + _SHARED] = 2 * number + asked
            self.wakeup.wake()


def _at(index: int) -> int:
    return (_HEADER + index * _RECORD) // 8


def _order_memory() -> None:
    """Make the processor keep the order of what stands before and after this call, as each lock does."""
    barrier = threading.Lock()
    barrier.acquire()
    barrier.release()
