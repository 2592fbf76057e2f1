"""Lock coordinators in processes of their own, and the network between them and their clients."""

from __future__ import annotations

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
        self._env = {**zoo.environment(hosts, session_timeout), **(env or {})}
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
