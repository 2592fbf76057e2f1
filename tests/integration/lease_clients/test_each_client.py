"""The clients of the lock coordinator behave alike in all languages, and what that for Node refuses."""

import contextlib
import json
import os
import subprocess

import pytest
from support import lease_clients
from support.balancer import Balancer
from support.lease_clients import Holder
from support.relay import Relay
from support.zoo import eventually

from django_zklock import operations
from zklock_client import LockTimeout, ZkLockClient

COMPILED = [pytest.param(language, marks=pytest.mark.chaos) for language in ("go", "java")]
"""Languages that are left to `make chaos`, as their clients must be compiled."""


@pytest.fixture(params=["python", "node", *COMPILED])
def language(request):
    lease_clients.holder(request.param)
    return str(request.param)


def test_a_lock_is_held_until_it_is_released(coordinator, language):
    with ZkLockClient(coordinator.address) as client:
        with client.lock("a") as lease:
            holder = Holder(language, f"127.0.0.1:1,{coordinator.address}")
            coordinator.zoo.wait_contenders("a", 2)
            with pytest.raises(LockTimeout), client.lock("a", wait=1.8):
                pass
        with holder:
            assert holder.token() > lease.token
            with pytest.raises(LockTimeout), client.lock("a", wait=2):
                pass
            operations.request_release("a", by="ada", reason="a deployment")
            assert holder.line() == "wanted ada: a deployment"
            holder.release()
            coordinator.zoo.assert_empty()


def test_a_busy_lock_is_refused(coordinator, language):
    """At once, or when the wait is over; as it is if it was computed from a time in the past. Go calls that NoWait."""
    past = "LockBusy" if language == "go" else "LockTimeout"
    expected = {0.0: "LockBusy", 0.5: "LockTimeout", -60.0: past}
    with coordinator.zoo.hold_elsewhere("a"), contextlib.ExitStack() as stack:
        holders = {wait: stack.enter_context(Holder(language, coordinator.address, wait=wait)) for wait in expected}
        assert {wait: holder.line().partition(": ")[0] for wait, holder in holders.items()} == expected
        coordinator.zoo.wait_contenders("a", 1)


def test_a_loss_is_noticed(coordinator, language):
    with Holder(language, coordinator.address) as holder:
        holder.token()
        coordinator.zoo.delete("a")
        assert holder.line().startswith("LockLost: ")


def test_a_lease_is_kept_and_released_where_it_is(coordinator, language):
    """A balancer sends the calls to another coordinator, and a call may fail on the way."""
    with (
        Balancer(coordinator.address, failures=3) as balancer,
        Holder(language, balancer.address) as holder,
        ZkLockClient(coordinator.address) as client,
    ):
        holder.token()
        assert balancer.calls["RecordLock"] == 4
        with pytest.raises(LockTimeout), client.lock("a", wait=5):
            pass
        holder.release()
        coordinator.zoo.assert_empty()
        assert balancer.calls["KeepAlive"] >= 1  # more, if the client connects again on a busy machine


def test_a_request_whose_answer_was_lost_gets_the_same_lease(coordinator, language):
    zoo = coordinator.zoo
    with Relay(coordinator.port) as link, contextlib.ExitStack() as stack:
        with zoo.hold_elsewhere("a"):
            holder = stack.enter_context(Holder(language, f"127.0.0.1:{link.port}", term=60))
            zoo.wait_contenders("a", 2)
            link.freeze()
        path = f"{zoo.base}/a/{zoo.wait_contenders('a', 1)[0]}"
        eventually(lambda: b'"waited"' in zoo.client.get(path)[0])  # it is granted
        granted = zoo.client.exists(path).czxid
        link.reset()
        link.heal()
        assert holder.token() == granted
        holder.release()
        zoo.assert_empty()


# --- Node -------------------------------------------------------------------------------------------------------------


SCRIPT = """
const { ZkLockClient } = require("zklock-client");
const client = new ZkLockClient("ADDRESS");
const report = (work) => work.then(
  (result) => console.log(result), (error) => console.log(`${error.name}: ${error.message}`));
"""


def run(tmp_path, address, script):
    source = tmp_path / "script.js"
    source.write_text(SCRIPT.replace("ADDRESS", address) + script)
    command, env = lease_clients.program("node", source)
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_work_that_blocks_the_loop_for_longer_than_the_lease_has_lost_it(coordinator, tmp_path):
    """Another program has the lock meanwhile."""
    (program, *arguments), env = lease_clients.holder("python")
    arguments += [coordinator.address, "a", "4000", "30000"]
    block = f"execFileSync({json.dumps(program)}, {json.dumps(arguments)}, {{ input: '\\n', env }})"
    script = f"""
const {{ execFileSync }} = require("node:child_process");
const env = {{ ...process.env, ...{json.dumps(env)} }};
report(client.withLock("a", {{ term: 1000 }}, async (lease) => {{
  console.log(String({block}).split(" ")[0]);
  console.log(lease.remaining, lease.signal.aborted);
  return "written";
}})).then(() => client.close());
"""
    other, state, outcome = run(tmp_path, coordinator.address, script)
    assert other == "held"
    assert state == "0 true"
    assert outcome.startswith("LockLost: ")


def test_a_lease_is_over_after_its_block(coordinator, tmp_path):
    script = """
let leaked;
(async () => {
  await client.withLock("a", {}, async (lease) => { leaked = lease; });
  console.log(leaked.remaining, leaked.signal.aborted);
  await report((async () => leaked.check())());
  client.close();
})();
"""
    assert run(tmp_path, coordinator.address, script) == ["0 false", "ZkLockError: the lock a was released"]


def test_a_time_that_is_no_number_is_refused(tmp_path):
    """A wait of NaN ended the process: gRPC threw an error that nobody can catch."""
    options = ["wait: NaN", "term: NaN", "wait: '5'"]
    calls = [f"report(client.withLock('a', {{ {option} }}, async () => 'held'))" for option in options]
    lines = run(tmp_path, "127.0.0.1:1", f"Promise.all([{', '.join(calls)}]).then(() => client.close());")
    assert len(lines) == len(options)
    for line in lines:
        assert line.startswith("TypeError: ")
        assert line.endswith("not a number")


def test_a_term_of_zero_is_refused_and_a_very_long_wait_has_no_limit(coordinator, tmp_path):
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
