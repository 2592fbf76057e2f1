"""
Programs that hold a lock with the clients of `clients`: in Python, Node, Go and Java.

`python -m support.lease_clients` installs what those in Go and Java need, where that is allowed.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from support import debian
from support.zoo import TESTS, next_line

HERE = Path(__file__).parent
CLIENTS = TESTS.parent / "clients"
CACHE = TESTS.parent / ".cache"
JARS = Path("/usr/share/java")
GO_PATH = Path("/usr/share/gocode")
GO_PACKAGE = "github.com/django-zklock/django-zklock/clients/go"
LANGUAGES = ("python", "node", "go", "java")


class Unavailable(Exception):
    """There is no tool chain for this language. The message says what is missing."""


def command(language: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the command of the program, compiled if it needs that, and what it needs in its environment."""
    return _COMMANDS[language]()


class Holder:
    """A program that holds the lock `a`."""

    def __init__(self, language: str, addresses: str, *, term: float = 1.5, wait: float = 30) -> None:
        words, env = command(language)
        arguments = [addresses, "a", str(round(term * 1000)), str(round(wait * 1000))]
        self.process = subprocess.Popen(
            [*words, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def line(self) -> str:
        """Return the next line that it prints: `held TOKEN`, `wanted REASON`, `released`, or an error."""
        return next_line(self.process)

    def token(self) -> int:
        """Wait until it holds the lock."""
        line = self.line()
        assert line.startswith("held "), line
        return int(line.removeprefix("held "))

    def release(self) -> None:
        """Have it release the lock, and end."""
        out, errors = self.process.communicate("\n", timeout=20)
        ended = (out, errors, self.process.returncode)
        assert ended == ("released\n", "", 0), ended

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def _run(*words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 400) -> None:
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def _python() -> tuple[list[str], Mapping[str, str]]:
    return [sys.executable, "-u", str(HERE / "hold.py")], {"GRPC_VERBOSITY": "ERROR"}


@functools.cache
def _node() -> tuple[list[str], Mapping[str, str]]:
    """Install the package as a user would; later runs copy its files only."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise Unavailable("the client for Node needs node and npm: apt-get install nodejs npm")
    directory, source = CACHE / "node", CLIENTS / "node"
    directory.mkdir(parents=True, exist_ok=True)
    installed = directory / "node_modules" / "zklock-client"
    if not installed.exists():
        (directory / "package.json").write_text("{}")
        try:
            options = ["--install-links", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
            _run(npm, "install", *options, source, cwd=directory, timeout=100)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(directory / "node_modules", ignore_errors=True)
            raise Unavailable(f"npm could not install the client: {error}") from error
    for name in ("package.json", *json.loads((source / "package.json").read_text())["files"]):
        shutil.copy(source / name, installed)
    return [node, str(HERE / "hold.js")], {"NODE_PATH": str(directory / "node_modules")}


_COMMANDS: dict[str, Callable[[], tuple[list[str], Mapping[str, str]]]] = {"python": _python, "node": _node}
