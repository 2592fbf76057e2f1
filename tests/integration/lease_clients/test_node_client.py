"""The client of the lock coordinator for Node: what it refuses, and its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import lease_clients
from support.serving import Serving

pytestmark = pytest.mark.zookeeper

SCRIPT = """
const { ZkLockClient } = require("zklock-client");
const client = new ZkLockClient("ADDRESS");
const report = (work) => work.then(
  (result) => console.log(result), (error) => console.log(`${error.name}: ${error.message}`));
"""


def run(tmp_path: Path, address: str, script: str) -> list[str]:
    source = tmp_path / "script.js"
    source.write_text(SCRIPT.replace("ADDRESS", address) + script)
    try:
        command, env = lease_clients.program("node", source)
    except lease_clients.Unavailable as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """A wait of NaN ended the process: gRPC threw an error that nobody can catch."""
    options = ["wait: NaN", "term: NaN", "wait: '5'"]
    calls = [f"report(client.withLock('a', {{ {option} }}, async () => 'held'))" for option in options]
    lines = run(tmp_path, "127.0.0.1:1", f"Promise.all([{', '.join(calls)}]).then(() => client.close());")
    assert len(lines) == len(options)
    for line in lines:
        assert line.startswith("TypeError: ")
        assert line.endswith("not a number")


def test_a_term_of_zero_is_refused_and_a_very_long_wait_has_no_limit(coordinator: Serving, tmp_path: Path) -> None:
    script = """
(async () => {
  await report(client.withLock("a", { term: 0 }, async () => "held"));
  await report(client.withLock("a", { wait: 1e15 }, async () => "held"));
  client.close();
})();
"""
    refused, held = run(tmp_path, coordinator.address, script)
    assert refused.startswith("LeaseRefused: session_timeout_ms is not from 100")
    assert held == "held"


def test_close_ends_the_calls_that_wait(coordinator: Serving, tmp_path: Path) -> None:
    script = """
const waiting = report(client.withLock("a", {}, async () => "held"));
const other = new ZkLockClient("ADDRESS");
(async () => {
  await report(other.withLock("a", { wait: 0 }, async () => "held"));
  client.close();
  other.close();
  await waiting;
  await report(client.withLock("a", {}, async () => "held"));
})();
"""
    with coordinator.zoo.hold_elsewhere("a"):
        busy, *closed = run(tmp_path, coordinator.address, script.replace("ADDRESS", coordinator.address))
        coordinator.zoo.wait_contenders("a", 1)
    assert busy.startswith("LockBusy: ")
    assert closed == ["ZkLockError: the client is closed"] * 2
