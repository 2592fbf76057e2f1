"""Find a ZooKeeper for the demo: a running server, or jars to start one, or the command that installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from support.ensemble import ZooKeeperNotFound, find_classpath, find_java, four_letter

#: Debian's jars and a Java without windows; its package `zookeeper` would bring a service and a desktop's libraries.
PACKAGES = ("libzookeeper-java", "default-jre-headless")


def answers(url: str) -> bool:
    """Return whether a server of a `zk://` URL answers."""
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "2181")
        try:
            if four_letter(name.strip("[]"), int(port), "srvr"):
                return True
        except (OSError, ValueError):
            continue
    return False


def ensure_jars() -> None:
    """Make sure that a server can be started here. Install Debian's package if that is allowed."""
    try:
        find_java()
        find_classpath()
    except ZooKeeperNotFound as problem:
        if "ZOOKEEPER_HOME" in os.environ or not may_install():
            raise SystemExit(advice(problem)) from None
    else:
        return
    print(f"Installing ZooKeeper: apt-get install {' '.join(PACKAGES)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", "-qq", *command], env=env, check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"apt-get {command[0]} failed. Mend that, or set ZOOKEEPER_HOME, and try again.")
    find_java()
    find_classpath()


def may_install() -> bool:
    """Return whether this machine has apt and this user is root."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def advice(problem: Exception) -> str:
    """Return the install command for this machine."""
    lines = []
    if shutil.which("apt-get"):
        lines.append(f"sudo apt-get install {' '.join(PACKAGES)}")
    if shutil.which("brew") or sys.platform == "darwin":
        lines.append("brew install zookeeper")
    if shutil.which("docker") or not lines:
        lines.append("docker run -d -p 2181:2181 zookeeper:3.9   # then: export ZKLOCK_URL=zk://127.0.0.1:2181/shop")
    reason = str(problem).partition(". ")[0]
    return f"No ZooKeeper here ({reason}). Get one with:\n\n    " + "\n    ".join(lines) + "\n\nand try again."


if __name__ == "__main__":
    ensure_jars()
    print(f"ZooKeeper: {Path(find_classpath()[0]).resolve().name}, Java: {find_java()}")
