"""The state file of a coordinator, by which the next process goes on with its session and its leases."""

from __future__ import annotations

import asyncio
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


class StateFile:
    """
    The session of a coordinator, and the secret of its lease ids. All else about a lease is in its znode.

    Each new session replaces the file as a whole, so it is never half written. A lock on a second file, which stays,
    lets one process at a time use it. A file of another program is never written.
    """

    def __init__(self, path: Path, root: str, say: Callable[[str], object]) -> None:
        """Wait until no other process uses the file, and read it. Raises OSError. `say` gets lines for operators."""
        self.path = path.resolve()
        self.name = secrets.token_hex(8).encode()
        """That of this process. Each one that claims the session writes its name there."""
        self.key = secrets.token_bytes(16)
        """The secret of the lease ids."""
        self.former: FormerSession | None = None
        """The session of the process before, which may be alive."""
        self._root = root
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process uses {path}. Waiting for its end.")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._read(say)
        except OSError:
            os.close(self._lock)
            raise
        self._written: FormerSession | None = self.former  # the session that the file has; the writer's thread has it
        self._writer = Loop("zklock-state", users_thread)  # a slow disk delays nothing else
        self._writer.start()

    def _read(self, say: Callable[[str], object]) -> None:
        """Read what the process before has written, if there is a file. An empty one is as good as none."""
        data = _content(self.path)
        if not data:
            return
        fields = json_object(data)
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
        os.close(self._lock)

    def set_session(self, session: FormerSession) -> asyncio.Future[None]:
        """Write the session that the next process should go on with. The future is done after the try."""
        loop = asyncio.get_running_loop()
        tried: asyncio.Future[None] = loop.create_future()
        self._writer.post(self._write, session, partial(loop.call_soon_threadsafe, wake, tried))
        return tried

    def _write(self, session: FormerSession, done: Callable[[], object]) -> None:
        """Replace the file, unless it has this session already; on the writer's thread."""
        try:
            if session != self._written:
                _replace(self.path, self._encoded(session))
                self._written = session
        except OSError as error:
            reason = str(error)
            logger.error("state file %s: %s; the leases end with this process", self.path, reason)  # noqa: TRY400
        done()

    def _encoded(self, session: FormerSession) -> bytes:
        fields = {
            "root": self._root,
            "session": session.id,
            "password": session.password,
            "timeout": session.timeout,
            "key": self.key.hex(),
        }
        return json.dumps(fields).encode()


def _content(path: Path) -> bytes:
    """Return what is in a file that only this user can read and write; nothing if there is none. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no regular file.")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            user = os.geteuid()
            raise OSError(
                f"{path} is a secret, and others can read or write it. Run: chown {user} {path}; chmod 600 {path}"
            )
        return os.read(file, LARGEST)
    finally:
        os.close(file)


def _replace(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, under the name of another one. Raises OSError."""
    file, new = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(file)
        os.replace(new, path)
    except OSError:
        Path(new).unlink()
        raise
