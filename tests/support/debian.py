"""Install what tests need from Debian's packages, and stop a server with the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian's packages run this script before they start the service that they bring."""


class NotInstalled(RuntimeError):
    """A program that tests need is missing. The message says what to install."""

    def __init__(self, what: str, *packages: str) -> None:
        super().__init__(
            f"No {what} was found, and tests need it. Install it with `apt-get install {' '.join(packages)}` (Debian, "
            "Ubuntu), or put it on the PATH."
        )
        self.packages = packages


def ensure(
    *finds: Callable[[], object], installing: Callable[[], AbstractContextManager[object]] = nullcontext
) -> None:
    """
    Make sure that these find what they look for, and say so.

    What is missing is installed where that is allowed; with `installing()` around it. Each of them raises
    `NotInstalled`.
    """
    missing: list[str] = []
    for find in finds:
        try:
            find()
        except NotInstalled as problem:
            if not may_install():
                raise SystemExit(str(problem)) from None
            missing += problem.packages
    if missing:
        with installing():
            install(*missing)
    for find in finds:
        find()
        print(f"{find.__name__.removeprefix('find_')} is installed")


def tied(signal_name: str) -> list[str]:
    """Return what makes a command end with this process, by that signal, where there is such a thing (Linux)."""
    return ["setpriv", "--pdeathsig", signal_name] if shutil.which("setpriv") else []


def may_install() -> bool:
    """Tell whether this is a machine with apt, and we are its administrator."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install(*packages: str) -> None:
    """Install packages; raise SystemExit where that fails."""
    print(f"Installing: apt-get install {' '.join(packages)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", *command], env=env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise SystemExit(f"apt-get {command[0]} failed. Mend that, or install {' and '.join(packages)} otherwise.")


@contextlib.contextmanager
def no_services() -> Iterator[None]:
    """Keep packages that are installed meanwhile from starting a service, on the usual port, that nobody asked for."""
    if POLICY.exists():
        yield  # the makers of this machine have decided
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
