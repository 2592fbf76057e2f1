"""Install the programs that tests need, or say in one line how, and stop a server with the tests."""

import contextlib
import os
import shutil
import subprocess
from contextlib import nullcontext

MANAGERS = {
    "apt-get": "apt-get install --no-install-recommends",
    "dnf": "dnf install",
    "apk": "apk add",
    "brew": "brew install",
}
ELSEWHERE = {
    "libzookeeper-java": ("", "", "zookeeper"),
    "default-jre-headless": ("java-latest-openjdk-headless", "openjdk21-jre-headless", "openjdk"),
    "postgresql": ("postgresql-server", "postgresql", "postgresql"),
    "mariadb-server-core": ("mariadb-server", "mariadb", "mariadb"),
    "redis-server": ("redis", "redis", "redis"),
    "rabbitmq-server": ("rabbitmq-server", "rabbitmq-server", "rabbitmq"),
    "chromium": ("chromium", "chromium", "chromium"),
    "fonts-dejavu-core": ("dejavu-sans-fonts", "font-dejavu", ""),
}
"""Debian's packages under their names in Fedora, Alpine and Homebrew, where we know them."""


class NotInstalled(RuntimeError):
    """A program that tests need is missing. `packages` are Debian's that bring it; none if no package can."""

    def __init__(self, what, *packages):
        super().__init__(f"no {what}")
        self.packages = packages


def ensure(
    *finds,
    installing=nullcontext,
    or_skip=False,
):
    """Install what these do not find, where that is allowed; else say how, and exit, unless the tests may skip it."""
    problems = list(filter(None, map(missing, finds)))
    packages = list(dict.fromkeys(package for problem in problems for package in problem.packages))
    if packages and may_install():
        with installing():
            install(*packages)
        problems = list(filter(None, map(missing, finds)))
    if problems:
        message = "; ".join(map(str, problems)) + f".\n    {advice(problems)}"
        if not or_skip or all_wanted():
            raise SystemExit(f"Missing: {message}")
        print(f"The tests that need these programs are skipped: {message}", flush=True)


def missing(find):
    try:
        find()
    except NotInstalled as problem:
        return problem
    return None


def all_wanted():
    """Return whether a missing program is an error: in CI, where skipped tests stay unseen, or if the user says so."""
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "ZKLOCK_TESTS_ALL"))


def advice(problems):
    packages = dict.fromkeys(package for problem in problems for package in problem.packages)
    manager = next(filter(shutil.which, MANAGERS), "apt-get")
    if manager != "apt-get":
        column = list(MANAGERS).index(manager) - 1
        packages = dict.fromkeys(name for package in packages if (name := ELSEWHERE.get(package, ("", "", ""))[column]))
    words = [] if manager == "brew" or os.geteuid() == 0 else ["sudo"]
    command = " ".join([*words, MANAGERS[manager], *packages]) if packages else ""
    if manager in ("dnf", "apk") and any("libzookeeper-java" in problem.packages for problem in problems):
        release = "unpack https://zookeeper.apache.org/releases.html and set ZOOKEEPER_HOME to its directory"
        return "; ".join(filter(None, (command, release)))
    return command or "Put them on the PATH."


def tied(signal_name):
    """Return what makes a command end with this process, by that signal, where there is such a thing (Linux)."""
    return ["setpriv", "--pdeathsig", signal_name] if shutil.which("setpriv") else []


def may_install():
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install(*packages):
    print(f"Installing: apt-get install {' '.join(packages)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # An update that reaches no server would end with 0, and the install would not find the packages.
    update = ["update", "-o", "APT::Update::Error-Mode=any"]
    for command in (update, ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", *command], env=env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            why = "reached not all of its servers" if command is update else "failed"
            raise SystemExit(f"apt-get {command[0]} {why}. Mend that, or install {' '.join(packages)} otherwise.")


@contextlib.contextmanager
def having(file, text, *, unless):
    """Have a script meanwhile, unless there is what shows that the makers of this machine have decided."""
    if unless.exists():
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    try:
        yield
    finally:
        file.unlink()
