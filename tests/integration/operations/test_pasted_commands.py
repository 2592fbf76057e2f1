"""The commands that `show` and the doctor print, in a real shell: refused as printed, done with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support.locking import ending
from support.project import Project, environment
from support.zoo import Zoo

from django_zklock.core.queue import nodes
from django_zklock.core.queue.escaping import path
from django_zklock.management.exit_codes import ExitCode
from django_zklock.names.template import own_key

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(150)]

NAMES = ["orders/7", "kunden/Jürgen Groß", """O'Brien says "$(touch pwned)" & `x`; {a}""", "-rf", "50% off"]


class Shell:
    """A shell in the directory of a project that uses this namespace."""

    def __init__(self, project: Project, zoo: Zoo) -> None:
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.project, self.environment = project, environment(ZKLOCK_URL=zoo.url(), PATH=search)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.project.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.chaos
def test_each_printed_command_needs_only_a_reason(zoo: Zoo, project: Project) -> None:
    """This holds for any key. A command that is pasted as it is changes nothing."""
    shell = Shell(project, zoo)
    for name in NAMES:
        key = own_key(name)
        payload = nodes.Payload(
            guid=(guid := str(uuid.uuid4())), host="web-1", pid=1, thread="", what="", since="", template=name
        )
        node = zoo.client.create(
            f"{path(zoo.base, key)}/{nodes.prefix(guid)}",
            payload.encode(),
            ephemeral=True,
            sequence=True,
            makepath=True,
        )
        with zoo.configured():
            _, text, _ = ending("show", "--json", "--", key)
        (request, breaking) = json.loads(text)["commands"]
        for command in (request, breaking):
            refused = shell.run(command)
            assert refused.returncode == ExitCode.USAGE, refused
            assert "--reason: write between the quotes why you do this" in refused.stderr
        assert zoo.client.exists(node)
        asked = shell.run(request.replace("--reason ''", "--reason 'it hangs'"))
        assert (asked.returncode, asked.stderr) == (0, "")
        done = shell.run(breaking.replace("--reason ''", "--no-input --reason 'it hangs'"))
        assert (done.returncode, done.stderr) == (0, "")
        assert not zoo.client.exists(node)
    assert not (project.directory / "pwned").exists()


@pytest.mark.parametrize("reason", ["", "  ", "TEXT"])
@pytest.mark.parametrize(
    "arguments",
    [("break", "k"), ("request-release", "k"), ("hold", "k", "--for", "1m"), ("end-hold", "k"), ("limit", "k", "3")],
)
def test_a_reason_that_says_nothing_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    """Also the placeholder of older releases. No server is asked."""
    status, _, text = ending(*arguments, "--reason", reason)
    assert (status, text) == (
        ExitCode.USAGE,
        "argument --reason: write between the quotes why you do this: it is kept in the audit log",
    )
