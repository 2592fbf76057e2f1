"""The example for Node, in `examples/leases/node`, against a real coordinator."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import Serving
from support.zoo import TESTS, Zoo, next_line

from django_zklock.contrib.leases.client import ZkLockClient
from django_zklock.exceptions import LockTimeout

pytestmark = pytest.mark.zookeeper

ROOT = TESTS.parent
EXAMPLE = ROOT / "examples" / "leases" / "node"
PROTO = ROOT / "django_zklock" / "contrib" / "leases" / "v1" / "lock_coordinator.proto"
PACKAGES = ROOT / ".cache" / "node"


@pytest.fixture(scope="module")
def example() -> Path:
    """The example as a user would copy it, with the packages that it needs."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("the example for Node needs node and npm: apt-get install nodejs npm")
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for file in (EXAMPLE / "package.json", EXAMPLE / "lock.js", PROTO):
        shutil.copy(file, PACKAGES)
    if not (PACKAGES / "node_modules").exists():
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
        done = subprocess.run(command, cwd=PACKAGES, capture_output=True, text=True, check=False, timeout=100)
        if done.returncode:
            shutil.rmtree(PACKAGES / "node_modules", ignore_errors=True)
            pytest.skip(f"npm could not install the packages of the example: {done.stderr[-500:]}")
    return PACKAGES / "lock.js"


@contextlib.contextmanager
def running(example: Path, coordinator: Serving) -> Iterator[subprocess.Popen[str]]:
    """Have the example lock `a` with a term of 1.5 s."""
    command = ["node", str(example), coordinator.address, "a", "1500"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_example_holds_a_lock(zoo: Zoo, example: Path) -> None:
    """It waits for longer than its term, has the lock for longer than its term, and releases it."""
    with Serving(zoo, session_timeout=10) as coordinator, ZkLockClient(coordinator.address) as client:
        with contextlib.ExitStack() as stack:
            with client.lock("a") as lease:
                process = stack.enter_context(running(example, coordinator))
                zoo.wait_contenders("a", 2)
                with pytest.raises(LockTimeout), client.lock("a", wait=1.8):
                    pass
            held, _, token = next_line(process).rpartition(" ")
            assert held == "held, token"
            assert int(token) > lease.token
            with pytest.raises(LockTimeout), client.lock("a", wait=2):
                pass
            out, errors = process.communicate("\n", timeout=10)
        assert (out, errors, process.returncode) == ("released\n", "", 0)
        zoo.assert_empty()


def test_the_example_notices_a_loss(zoo: Zoo, example: Path) -> None:
    """When the lock is lost, and when the coordinator is gone."""
    with Serving(zoo, session_timeout=2) as coordinator:
        with running(example, coordinator) as process:
            assert next_line(process).startswith("held, token ")
            zoo.client.delete(f"{zoo.base}/a/{zoo.children('a')[0]}")
            assert next_line(process).startswith("lost: ")
            assert process.wait(10) == 1
        with running(example, coordinator) as process:
            assert next_line(process).startswith("held, token ")
            coordinator.kill()
            assert next_line(process) == "lost: the lease was not kept in time"
            assert process.wait(10) == 1
    zoo.assert_empty(10)
