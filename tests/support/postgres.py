"""A PostgreSQL of the tests' own: a cluster in a temporary directory, on a free port of loopback."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

from support import debian
from support.ensemble import free_ports
from support.served import Served

PACKAGE = "postgresql"
PROGRAMS = Path("/usr/lib/postgresql")  # Debian's, by version
ACCOUNTS = ("postgres", "nobody")  # that may run it where the tests run as root, which it refuses
OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
}
TIED = debian.tied("QUIT")


def find_postgres():
    """Return the directory of `initdb` and `postgres`: the newest of Debian's, else on the PATH."""
    by_version = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if by_version:
        return by_version[-1].parent
    program = shutil.which("initdb")
    if program is None or not Path(program).resolve().with_name("postgres").exists():
        raise debian.NotInstalled("PostgreSQL server", PACKAGE)
    return Path(program).resolve().parent


class Postgres(Served):
    end = signal.SIGQUIT  # its way to end at once

    def __init__(self):
        self._programs = find_postgres()
        super().__init__(_open_parent() if os.geteuid() == 0 else None)
        self._prefix = []  # what makes another account of root
        self._as = {}  # the same
        (self.port,) = free_ports(1)

    @property
    def settings(self):
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "tests",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }

    def _launch(self):
        self._become_user()
        data = self._directory / "data"
        if not data.exists():
            self._create(data)
        options = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
        server = [str(self._programs / "postgres"), "-D", str(data), "-p", str(self.port)]
        command = [*self._prefix, *TIED, *server, *options]
        self._start(command, **self._as)

    def _create(self, data):
        initdb = [*self._prefix, str(self._programs / "initdb"), "--no-sync", "--auth=trust", "--username=tests"]
        done = subprocess.run(
            [*initdb, "--encoding=UTF8", "--locale=C", str(data)],
            check=False,
            cwd=self._directory,
            capture_output=True,
            text=True,
            **self._as,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _become_user(self):
        if os.geteuid() != 0:
            return
        if _alone_in_namespace():
            self._prefix = ["unshare", "--user", "--map-user=1", "--map-group=1"]
            return
        account = _other_account()
        os.chown(self._directory, account.pw_uid, account.pw_gid)
        self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _answers(self):
        ask = [str(self._programs / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={self.port}"]
        return subprocess.run(ask, check=False).returncode == 0


def _alone_in_namespace():
    """Tell whether this root is one by name only, in a namespace that knows no other account."""
    try:
        lines = Path("/proc/self/uid_map").read_text().split("\n")
    except OSError:
        return False
    return sum(int(line.split()[2]) for line in lines if line) == 1


def _open_parent():
    """Return a directory that another account can enter: perhaps TMPDIR is below a folder of root's own."""
    own = Path(tempfile.gettempdir()).resolve()
    entered = all(folder.stat().st_mode & stat.S_IXOTH for folder in (own, *own.parents))
    return str(own) if entered else "/tmp"


def _other_account():
    known = {account.pw_name: account for account in pwd.getpwall()}
    return next(known[name] for name in ACCOUNTS if name in known)
