"""
The memory that a worker's main process shares with its pool processes: the lease, the grants, the ready processes.

Each number has one writer, and is eight bytes at a multiple of eight: all processors that Python runs on, ARM too, read
and write it in one step. The order of two numbers counts in a few places, where a processor may change it. There, a
memory barrier is between the two, in the writer and in the reader (`_order_memory`).

A record belongs to one grant at a time. A process sets a flag by writing the number of that grant, so a late write
means nothing for the next grant. The text of a record only grows: its length is written after the text, and read
before it.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_zklock.contrib.celery.dispatch.loops import WakeupPipe
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import ZkLockError

PAYLOAD: Final = "zklock_wait"
"""Key of a request: the `WaitPayload` from the main process to the process that runs the task."""
RECORDS: Final = 1000  # grants that the pool processes of one worker can have at a time
PROCESSES: Final = 1022  # pool processes that can say that they are ready
LONGEST_EVENT: Final = 1000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPayload:
    """One grant, as the main process lends it."""

    index: int  # of the record, and the number of the grant in it
    number: int
    key: str
    path: str
    token: int
    kind: Kind
    since: float  # on clock.now(), which all processes of a machine share
    session: int | None
    template: str
    waited: float  # seconds


@dataclass(frozen=True, slots=True)
class WaitPayload:
    """The end of the wait for one task: its grants, or an error."""

    memory: str  # the name of the `SharedGrants`
    grants: list[GrantPayload]
    error: ZkLockError | None
    resend: dict[str, Any]  # options of `messages.send_again` if the task is to be sent again; else empty


_HEADER: Final = 8 * (3 + PROCESSES)
_RECORD: Final = 4096  # bytes; memory is only used for those that were written
_TEXT: Final = 8 * 7  # bytes before the text of a record
_UNTIL, _SESSION, _REFUSED, _READY = range(4)  # indices of numbers in the header
_NUMBER, _LENGTH, _SUSPECT, _CANCELLED, _UNDELETED = range(5)  # in a record, written by the main process
_BEGUN, _ENDED = range(5, 7)  # likewise, written by the pool process
_PID_BITS: Final = 22  # of a process id, at most

memories: Final[dict[str, SharedGrants]] = {}
"""The memories of the workers in this process that have not ended, by name; a forked pool process inherits them."""


class SharedGrants:
    """The memory of one worker; made before its pool processes are forked. It is the lease for them, too."""

    def __init__(self, app: Any = None) -> None:
        self.name = uuid.uuid4().hex
        self.app = app  # of the worker
        self.proxy: Any = None  # a `SessionProxy`, of the process that uses it
        self.memory = mmap.mmap(-1, _HEADER + RECORDS * _RECORD)
        self.numbers = memoryview(self.memory).cast("q")
        self._floats = memoryview(self.memory).cast("d")
        self._floats[_UNTIL] = float("-inf")
        self._unused = deque(range(RECORDS))
        self._next = itertools.count(1)
        self.wakeup = WakeupPipe()
        """Wakes the thread of the main process that waits for the pool processes."""
        memories[self.name] = self

    # --- in the main process --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Forget the memory when its worker has ended and no grant is left."""
        memories.pop(self.name, None)
        if self.proxy is not None:
            self.proxy.stop()

    def set_lease(self, until: float, session_id: int, refused: int = 0) -> None:
        """Write when the lease ends, on `clock.now()`, which session has it, and `GrantSession.refused`."""
        self.numbers[_REFUSED] = refused
        if self.numbers[_SESSION] != session_id:
            self._floats[_UNTIL] = float("-inf")  # or the old session would have the lease of the new one
            _order_memory()
            self.numbers[_SESSION] = session_id
            _order_memory()
        self._floats[_UNTIL] = until

    def ready_processes(self, limit: int) -> dict[int, int]:
        """Return the processes that are ready for tasks, by index; of the first `limit` indices."""
        indices = range(min(limit, PROCESSES))
        return {index: pid for index in indices if (pid := self.numbers[_READY + index])}

    def add(self) -> GrantRecord:
        """Return a new record. Raises `IndexError` if there is no room."""
        record = GrantRecord(self, self._unused.popleft(), next(self._next))
        record.reset(record.number)
        return record

    def remove(self, record: GrantRecord) -> None:
        """Free a record."""
        record.reset(0)
        self._unused.append(record.index)

    # --- in a pool process ----------------------------------------------------------------------------------------

    def set_ready(self, index: int, pid: int) -> None:
        """Say that the process with this index in the pool is ready for tasks; 0: it is not any more."""
        if index < PROCESSES:
            self.numbers[_READY + index] = pid
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
        return self.numbers[_SESSION]

    @property
    def refused(self) -> int:
        """The error code with which ZooKeeper has refused the last heartbeat, or 0."""
        return self.numbers[_REFUSED]


