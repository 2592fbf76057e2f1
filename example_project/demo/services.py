"""The shop's processes: one web server and some workers, and the directory with their state and logs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import django
from support.ensemble import four_letter, free_ports

PROJECT = Path(__file__).resolve().parent.parent
ZOOKEEPER = "zookeeper"  # the name of its process and its log


class ServiceFailed(RuntimeError):
    """A process of the shop ended, or was not ready in time. The message names its log."""


def say(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)


@contextmanager
def state_directory(name: str) -> Iterator[Path]:
    """
    Have a directory in the checkout's `.demo` for ourselves.

    A second shop on the same database but with another ZooKeeper would sell everything twice.
    """
    directory = PROJECT.parent / ".demo" / name
    directory.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceFailed(f"another one uses {directory} already") from None
        yield directory


def end_on_signals() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that all started processes are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


class Site:
    """
    The shop's processes, started one by one and stopped together.

    Each is the leader of a process group of its own, so that a Ctrl-C reaches only us, and we stop them in order.
    """

    def __init__(self, home: Path, *, variables: Mapping[str, str | None], port: int = 0) -> None:
        self.logs = home / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.port = port or free_ports(1)[0]
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "PYTHONUNBUFFERED": "1",
            "SHOP_VAR": str(home / "shop"),
            **variables,
        }
        self.env = {name: value for name, value in env.items() if value is not None}  # None: not set
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """The address of the shop."""
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def join(self) -> None:
        """Set up Django in this process, so that it can send tasks and read the books."""
        os.environ.clear()
        os.environ.update(self.env)
        django.setup()

    def manage(self, *arguments: str, **variables: str) -> None:
        """Run a management command to its end."""
        command = [sys.executable, "manage.py", *arguments]
        env = {**self.env, **variables}
        done = subprocess.run(command, cwd=PROJECT, env=env, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ServiceFailed(f"manage.py {arguments[0]} failed:\n{done.stdout}{done.stderr}")

    def start_zookeeper(self, port: int) -> int:
        """Start the dev server, wait until it answers, and return the id of its process."""
        # With --force, as DEBUG may be off in the environment, and what is sold here is nothing real.
        self._start(ZOOKEEPER, ["manage.py", "zklock", "devserver", f"--port={port}", "--tick=0.5", "--force"])
        deadline = time.monotonic() + 30
        while True:
            self._must_run(ZOOKEEPER)
            with suppress(OSError):
                four_letter("127.0.0.1", port, "srvr")
                return self._processes[ZOOKEEPER].pid
            if time.monotonic() > deadline:
                raise ServiceFailed(f"the dev server did not answer in 30 s{self._tail(ZOOKEEPER)}")
            time.sleep(0.05)

    def start_web(self) -> None:
        """Start the web server, with a thread for each connection, and wait until it answers."""
        self._start("web", ["-m", "demo.web", f"127.0.0.1:{self.port}"])
        deadline = time.monotonic() + 30
        while True:
            self._must_run("web")
            with suppress(OSError), urllib.request.urlopen(self.url, timeout=5):
                return
            if time.monotonic() > deadline:
                raise ServiceFailed(f"web did not answer with a page in 30 s{self._tail('web')}")
            time.sleep(0.1)

    def start_workers(self, names: Iterable[str]) -> None:
        """Start prefork workers of two processes each, and wait until they take tasks."""
        options = ["--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        names = list(names)
        for name in names:
            worker = ["-m", "celery", "-A", "example_project", "worker", f"--hostname={name}@%h", "--loglevel=INFO"]
            self._start(name, [*worker, *options])
        deadline = time.monotonic() + 30
        for name in names:
            while b" ready." not in (self.logs / f"{name}.log").read_bytes():
                self._must_run(name)
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"{name} was not ready in 30 s{self._tail(name)}")
                time.sleep(0.1)

    def is_worker_child(self, pid: int) -> bool:
        """Return whether a process is a child of a worker's main process."""
        workers = {process.pid for name, process in self._processes.items() if name not in ("web", ZOOKEEPER)}
        try:
            return pid not in workers and os.getpgid(pid) in workers
        except ProcessLookupError:
            return False

    def check(self) -> None:
        """Raise ServiceFailed if a process has ended."""
        for name in self._processes:
            self._must_run(name)

    def count_in_logs(self, text: str) -> int:
        """Count the lines of the logs that contain a text."""
        logs = [log.read_text(errors="replace") for log in self.logs.glob("*.log")]
        return sum(text in line for log in logs for line in log.splitlines())

    def stop(self) -> None:
        """Stop all processes; kill those that run 15 s later. ZooKeeper is last, as the others release locks."""
        for group in ([name for name in self._processes if name != ZOOKEEPER], list(self._processes)):
            self._stop([self._processes.pop(name) for name in group if name in self._processes])

    def _stop(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # somebody may have stopped it to see what happens
        deadline = time.monotonic() + 15
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.logs / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=PROJECT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _must_run(self, name: str) -> None:
        if self._processes[name].poll() is not None:
            raise ServiceFailed(f"{name} has ended{self._tail(name)}")

    def _tail(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join([f". The end of {self.logs / f'{name}.log'}:", *lines[-15:]])
