"""The commands that `show` and the doctor print, in a real shell: refused as printed, done with a reason."""

import contextlib
import io
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from django.core.management import execute_from_command_line
from support.docs import shell
from support.locking import ending
from support.project import environment
from support.reserving import queued

from django_zklock.contrib.celery.unique.reservations import lock_key
from django_zklock.management.exit_codes import ExitCode
from django_zklock.names.template import own_key
from django_zklock.report.verdict import CAUSES

pytestmark = pytest.mark.timeout(150)

NAMES = ["orders/7", "kunden/Jürgen Groß", """O'Brien says "$(touch pwned)" & `x`; {a}""", "-rf", "50% off"]


@pytest.mark.chaos
def test_each_printed_command_needs_only_a_reason(zoo, contend, project):
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = partial(shell, "-c", directory=project.directory, env=environment(ZKLOCK_URL=zoo.url(), PATH=search))
    for name in NAMES:
        key = own_key(name)
        node = contend(key, template=name)
        with zoo.configured():
            _, text, _ = ending("show", "--json", "--", key)
        request, breaking = json.loads(text)["commands"]
        for command in (request, breaking):
            refused = run(command)
            assert refused.returncode == ExitCode.USAGE, refused
            assert "--reason: write between the quotes why you do this" in refused.stderr
        assert zoo.client.exists(node)
        asked = run(request.replace("--reason=''", "--reason='it hangs'"))
        assert (asked.returncode, asked.stderr) == (0, "")
        done = run(breaking.replace("--reason=''", "--reason='it hangs'"))
        assert (done.returncode, done.stderr) == (0, "")
        assert not zoo.client.exists(node)
    assert not (project.directory / "pwned").exists()


@pytest.mark.parametrize("reason", ["", "  "])
@pytest.mark.parametrize(
    "arguments",
    [
        ("break", "k", "--token=5"),
        ("request-release", "k"),
        ("hold", "k", "--for", "1m"),
        ("end-hold", "k", "--token=5"),
        ("limit", "k", "3"),
    ],
)
def test_a_reason_that_says_nothing_is_refused(arguments, reason):
    status, _, text = ending(*arguments, "--reason", reason)
    assert (status, text) == (
        ExitCode.USAGE,
        "argument --reason: write between the quotes why you do this: it is kept in the audit log",
    )


@pytest.mark.django_db
def test_no_printed_command_runs_what_others_have_written(zoo, contend, project):
    """
    Neither a key nor a host nor the id of a task is an option, or a command of the shell, when it is pasted.

    A real shell makes the words of each, and Django runs them as `manage.py` does, in this process.
    """
    quotes, printed = "\n$(touch pwned);`touch pwned`\x1b[2K'\"\u202e", set[str]()
    names = {"doctor", "show", "list", "request-release", "break", "end-hold"}
    before = (os.environ["DJANGO_SETTINGS_MODULE"], list(sys.path))
    with zoo.configured():
        for key, host in (("--pythonpath=evil", "--pythonpath=evil"), ("-h", "--settings=evil"), ("k", quotes)):
            contend(key, host=host, template="k")
            printed.update(json.loads(ending("show", "--json", "--", key)[1])["commands"])
            ending("hold", "--for=60", "--reason=deploy", "--", f"{key}/held")
            held = ending("show", "--", f"{key}/held")[1]
            queued(f"task/t/{key}/free", host)
            reserved = ending("show", "--", lock_key(f"task/t/{key}/free"))[1]
            texts = (held + reserved).splitlines()
            printed.update(text.partition(": ")[2] for text in texts if "python manage.py" in text)
            for cause in CAUSES.values():
                printed.update(cause(host=host, keys=(key,)).commands())
        for line in sorted(printed):
            filled = line.replace("--reason=''", "--reason=hangs")
            as_words = f"python() {{ printf '%s\\0' \"$@\"; }}; {filled}"
            _manage, *arguments = shell("-e", "-c", as_words, directory=project.directory).stdout.split("\0")[:-1]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                try:
                    execute_from_command_line(["manage.py", *arguments])
                except SystemExit as end:
                    assert end.code != ExitCode.USAGE, line
            assert (os.environ["DJANGO_SETTINGS_MODULE"], sys.path) == before, line
            names.discard(arguments[1])
    assert names == set()
    assert not list(project.directory.rglob("pwned"))
