"""`manage.py zklock devserver`, as a process of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.chaos.servers import looking_in
from support.ensemble import free_ports
from support.project import Project
from support.zoo import eventually

ACQUIRE = """
import django; django.setup()
from django_zklock import zk_lock
with zk_lock("a", timeout=30) as hold:
    print("token", hold.token)
"""


class Running:
    """The command at work: where it listens, and what it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        """The URL that it prints for the settings."""
        match = eventually(lambda: re.search(r'"URL": "(zk://127\.0\.0\.1:\d+/myproject)"', self.text), 20)
        assert match is not None
        return match[1]

    @property
    def hosts(self) -> str:
        """The address that it listens on."""
        return self.url.removeprefix("zk://").removesuffix("/myproject")

    def end(self, number: signal.Signals) -> str:
        """Send it a signal and wait for its orderly end; return all it has written."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(30)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        assert (code, errors) == (0, "")
        return self.text


@contextmanager
def devserver(project: Project, *options: str, **env: str) -> Iterator[Running]:
    process = project.start("manage.py", "zklock", "devserver", *options, **{"DEBUG": "1", **env})
    running = Running(process)
    try:
        eventually(lambda: "listens on" in running.text, 20)
        yield running
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGTERM], ids=lambda number: number.name
)
def test_another_process_acquires_a_lock_on_the_dev_server(project: Project, number: signal.Signals) -> None:
    """It serves the URL that it prints, tells of sessions, and stops in order on either signal."""
    with devserver(project, "--port=0", "--tick=0.2") as running:
        with looking_in(running.hosts):
            eventually(lambda: "opened by" in running.text)
            acquired = project.run("-c", ACQUIRE, DJANGO_SETTINGS_MODULE="project_settings", ZKLOCK_URL=running.url)
            assert re.fullmatch(r"token \d+\n", acquired.stdout), acquired.stderr
        eventually(lambda: "is over" in running.text)
        text = running.end(number)
    assert "Ctrl-C" in text
    assert text.endswith("Stopped.\n")


def test_the_dev_server_keeps_its_data_over_a_restart(project: Project) -> None:
    """With --data, what was in the tree is there again, and tokens go on rising."""
    tokens: list[int] = []
    for _ in range(2):
        with devserver(project, "--port=0", "--data=tree.bin") as running:
            with looking_in(running.hosts) as client:
                if tokens:
                    assert client.get("/kept")[0] == b"as it was"
                else:
                    client.create("/kept", b"as it was")
                    client.create("/gone", ephemeral=True)
                assert bool(client.exists("/gone")) is not bool(tokens)
            acquired = project.run("-c", ACQUIRE, DJANGO_SETTINGS_MODULE="project_settings", ZKLOCK_URL=running.url)
            tokens.append(int(acquired.stdout.split()[1]))
            assert "kept in tree.bin" in running.end(signal.SIGTERM)
    assert tokens[0] < tokens[1]
    assert (project.directory / "tree.bin").exists()


def test_the_dev_server_refuses_to_run_in_production(project: Project) -> None:
    """Where DEBUG is off it does not serve, says why, and does so only if told."""
    refused = project.run("manage.py", "zklock", "devserver", "--port=0")
    assert refused.returncode == 1
    assert "DEBUG is off" in refused.stderr
    assert "--force" in refused.stderr
    with devserver(project, "--port=0", "--force", DEBUG="0") as running:
        running.end(signal.SIGTERM)


def test_the_dev_server_runs_with_invalid_settings(project: Project) -> None:
    """A project without ZKLOCK gets the server that its URL is to name."""
    project.write("project_settings.py", "SECRET_KEY = 'x'\nDEBUG = True\nINSTALLED_APPS = ['django_zklock']\n")
    with devserver(project, "--port=0") as running:
        running.end(signal.SIGINT)


def test_the_dev_server_names_a_port_that_is_in_use(project: Project) -> None:
    """The error names the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused = project.run("manage.py", "zklock", "devserver", f"--port={port}", DEBUG="1")
    assert refused.returncode == 1
    assert f"127.0.0.1:{port}" in refused.stderr
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_dev_server_listens_where_the_settings_say(project: Project) -> None:
    """On the port of the first server that is on this machine."""
    (port,) = free_ports(1)
    with devserver(project, ZKLOCK_URL=f"zk://zk.example:2181,localhost:{port}/myproject") as running:
        assert f"127.0.0.1:{port}, as your settings say" in running.text


def test_the_dev_server_does_not_claim_an_address_of_another_family(project: Project) -> None:
    """Clients that are told to use ::1 do not find a server on 127.0.0.1."""
    (port,) = free_ports(1)
    with devserver(project, f"--port={port}", ZKLOCK_URL=f"zk://[::1]:{port}/myproject") as running:
        assert running.url == f"zk://127.0.0.1:{port}/myproject"


@pytest.mark.parametrize("fault", ["--data=manage.py", "--port=99999"])
def test_the_dev_server_says_what_is_wrong_with_an_option(project: Project, fault: str) -> None:
    """It speaks of a port that is in use only if one is."""
    refused = project.run("manage.py", "zklock", "devserver", fault, DEBUG="1")
    assert refused.returncode == 1
    assert "cannot start" in refused.stderr
    assert "Change the port" not in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--settings=other_settings", "devserver"], ["devserver", "--settings=other_settings", "--no-color", "-v0"]],
    ids=["before", "behind"],
)
def test_common_options_are_accepted_before_and_after_the_subcommand(project: Project, arguments: list[str]) -> None:
    """Options of every command are taken before and behind the sub-command."""
    project.write("other_settings.py", "from project_settings import *\nDEBUG = True\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = project.run("manage.py", "zklock", *arguments, f"--port={listener.getsockname()[1]}")
    assert "cannot start" in done.stderr, done.stderr


def test_the_command_needs_a_subcommand(project: Project) -> None:
    """Without one, the usage is an error; the help lists them all."""
    assert project.run("manage.py", "zklock").returncode == 2
    assert "devserver" in project.run("manage.py", "zklock", "--help").stdout
