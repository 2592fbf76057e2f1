"""
A Python that has imported what the programs of a user import, and forks for each program that a test runs.

To import pytest, Django and this package takes a program more time than all that it does then.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TIMEOUT = 250
"""A program that takes longer ends with a traceback."""

MODULES = (
    "pytest",
    "unittest.mock",
    "logging.config",
    "django.test.runner",
    "django.core.management.commands.test",
    "django.core.management.commands.migrate",
    "django.contrib.messages",
    "django.contrib.staticfiles.testing",
    "django.core.handlers.asgi",
    "django.db.backends.sqlite3.base",
    "django.template.defaulttags",
    "celery.app.base",
    "celery.app.task",
    "kombu.transport.memory",
    "kazoo.client",
    "django_zklock.apps",
    "django_zklock.checks",
    "django_zklock.inspection",
    "django_zklock.middleware",
    "django_zklock.operations",
    "django_zklock.testing.runner",
    "django_zklock.testing.server",
    "django_zklock.testing.tester",
    "django_zklock.testing.cases",
)
"""Modules that can be imported without settings. pytest's plugins are not among them, as pytest rewrites those."""


class Warm:
    """Runs programs, one after the other, each in a fork of one process, which ends with this one."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", __spec__.name]
        self._process = subprocess.Popen(
            command, cwd=TESTS, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.communicate)

    def run(
        self, arguments: tuple[str, ...], directory: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `python` with arguments to its end."""
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as files:
            out, err = Path(files, "out"), Path(files, "err")
            job = [arguments, str(directory), environment, str(out), str(err)]
            print(json.dumps(job), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())


def _run(arguments: list[str], directory: str, environment: dict[str, str], out: str, err: str) -> None:
    """Run a program in this process, as Python does."""
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = directory
    what, *others = arguments
    if what in ("-m", "-c"):
        sys.argv = [what, *others[1:]]
    else:
        sys.argv = arguments
    if what == "-m":
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        exec(others[0], {"__name__": "__main__"})
    else:
        runpy.run_path(what, run_name="__main__")


def _exit_with(statuses: list[int]) -> None:
    """End the process of a program. Python would first take apart all that the parent has imported."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


def _serve() -> None:
    """Fork for each line of the input."""
    statuses: list[int] = []
    atexit.register(_exit_with, statuses)  # as the last of all
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector of a fork would copy all pages
    while line := sys.stdin.readline():
        if (child := os.fork()) == 0:
            try:
                _run(*json.loads(line))
                statuses.append(0)
            except SystemExit as end:
                statuses.append(end.code if isinstance(end.code, int) else int(end.code is not None))
            except BaseException:
                sys.excepthook(*sys.exc_info())
                statuses.append(1)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
