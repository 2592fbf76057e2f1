"""Lock coordinators in processes of their own, and the network between them and their clients."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support import forked
from support.ensemble import free_ports
from support.zoo import TESTS, Zoo, eventually


class Serving:
    """`manage.py zklock serve`, for the length of a with block; it may be killed, paused and started again."""

    def __init__(
        self,
        zoo: Zoo,
        *options: str,
        hosts: str | None = None,
        session_timeout: float = 4,
        env: Mapping[str, str] | None = None,
        leases: Mapping[str, object] | None = None,
        http: bool = False,
    ) -> None:
        """Prepare it; `leases` are its settings of this name, and `http` lets it serve HTTP, too."""
        self.zoo = zoo
        self.port, self.http_port = free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        if http:
            options = ("--http", f"127.0.0.1:{self.http_port}", *options)
        self._command = ["-u", "-m", "django", "zklock", "serve", "--grpc", self.address, *options]
        self._env = {**zoo.environment(hosts, session_timeout), **(env or {})}
        self._leases = leases
        self._folder = tempfile.TemporaryDirectory()
        self._begins_at = 0  # in the log
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        self.launch()
        self.await_serving()

    def launch(self) -> None:
        """Start the process, and wait for nothing."""
        env = self._env
        if self._leases is not None:
            settings = Path(self._folder.name, "lease_settings.py")
            settings.write_text(f"from settings import *\nZKLOCK['LEASES'] = {self._leases!r}\n")
            path = os.pathsep.join((self._folder.name, env["PYTHONPATH"]))
            env = {**env, "DJANGO_SETTINGS_MODULE": settings.stem, "PYTHONPATH": path}
        with self._log.open("ab") as log:
            self._begins_at = log.tell()
            self.process = forked.start(self._command, cwd=TESTS, env=env, stdout=log, stderr=log)

    def await_serving(self) -> None:
        def begins() -> bool:
            return self.process.poll() is not None or "gRPC is served" in self.log()[self._begins_at :]

        try:
            eventually(begins, 60)
            assert self.process.poll() is None
        except AssertionError as error:
            self.kill()
            raise AssertionError(self.log()) from error

    @property
    def _log(self) -> Path:
        return Path(self._folder.name, "log")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def drain(self, timeout: float = 30.0) -> int:
        self.process.terminate()
        return self.process.wait(timeout)

    @contextlib.contextmanager
    def paused(self):  # type: ignore[no-untyped-def]
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Serving:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._folder.cleanup()
