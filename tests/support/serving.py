"""Lock coordinators in processes of their own, and the network between them and their clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from support.ensemble import free_ports
from support.zoo import TESTS, Zoo, eventually

if TYPE_CHECKING:
    from typing_extensions import Self


class Serving:
    """`manage.py zklock serve`, for the length of a with block; it may be killed, paused and started again."""

    def __init__(
        self,
        zoo: Zoo,
        *options: str,
        hosts: str | None = None,
        session_timeout: float = 4,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-u", "-m", "django", "zklock", "serve", "--grpc", self.address, *options]
        self._env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "ZKLOCK_URL": zoo.url(hosts, session_timeout),
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with tempfile.TemporaryFile("w+b") as log:
            self.process = subprocess.Popen(self._command, cwd=TESTS, env=self._env, stdout=log, stderr=log)
            eventually(
                lambda: self.process.poll() is not None or b"gRPC is served" in os.pread(log.fileno(), 10_000, 0)
            )
            assert self.process.poll() is None, os.pread(log.fileno(), 10_000, 0).decode()

    def kill(self) -> None:
        """End it without notice."""
        self.process.kill()
        self.process.wait()

    def drain(self, timeout: float = 30.0) -> int:
        """Ask it to end, and wait for that; return its exit status."""
        self.process.terminate()
        return self.process.wait(timeout)

    @contextlib.contextmanager
    def paused(self):  # type: ignore[no-untyped-def]
        """Stop it for the length of a with block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class Link:
    """A TCP connection that can be cut: it passes bytes on to a port, on the loop of the test."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.reset()

    def freeze(self) -> None:
        """Pass nothing on, and keep what comes."""
        self._open.clear()

    def heal(self) -> None:
        """Pass all on again."""
        self._open.set()

    def reset(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, back}
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            finally:
                self._writers -= {writer, back}
                back.transport.abort()
        writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
