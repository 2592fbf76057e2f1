"""The state file of a coordinator, by which the next process goes on with its session and its leases."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from django_zklock.contrib.leases.lease import wake
from django_zklock.core.log import Logger
from django_zklock.core.queue.untrusted import integer, json_object, number
from django_zklock.core.zk.loop import Loop, users_thread
from django_zklock.core.zk.options import FormerSession, Secret

logger = Logger("django_zklock.leases")

LARGEST: Final = 4096
"""Bytes of a state file, at most."""
LONGEST_TIMEOUT: Final = 86_400.0
"""Seconds."""
LOOK_EVERY: Final = 5.0
"""Seconds between two looks whether the file is still there."""


class StateFile:
    """
    The session of a coordinator, and the secret of its lease ids. All else about a lease is in its znode.

    Each new session replaces the file as a whole, so it is never half written. The process that uses the file has a
    lock on it, wherever it is moved. A file of another program is never written.
    """

    def __init__(self, path: Path, root: str, say: Callable[[str], object]) -> None:
        """Wait until no other process uses the file, and read it. Raises OSError. `say` gets lines for operators."""
        self.path = path.absolute()
        self.name = secrets.token_hex(8).encode()
        """That of this process. Each one that claims the session writes its name there."""
        self.key = secrets.token_bytes(16)
        """The secret of the lease ids."""
        self.former: FormerSession | None = None
        """The session of the process before, which may be alive."""
        self._root = root
        self._file = self._open(say)  # locked. From now on, the writer's thread has it, and all that follows
        try:
            self._data = _content(self._file, self.path)  # what it should contain
            self._read(say)
        except OSError:
            os.close(self._file)
            raise
        self._session: FormerSession | None = self.former  # that it should have
        self._written: FormerSession | None = self.former  # that it has
        self._problem = ""  # of the last look
        self._writer = Loop("zklock-state", users_thread)  # a slow disk delays nothing else
        self._writer.start()
        self._writer.post(self._watch)

    def _open(self, say: Callable[[str], object]) -> int:
        """Open the file, or an empty new one, and wait until no other process uses it."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"Another process uses {self.path}. Waiting for its end.")
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, self.path):
                return file
            os.close(file)  # the other process has replaced the file meanwhile

    def _read(self, say: Callable[[str], object]) -> None:
        """Read what the process before has written. An empty file is as good as none."""
        if not self._data:
            return
        fields = json_object(self._data)
        try:
            former = FormerSession(
                id=integer(fields.get("session"), -(2**63)),
                password=Secret(bytes.fromhex(fields["password"]).hex()),
                timeout=number(fields.get("timeout"), 0.001, LONGEST_TIMEOUT),
            )
            key = bytes.fromhex(fields["key"])
        except (KeyError, TypeError, ValueError):
            raise OSError(
                f"{self.path} is no state file of a coordinator, and is left alone. Give another path, or delete it."
            ) from None
        if fields.get("root") == self._root:
            self.former, self.key = former, key
        else:
            say(f"{self.path} is not of the ROOT {self._root}. Starting without leases.")

    def close(self) -> None:
        """Let another process use the file. Nothing is written any more."""
        self._writer.stop()
        self._writer.join()
        os.close(self._file)

    def set_session(self, session: FormerSession) -> asyncio.Future[None]:
        """Write the session that the next process should go on with. The future is done after the try."""
        loop = asyncio.get_running_loop()
        tried: asyncio.Future[None] = loop.create_future()
        self._writer.post(self._set_session, session, partial(loop.call_soon_threadsafe, wake, tried))
        return tried

    # --- on the writer's thread -----------------------------------------------------------------------------------

    def _set_session(self, session: FormerSession, done: Callable[[], object]) -> None:
        self._session = session
        self._look()
        done()

    def _watch(self) -> None:
        self._look()
        self._writer.call_later(LOOK_EVERY, self._watch)

    def _look(self) -> None:
        """Write the file if it lacks the session, or is gone. Log a problem once."""
        problem = ""
        try:
            if self._session is not None:
                self._save(self._session)
        except OSError as error:
            problem = str(error)
        if problem not in ("", self._problem):
            logger.error("state file %s: %s; the leases end with this process", self.path, problem)
        self._problem = problem

    def _save(self, session: FormerSession) -> None:
        """Replace the file, unless it has this session. Raises OSError if another program has written it."""
        present = b""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as opened:
            present = opened.read(LARGEST)
        if present not in (b"", self._data):
            raise OSError("another program has written it, or another file has its place")
        if present and session == self._written and _is_at(self._file, self.path):
            return
        if self._data and not present:
            logger.warning("the state file %s was moved or deleted, and is written again", self.path)
        data = self._encoded(session)
        file, former = _replace(self.path.resolve(), data), self._file
        self._file, self._data, self._written = file, data, session
        os.close(former)

    def _encoded(self, session: FormerSession) -> bytes:
        fields = {
            "root": self._root,
            "session": session.id,
            "password": session.password,
            "timeout": session.timeout,
            "key": self.key.hex(),
        }
        return json.dumps(fields).encode()


def _content(file: int, path: Path) -> bytes:
    """Return what is in a file that only this user can read and write. Raises OSError."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no regular file.")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        user = os.geteuid()
        raise OSError(
            f"{path} is a secret, and others can read or write it. Run: chown {user} {path}; chmod 600 {path}"
        )
    return os.read(file, LARGEST)


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is the one with this path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _replace(path: Path, data: bytes) -> int:
    """Write a file that only this user can read, under the name of another one; return it, locked. Raises OSError."""
    file, new = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        with open(file, "wb", closefd=False) as opened:
            opened.write(data)
        os.fsync(file)
        os.replace(new, path)
    except OSError:
        os.close(file)
        Path(new).unlink()
        raise
    return file
