"""Lock coordinators in processes of their own, and the network between them and their clients."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

from support import forked
from support.ensemble import free_ports
from support.zoo import TESTS, eventually


class Serving:
    """`manage.py zklock serve`, for the length of a with block; it may be killed, paused and started again."""

    def __init__(self, zoo, *options, hosts=None, session_timeout=4, env=None, leases=None):
        """Prepare it; `leases` are its settings of this name."""
        self.zoo = zoo
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self._command = ["-u", "-m", "django", "zklock", "serve", "--grpc", self.address, *options]
        self._env = {**zoo.environment(hosts, session_timeout), **(env or {})}
        self._leases = leases
        self._folder = tempfile.TemporaryDirectory()
        self._begins_at = 0  # in the log

    def start(self):
        self.launch()
        self.await_serving()

    def launch(self):
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

    def await_serving(self):
        def begins():
            return self.process.poll() is not None or "gRPC is served" in self.log()[self._begins_at :]

        try:
            eventually(begins, 60)
            assert self.process.poll() is None
        except AssertionError as error:
            self.kill()
            raise AssertionError(self.log()) from error

    @property
    def _log(self):
        return Path(self._folder.name, "log")

    def log(self):
        return self._log.read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self, timeout=30.0):
        self.process.terminate()
        return self.process.wait(timeout)

    @contextlib.contextmanager
    def paused(self):
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.kill()
        self._folder.cleanup()
