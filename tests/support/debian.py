"""Find or install a server of Debian's packages, and stop it with the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")
"""What Debian's packages ask before they start the service that they bring."""


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
