"""`manage.py zklock devserver`, as a process of its own."""

import re
import signal
import socket
import threading
from contextlib import contextmanager

import pytest
from django.test import override_settings
from support.chaos.servers import looking_in
from support.ensemble import free_ports
from support.locking import ending
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.management.exit_codes import ExitCode
from django_zklock.testing.tester import wait_released


class Running:
    def __init__(self, process):
        self.process = process
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def text(self):
        return "".join(self.lines)

    @property
    def address(self):
        (address,) = eventually(lambda: re.findall(r'"URL": "zk://(127\.0\.0\.1:\d+)/myproject"', self.text), 20)
        return str(address)

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(30)
        assert self.process.stderr is not None
        assert (code, self.process.stderr.read()) == (0, "")
        return self.text


@contextmanager
def devserver(project, *options, **env):
    process = project.start("manage.py", "zklock", *options, **env)
    running = Running(process)
    try:
        eventually(lambda: "listens on" in running.text, 20)
        yield running
    finally:
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def token_on(address):
    with override_settings(ZKLOCK={"URL": f"zk://{address}/myproject"}):
        with zk_lock("a", timeout=30) as hold:
            token = hold.token
        wait_released()
    return token


def test_the_dev_server_serves_until_a_signal(project):
    """Fencing tokens rise over its restarts."""
    project.write("bare_settings.py", "SECRET_KEY = 'x'\nDEBUG = True\nINSTALLED_APPS = ['django_zklock']\n")
    project.write("other_settings.py", "from project_settings import *\nDEBUG = True\n")
    before = ["--settings=bare_settings", "devserver", "--port=0", "--tick=0.2"]
    with devserver(project, *before) as running:
        with looking_in(running.address) as client:
            eventually(lambda: "opened by" in running.text)
            client.create("/a")
        first = token_on(running.address)
        eventually(lambda: "is over" in running.text)
        text = running.end(signal.SIGTERM)
    assert "Ctrl-C" in text
    assert text.endswith("Stopped.\n")
    (port,) = free_ports(1)
    behind = ["devserver", "--settings=other_settings", "--no-color", "-v0"]
    with devserver(project, *behind, ZKLOCK_URL=f"zk://zk.example:2181,localhost:{port}/myproject") as running:
        assert f"127.0.0.1:{port}, as your settings say" in running.text
        assert first < token_on(f"127.0.0.1:{port}")
        running.end(signal.SIGINT)


def test_the_dev_server_runs_in_production_only_if_forced(project):
    """It claims no address of another family: clients that are told to use ::1 do not find a server on 127.0.0.1."""
    status, _, message = ending("devserver", "--port=0")
    assert (status, "DEBUG is off" in message, "--force" in message) == (ExitCode.FAILED, True, True)
    (port,) = free_ports(1)
    options = ["devserver", "--force", f"--port={port}"]
    with devserver(project, *options, ZKLOCK_URL=f"zk://[::1]:{port}/myproject") as running:
        assert running.address == f"127.0.0.1:{port}"


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # Python leaves it if the number is too high
def test_the_dev_server_says_why_it_cannot_start():
    with override_settings(DEBUG=True), socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for option in ("--port=99999", f"--port={port}"):
            status, _, message = ending("devserver", option)
            assert status == ExitCode.FAILED
            assert "cannot start" in message
            assert ("Change the port" in message and f"127.0.0.1:{port}" in message) is (str(port) in option)
