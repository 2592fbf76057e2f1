"""A MariaDB of the tests' own: a data directory in a temporary directory, on a free port of loopback."""

import contextlib
import os
import shutil

import pymysql

from support import debian
from support.ensemble import free_ports
from support.served import Served

PACKAGE = "mariadb-server-core"  # the program alone: `mariadb-server` would bring a service, too
PROGRAM = "mariadbd"
OPTIONS = {
    "bind-address": "127.0.0.1",
    "skip-grant-tables": "1",  # so it needs none of the system's tables
    "skip-name-resolve": "1",
    "max-connections": "200",
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "8M",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "innodb-doublewrite": "0",
    "innodb-stats-persistent": "0",
    "loose-innodb-snapshot-isolation": "OFF",  # ON by default from 11.6.2 on: it refuses such writes itself
}
TIED = debian.tied("KILL")


def find_mariadb():
    """Return the path of `mariadbd`, which Debian keeps off the PATH of accounts other than root."""
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/usr/sbin")
    if program is None:
        raise debian.NotInstalled("MariaDB server", PACKAGE)
    return program


class MariaDB(Served):
    def __init__(self):
        self._program = find_mariadb()
        super().__init__()
        (self.port,) = free_ports(1)

    def settings(self, isolation_level):
        return {
            "ENGINE": "support.mysql",
            "NAME": "tests",
            "USER": "tests",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "OPTIONS": {"isolation_level": isolation_level, "ssl_disabled": True},  # or each connection reads all roots
        }

    def _launch(self):
        data = self._directory / "data"
        data.mkdir()
        first = self._directory / "first.sql"
        first.write_text("CREATE DATABASE tests;\n")
        options = {
            **OPTIONS,
            "datadir": str(data),
            "init-file": str(first),
            "port": str(self.port),
            "socket": "socket",  # in `datadir`: the whole path of a socket can have 107 bytes
            "pid-file": str(self._directory / "pid"),
        }
        if os.geteuid() == 0:
            options["user"] = "root"  # which it refuses otherwise
        words = [f"--{name}={value}" for name, value in options.items()]
        self._start([*TIED, self._program, "--no-defaults", *words])

    def _answers(self):
        with contextlib.suppress(pymysql.err.OperationalError):
            pymysql.connect(host="127.0.0.1", port=self.port, database="tests", connect_timeout=5).close()
            return True
        return False