class GrantRecord:
    """One grant in the memory, as the main process and the pool process see it."""

    def __init__(self, shared: SharedGrants, index: int, number: int) -> None:
        self.index, self.number = index, number
        self._wakeup = shared.wakeup
        begin = _HEADER + index * _RECORD
        self._numbers = shared.numbers[begin // 8 : (begin + _TEXT) // 8]
        self._text = memoryview(shared.memory)[begin + _TEXT : begin + _RECORD]

    @property
    def is_current(self) -> bool:
        """Whether the record is still that of this grant."""
        return self._numbers[_NUMBER] == self.number

    # --- in the main process --------------------------------------------------------------------------------------

    def reset(self, number: int) -> None:
        """Let the record belong to the grant of this number; 0: to none."""
        self._numbers[_NUMBER] = 0
        _order_memory()
        self._numbers[_LENGTH] = self._numbers[_SUSPECT] = 0
        _order_memory()
        self._numbers[_NUMBER] = number

    def set_suspect(self, *, suspect: bool) -> None:
        """Write whether no quorum confirms the session at the moment."""
        self._numbers[_SUSPECT] = suspect

    def append(self, event: Mapping[str, Any]) -> bool:
        """
        Add an event to the text; return whether there was room for it. There is always room for one that is `lost`.
        """
        text = json.dumps(event, ensure_ascii=False).encode() + b"\n"
        length = self._numbers[_LENGTH]
        if len(text) > len(self._text) - length - (0 if "lost" in event else LONGEST_EVENT):
            return False
        self._text[length : length + len(text)] = text
        _order_memory()
        self._numbers[_LENGTH] = length + len(text)
        return True

    @property
    def pid(self) -> int:
        """The process that has begun to work under the grant; 0 if none has."""
        number, pid = divmod(self._numbers[_BEGUN], 1 << _PID_BITS)
        return pid if number == self.number else 0

    def cancel(self) -> int:
        """Let no process begin any more; return the one that has begun, else 0."""
        self._numbers[_CANCELLED] = self.number
        _order_memory()
        return self.pid

    def set_undeleted(self) -> None:
        """Say that ZooKeeper refuses the release. The process may still read it when the record is free."""
        self._numbers[_UNDELETED] = self.number
        _order_memory()

    @property
    def has_ended(self) -> bool:
        """Whether the pool process has given the lock back."""
        return self._numbers[_ENDED] == self.number

    # --- in a pool process ----------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin to work under the grant; return False if it was given back meanwhile."""
        if not self.is_current:
            return False
        # Write first, then read. `cancel` does the same, so at least one of the two sees what the other has written
        # (but see `_order_memory`).
        self._numbers[_BEGUN] = (self.number << _PID_BITS) + os.getpid()
        _order_memory()
        return self._numbers[_CANCELLED] != self.number and self._numbers[_NUMBER] == self.number

    @property
    def is_suspect(self) -> bool:
        """Whether no quorum confirms the session at the moment."""
        return bool(self._numbers[_SUSPECT])

    @property
    def is_undeleted(self) -> bool:
        """Whether ZooKeeper refuses the release. Read it when the record is not that of this grant any more."""
        _order_memory()
        return self._numbers[_UNDELETED] == self.number

    def events(self, begin: int) -> tuple[list[dict[str, Any]], int]:
        """Return the events in the text from byte `begin` on, and where the text ends."""
        length = self._numbers[_LENGTH]
        _order_memory()
        return [json.loads(line) for line in bytes(self._text[begin:length]).splitlines()], max(begin, length)

    def end(self) -> None:
        """Say that the work under this grant is done. The call is idempotent."""
        if self.is_current:
            self._numbers[_ENDED] = self.number
            self._wakeup.wake()


def _order_memory() -> None:
    """
    Keep the order of what is before and after this call. On ARM, a read may still pass the write before it.

    There, `begin` and `cancel` may both go on, if they meet within nanoseconds, ten seconds after the grant. Then the
    record is taken back, the pool process notices that at its next look (20 times a second), and loses the lock.
    """
    barrier = threading.Lock()
    barrier.acquire()
    barrier.release()
