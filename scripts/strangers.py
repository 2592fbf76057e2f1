"""
Run the project's commands as on strangers' machines, and print one table. The nightly workflow runs this, as root.

    scripts/strangers.py            all situations
    scripts/strangers.py shm TMP    those whose names have one of these words

A situation is built for its command alone: a copy of the checkout, mounts, a network, and limits of its own. Nothing of
it is left behind. The exit status is 1 if one of them went wrong; its output is shown then.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{shlex.quote(sys.executable)}"
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "_build", "*.egg-info", "node_modules")
SELECTED = "tests/unit/queue tests/contract/zk/test_sending.py tests/integration/fencing/test_token_stores.py"
SELECTED += " tests/integration/brokers/test_redis_restore.py"
PYTEST = f"{PYTHON} -m pytest -q -n 2 {SELECTED}"
LONG = "long" * 25

#: Hides the programs of the tests that are installed on this machine.
HIDE = """
for folder in /usr/share/java /usr/lib/postgresql /usr/lib/rabbitmq; do
    [ ! -d $folder ] || mount -t tmpfs none $folder
done
for name in java mariadbd redis-server rabbitmq-server chromium promtool git; do
    program=$(PATH=$PATH:/usr/sbin command -v $name) && mount --bind /dev/null "$(readlink -f "$program")"
done"""

#: A `python3` as on Debian without python3-venv: it leaves half an environment, and fails.
NO_VENV = r"""cat > ../no-venv <<END
#!/bin/sh
for last; do :; done; mkdir -p \$last/bin; ln -s /bin/false \$last/bin/python
echo "ensurepip is not available"; exit 1
END
chmod +x ../no-venv"""

APT = r"""cat > apt <<END
Dir::Etc::sourcelist "$PWD/list"; Dir::Etc::sourceparts "/none"; Dir::State::lists "$PWD/lists";
END
echo 'deb [trusted=yes] http://127.0.0.1:1/ stable main' > list; mkdir -p lists/partial; export APT_CONFIG=$PWD/apt"""


@dataclass(frozen=True, slots=True)
class Situation:
    """A command in a copy of the checkout. `right` is in its output, which tells of no error."""

    name: str
    command: str
    right: str = r"\d passed"
    before: str = ""  # what root runs first, in mount and network namespaces of its own
    folder: str = "clone"
    user: bool = False  # whether an ordinary user runs the command
    alone: bool = False  # without a network, except for loopback


SITUATIONS = (
    Situation(
        "an ordinary user without programs, git and a locale, in a folder with all that a name can have",
        # An install that ends early, an environment without its Python, and then all twice.
        f"! PIP_NO_INDEX=1 PIP_FIND_LINKS= make lint && rm .venv/bin/python && make test ARGS='{SELECTED}' && "
        "! CI=1 make programs && make pytest ARGS=tests/unit/queue",
        r"skipped =.*To run more of them: sudo apt-get install .*postgresql.*Missing: no ZooKeeper.*\d passed",
        HIDE,
        "a b (2) ü",
        user=True,
    ),
    Situation(
        "python3-venv is missing, and is installed then",
        f"{NO_VENV}\n! make lint PYTHON=../no-venv && [ ! -e .venv ] && make -n lint",
        "sudo apt-get install python3-venv.*ruff check",
    ),
    Situation(
        "a checkout of another user",
        f"git init -q && chown -R 12345 . && ! git status && {PYTHON} scripts/prose.py",
        "",
    ),
    Situation(
        "apt reaches no server",
        f"{APT}; cd tests; ! {PYTHON} -c 'from support import debian; debian.install(\"redis-server\")'",
        "apt-get update reached not all of its servers",
        alone=True,
    ),
    Situation("a long TMPDIR", f"mkdir {LONG} && TMPDIR=$PWD/{LONG} {PYTEST}"),
    Situation(
        "TMPDIR below a folder of mode 700",
        f"mkdir -m 700 own && mkdir 'own/t (ü)' && TMPDIR=$PWD/own/'t (ü)' {PYTEST}",
    ),
    Situation("one core", f"taskset -c 0 {PYTEST}"),
    Situation("no IPv6", PYTEST, "no IPv6", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", alone=True),
    Situation("no /dev/shm", PYTEST, before="mount -t tmpfs -o ro none /dev/shm"),
    Situation("256 open files", f"ulimit -n 256; {PYTEST}"),
    Situation("two at once", f"{PYTEST} & {PYTEST} && wait $!"),
)


def run(situation: Situation) -> tuple[bool, str]:
    """Build a situation; return whether its command went right, and its output."""
    with tempfile.TemporaryDirectory(prefix="zklock-") as home:
        checkout = Path(home) / situation.folder
        shutil.copytree(ROOT, checkout, ignore=LEFT_OUT)
        Path(home).chmod(0o755)
        words = ["bash", "-c", situation.command]
        if situation.user:
            for path in (Path(home), *Path(home).rglob("*")):
                shutil.chown(path, "nobody")
            words = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *words]
        # `.venv` of this checkout knows the package here: PYTHONPATH wins over it.
        env = (
            {"HOME": home, "PYTHONPATH": str(checkout), "LANG": "C"}
            if not situation.user
            else {"HOME": home, "LANG": "C"}
        )
        words = ["env", "-u", "CI", *(f"{name}={value}" for name, value in env.items()), *words]
        loopback = "ip link set lo up" if situation.alone else ":"
        script = f"set -e\n{loopback}\n{situation.before}\nexec {shlex.join(words)}"
        unshare = ["unshare", "--mount", *(["--net"] if situation.alone else []), "bash", "-c", script]
        together = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(unshare, cwd=checkout, check=False, **together)
    output = done.stdout
    said = re.search(situation.right, output, re.DOTALL)
    return done.returncode == 0 and said is not None and "Traceback" not in output, output


def main(words: list[str]) -> int:
    """Run the situations, and print a line for each."""
    failed = 0
    for situation in SITUATIONS:
        if words and not any(word in situation.name for word in words):
            continue
        began = time.monotonic()
        right, output = run(situation)
        failed += not right
        sys.stdout.write(f"{'right' if right else 'WRONG'} {time.monotonic() - began:5.0f} s  {situation.name}\n")
        sys.stdout.write("" if right else f"{output}\n")
        sys.stdout.flush()
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
