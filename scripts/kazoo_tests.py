"""
Run kazoo's own test suite on the dev server, or on a real one to see what the suite says there.

The suite is fetched from PyPI once, into .cache/. It is left as it is: this file is a pytest plugin, too, which gives
its harness a cluster of one dev server in place of three Java processes. What cannot pass there is in `LISTED` and
`NEEDS_ACLS`, each with its reason; a listed test that passes is an error, as is any other that fails.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from support.ensemble import Ensemble  # noqa: E402

from django_zklock.testing.server import DevServer  # noqa: E402

CACHE = ROOT / ".cache"
NEEDS = CACHE / "needs"  # what the suite imports in addition to kazoo
SERVER = "KAZOO_TESTS_SERVER"  # "dev" or "real", from the command to the plugin

#: The password is "test"; kazoo's harness starts its servers with it.
SUPER_DIGEST = "-Dzookeeper.DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU="

#: What is not run or does not pass, by the end of its name, and why.
LISTED: dict[str, str] = {
    "TestReadOnlyMode::test_read_only": "stops two servers of three",
    "test_update_host_list": "stops one server of three",
    "TestSSLClient::test_create": "TLS",
    "TestReconfig": "reconfiguration of a cluster",
}

#: What does not pass on the dev server, as it enforces no ACL.
NEEDS_ACLS: dict[str, str] = dict.fromkeys(
    (
        "TestAuthentication::test_auth",
        "TestAuthentication::test_connect_auth",
        "TestAuthentication::test_unicode_auth",
        "test_create_acl_duplicate",
        "test_create_makepath_incompatible_acls",
        "test_set_acls_empty",
    ),
    "enforcement of ACLs",
)

#: What passes or not as it happens, on any server.
RACES: dict[str, str] = {
    "TestConnectionDrop::test_connection_dropped": "breaks off while a request is sent, unless it was answered before",
}


class One:
    """One server with the interface that kazoo's harness expects of a server in a cluster."""

    def __init__(self) -> None:
        if os.environ.get(SERVER) == "real":
            ensemble = Ensemble(tick=2.0, java_options=[SUPER_DIGEST])
            ensemble.start()
            self._close = ensemble.stop
            self._server: Any = ensemble.servers[0]
        else:
            self._server = DevServer(tick=2.0)
            self._server.start()
            self._close = self._server.stop
        self.running = True

    @property
    def address(self) -> str:
        return str(self._server.address)

    def stop(self) -> None:
        """Behave like a stopped server. The data is kept."""
        self.running = False
        if hasattr(self._server, "refuse"):
            self._server.refuse = True
            self._server.cut()
        else:
            self._server.stop()

    def run(self) -> None:
        self.running = True
        if hasattr(self._server, "refuse"):
            self._server.heal()
        else:
            self._server.start()

    def close(self) -> None:
        self._close()


class Cluster:
    """The result of `kazoo.testing.harness.get_global_cluster`: here, one server."""

    def __init__(self) -> None:
        self._servers = [One()]

    def __iter__(self) -> Iterator[One]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> One:
        return self._servers[number]

    def start(self) -> None:
        if not self._servers:
            self._servers = [One()]

    def terminate(self) -> None:
        """Do nothing. The suite stops its cluster after each class, but one server serves all."""

    def get_logs(self) -> list[str]:
        return []

    def close(self) -> None:
        for server in self._servers:
            server.close()


# --- the plugin -------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Replace kazoo's cluster by one server."""
    for name in ("OpenSSL", "jks"):  # what only its TLS needs, and it imports at once
        sys.modules.setdefault(name, types.ModuleType(name))
    harness = importlib.import_module("kazoo.testing.harness")
    cluster = Cluster()
    config.add_cleanup(cluster.close)
    harness.get_global_cluster = lambda: cluster  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests as expected failures."""
    listed = LISTED if os.environ.get(SERVER) == "real" else {**LISTED, **NEEDS_ACLS}
    for item in items:
        for name, reason in {**listed, **RACES}.items():
            if f"::{name}::" in f"{item.nodeid}::":
                item.add_marker(pytest.mark.xfail(reason=reason, strict=name in listed))


# --- the command ------------------------------------------------------------------------------------------------------


def fetch() -> Path:
    """Return the directory with the sources of the installed version of kazoo."""
    name = f"kazoo-{importlib.metadata.version('kazoo')}"
    if not (CACHE / name).exists():
        CACHE.mkdir(exist_ok=True)
        download = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run([*download, "--no-binary", ":all:", name.replace("-", "=="), "-d", str(CACHE)], check=True)
        with tarfile.open(CACHE / f"{name}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    if not NEEDS.exists():
        install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
        subprocess.run([*install, "--target", str(NEEDS), "objgraph"], check=True)
    return CACHE / name


def main(arguments: Sequence[str] | None = None) -> int:
    """Download the suite and run it."""
    parser = argparse.ArgumentParser(description=main.__doc__, epilog="What is not known here goes to pytest.")
    parser.add_argument("--server", choices=["dev", "real"], default="dev")
    options, rest = parser.parse_known_args(arguments)
    sources = fetch()
    # The sources come first, so that their tests meet the kazoo that they came with.
    path = os.pathsep.join(map(str, [sources, NEEDS, Path(__file__).parent, ROOT]))
    plugins = [f"-pno:{name}" for name in ("django", "randomly", "xdist", "cacheprovider", "asyncio", "django_zklock")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        str(sources),
        "-p",
        "kazoo_tests",
        *plugins,
    ]
    command += ["--timeout=180", "-q", "-rxXfE", *(rest or ["kazoo/tests"])]
    env = {**os.environ, "PYTHONPATH": path, SERVER: options.server, "ZOOKEEPER_VERSION": "3.8.0"}
    return subprocess.run(command, cwd=sources, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
