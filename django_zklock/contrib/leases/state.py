"""The state file of a coordinator, by which the next process goes on with its session and its leases."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import json
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from django_zklock.contrib.leases.lease import wake
from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.queue.untrusted import integer, json_object, number, text
from django_zklock.core.zk.loop import Loop, users_thread
from django_zklock.core.zk.options import FormerSession, Secret

logger = Logger("django_zklock.leases")

HEADER: Final = 4096
"""Bytes for the session, as JSON. The records of the leases follow."""
END: Final = struct.Struct("<qd")
"""A lease: its token, and its end on `clock.now()`. In its record, a checksum follows."""
RECORD: Final = 32
"""Bytes."""
ALLOCATED: Final = HEADER + 2**14 * RECORD
"""Bytes of the file from the start. Few sessions can have more leases, as the paths of their znodes have a limit."""
LARGEST: Final = 2**26
"""Bytes that are read."""
LONGEST_TIMEOUT: Final = 86_400.0
"""Seconds."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class StateFile:
    """
    The session of a coordinator, the secret of its lease ids, and the ends of its leases.

    All else about a lease is in its znode. No client is told an end before the file has it. The file is written without
    a sync, as what is written outlives the process. After a restart of the machine, and in a copy of the file, the ends
    count as unknown. Its bytes are allocated at the start, so a disk that gets full later does no harm.
    """

    def __init__(self, path: Path, root: str, say: Callable[[str], object]) -> None:
        """Open the file, and wait until no other process uses it. Raises OSError. `say` gets lines for operators."""
        self.path = path
        self.key = secrets.token_bytes(16)
        """The secret of the lease ids."""
        self.former: FormerSession | None = None
        """The session of the process before, which may be alive."""
        self._root = root
        self._file = _opened(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process uses {path}. Waiting for its end.")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        origin = self._origin()
        self.name = f"{origin}:{secrets.token_hex(8)}".encode()
        """That of this process. Each one that claims the session writes its name there."""
        self._former_name = b""
        self._ends: dict[int, float] = {}  # of the leases of the process before on `clock.now()`, by token
        self._slots: dict[int, int] = {}  # by token: the number of the record
        problem = self._read(origin)
        if problem:
            say(f"{path} {problem}. Starting without leases.")
        self._vacant: list[int] = []  # slots of leases that are over
        self._new_slots = itertools.count(max(self._slots.values(), default=-1) + 1)
        missing = ALLOCATED - os.fstat(self._file).st_size
        if missing > 0 and os.pwrite(self._file, bytes(missing), ALLOCATED - missing) < missing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self._problem = ""  # of the last write; the writer's thread has it
        self._writer = Loop("zklock-state", users_thread)  # a slow disk delays nothing else
        self._writer.start()

    def _read(self, origin: str) -> str:
        """Read what the process before has written. Return why it is of no use; empty if it is, or if there is none."""
        data = os.pread(self._file, HEADER, 0).strip(b"\0 ")
        if not data:
            return ""
        fields = json_object(data)
        try:
            former = FormerSession(
                id=integer(fields.get("session"), -(2**63)),
                password=Secret(bytes.fromhex(fields["password"]).hex()),
                timeout=number(fields.get("timeout"), 0.001, LONGEST_TIMEOUT),
            )
            key, name = bytes.fromhex(fields["key"]), text(fields.get("name"))
        except (KeyError, TypeError, ValueError):
            return "is damaged, or of another release"
        if fields.get("root") != self._root:
            return f"is not of the ROOT {self._root}"
        self.former, self.key = former, key
        if name.rpartition(":")[0] == origin and self._read_ends():
            self._former_name = name.encode()
        else:
            self._slots.clear()
        return ""

    def _read_ends(self) -> bool:
        """Read the records. Return whether all are whole."""
        data = os.pread(self._file, LARGEST, HEADER)
        for start in range(0, len(data), RECORD):
            record = data[start : start + RECORD]
            if not any(record):
                continue
            token, end = END.unpack_from(record.ljust(RECORD))
            if record != _record(token, end):
                return False
            self._slots[token] = start // RECORD
            self._ends[token] = end
        return HEADER + len(data) >= ALLOCATED

    def _origin(self) -> str:
        """Return the file, and the run of the machine on whose clock the ends are."""
        # Without a name for the run, the next process will not take it for the same one.
        try:
            boot = _BOOT_ID.read_text().strip()
        except OSError:
            boot = secrets.token_hex(8)
        status = os.fstat(self._file)
        return f"{boot}:{status.st_dev}:{status.st_ino}"

    def ends_after(self, name: bytes) -> Mapping[int, float] | None:
        """
        Return the ends of all leases by token, on `clock.now()`, if the process with this name had the session last.

        None: they are unknown. It had another file, or the file is damaged, or was copied.
        """
        return self._ends if self._former_name and self._former_name == name else None

    def close(self) -> None:
        """Close the file, so that another process can use it. Nothing is written any more."""
        self._writer.stop()
        self._writer.join()
        os.close(self._file)

    def set_session(self, session: FormerSession) -> asyncio.Future[bool]:
        """Write the session that the next process should go on with."""
        fields = {
            "root": self._root,
            "name": self.name.decode(),
            "session": session.id,
            "password": session.password,
            "timeout": session.timeout,
            "key": self.key.hex(),
        }
        return self._write(0, json.dumps(fields).encode().ljust(HEADER))

    def clear(self) -> None:
        """Delete the records of the process before, because they are not the whole truth."""
        self._write(HEADER, bytes(os.fstat(self._file).st_size - HEADER))

    def set_end(self, token: int, until: float) -> asyncio.Future[bool]:
        """Write the end of a lease, on the clock of the running loop. The result is whether it was written."""
        if token not in self._slots:
            self._slots[token] = self._vacant.pop() if self._vacant else next(self._new_slots)
        end = clock.now() + until - asyncio.get_running_loop().time()
        return self._write(HEADER + self._slots[token] * RECORD, _record(token, end))

    def forget(self, token: int) -> None:
        """Let another lease have the place of this one, which is over."""
        slot = self._slots.pop(token, None)
        if slot is not None:
            self._vacant.append(slot)

    def _write(self, offset: int, data: bytes) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[bool] = loop.create_future()
        self._writer.post(self._write_now, offset, data, partial(loop.call_soon_threadsafe, wake, written))
        return written

    def _write_now(self, offset: int, data: bytes, done: Callable[[bool], object]) -> None:
        """Write; on the writer's thread."""
        former, self._problem = self._problem, ""
        try:
            os.pwrite(self._file, data, offset)
        except OSError as error:
            self._problem = str(error)
        if self._problem != former:
            logger.error("state file %s: %s", self.path, self._problem or "it can be written again")
        done(not self._problem)


def _record(token: int, end: float) -> bytes:
    lease = END.pack(token, end)
    return lease + zlib.crc32(lease).to_bytes(RECORD - END.size, "little")


def _opened(path: Path) -> int:
    """Open a file that only this user can read and write. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no regular file.")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(
            f"{path} is a secret, and others can read or write it. Run: chown {os.geteuid()} {path}; chmod 600 {path}"
        )
    return file
