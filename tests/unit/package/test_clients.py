"""The clients of the lock coordinator speak its protocol, and their packages are complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import django_zklock.contrib.leases.v1.lock_coordinator_pb2 as of_the_server
import zklock_client.v1.lock_coordinator_pb2 as of_the_client

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "django_zklock" / "contrib" / "leases" / "v1"
PYTHON, NODE = ROOT / "clients" / "python", ROOT / "clients" / "node"


def test_the_clients_have_the_protocol_of_the_coordinator() -> None:
    """Each package needs no other: that of Python has the generated messages, that of Node the protocol itself."""
    for name in ("lock_coordinator_pb2.py", "lock_coordinator_pb2.pyi"):
        assert (PYTHON / "zklock_client" / "v1" / name).read_bytes() == (SERVER / name).read_bytes()
    assert (NODE / "lock_coordinator.proto").read_bytes() == (SERVER / "lock_coordinator.proto").read_bytes()


def test_client_and_server_may_be_in_one_process() -> None:
    """Protobuf registers their messages once."""
    assert of_the_client.DESCRIPTOR is of_the_server.DESCRIPTOR


def test_the_python_client_needs_the_protobuf_that_its_code_was_generated_for() -> None:
    """Generated code refuses to be imported with an older protobuf."""
    (version,) = re.findall(
        r"^# Protobuf Python Version: (.+)$", (SERVER / "lock_coordinator_pb2.py").read_text(), re.MULTILINE
    )
    assert f'"protobuf>={version}"' in (PYTHON / "pyproject.toml").read_text()


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_python_distributions_are_complete(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(PYTHON)]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        assert any(name.endswith("/LICENSE") for name in sdist.getnames())
    source = PYTHON / "zklock_client"
    modules = {str(path.relative_to(PYTHON)) for path in source.rglob("*") if path.suffix in (".py", ".pyi")}
    assert {name for name in names if not name.startswith("zklock_client-")} == modules | {"zklock_client/py.typed"}
