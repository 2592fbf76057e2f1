"""The commands that `show` and the doctor print, in a real shell: refused as printed, done with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.locking import ending
from support.project import Project, environment
from support.zoo import Zoo

from django_zklock.contrib.celery.unique import reservations
from django_zklock.core.queue import nodes
from django_zklock.core.queue.escaping import path
from django_zklock.dashboard.incidents import CAUSES, Incident, describe
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
            ["bash", "-c", command],
            cwd=self.project.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def contend(zoo: Zoo, key: str, name: str, host: str = "web-1") -> str:
    """Put the contender of another process into a queue; return its path."""
    guid = str(uuid.uuid4())
    payload = nodes.Payload(guid=guid, host=host, pid=1, thread="", what="", since="", template=name)
    made: str = zoo.client.create(
        f"{path(zoo.base, key)}/{nodes.prefix(guid)}", payload.encode(), ephemeral=True, sequence=True, makepath=True
    )
    return made


@pytest.mark.chaos
def test_each_printed_command_needs_only_a_reason(zoo: Zoo, project: Project) -> None:
    """This holds for any key. A command that is pasted as it is changes nothing."""
    shell = Shell(project, zoo)
    for name in NAMES:
        key = own_key(name)
        node = contend(zoo, key, name)
        with zoo.configured():
            _, text, _ = ending("show", "--json", "--", key)
        (request, breaking) = json.loads(text)["commands"]
        for command in (request, breaking):
            refused = shell.run(command)
            assert refused.returncode == ExitCode.USAGE, refused
            assert "--reason: write between the quotes why you do this" in refused.stderr
        assert zoo.client.exists(node)
        asked = shell.run(request.replace("--reason=''", "--reason='it hangs'"))
        assert (asked.returncode, asked.stderr) == (0, "")
        done = shell.run(breaking.replace("--reason=''", "--no-input --reason='it hangs'"))
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


@pytest.mark.django_db
def test_no_printed_command_runs_what_others_have_written(zoo: Zoo, project: Project) -> None:
    """Neither a key nor a host nor the id of a task is an option, or a command of the shell, when it is pasted."""
    pwned = 'open("pwned", "w")\n'
    evil = project.write("evil/project_settings.py", pwned).parent
    project.write("evil_settings.py", pwned)
    shell, printed = Shell(project, zoo), set[str]()
    quotes = "\n$(touch pwned);`touch pwned`\x1b[2K'\"\u202e"
    for key, host in (
        (f"--pythonpath={evil}", f"--pythonpath={evil}"),
        ("-h", "--settings=evil_settings"),
        ("k", quotes),
    ):
        contend(zoo, key, "k", host)
        with zoo.configured():
            printed.update(json.loads(ending("show", "--json", "--", key)[1])["commands"])
            held = ending("hold", "--for=60", "--reason=deploy", "--", f"{key}/held")[1]
            reservations.reserve(f"task/t/{key}/free", host)
            unheld = ending("show", "--", f"{key}/free")[2]
            reserved = ending("unique", "show", "--", f"task/t/{key}/free")[1]
        printed.update(text.partition(": ")[2] for text in (held + reserved).splitlines() if "python manage.py" in text)
        printed.add(unheld.partition("Next: ")[2])
        for cause in CAUSES:
            texts = ("holder", "work", "works", "by", "operator", "stories", "order")
            values = {**dict.fromkeys(texts, ""), "count": 1, "refused": 1, "callers": 1}
            printed.update(describe(Incident(cause=cause, host=host, keys=(key,), values=values))["commands"])
    lines = sorted(line.replace("--reason=''", "--reason=hangs") for line in printed)
    lines = [line.replace(" break ", " break --no-input ") for line in lines]
    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(shell.run, lines))
    assert not list(project.directory.rglob("pwned"))
    usage = [(line, done.stderr) for line, done in zip(lines, ends, strict=True) if done.returncode == ExitCode.USAGE]
    assert usage == []
    names = {"doctor", "show", "list", "history", "request-release", "break", "end-hold", "unique"}
    assert {line.split()[3] for line in lines} == names
    assert not [done.stderr for done in ends if "Traceback" in done.stderr]
