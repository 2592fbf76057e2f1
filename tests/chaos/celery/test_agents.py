"""Policies, waits, names and durations are right under the agents that monitor Celery. Nothing is sent anywhere."""

import json
import subprocess
import time

import pytest
from celery.exceptions import TaskRevokedError
from support.agenttasks import AGENT, AGENTS, RUNS
from support.worker import Worker
from support.zoo import TESTS, Zoo, eventually

from django_zklock.exceptions import LockBusy

pytestmark = pytest.mark.timeout(90)

BIN = TESTS.parent / ".cache" / "agents" / "bin"  # of the agents' own virtual environment, which `make chaos` makes
PYTHON = str(BIN / "python")
CELERY = (PYTHON, "-m", "celery")
# The scripts in BIN name the folder that they were installed in, and are wrong in a copy of it.
STARTED_BY = {
    "newrelic": (PYTHON, "-m", "newrelic.admin", "run-program"),
    "ddtrace": (PYTHON, "-m", "ddtrace.commands.ddtrace_run"),
}
OFFLINE = {
    "NEW_RELIC_DEVELOPER_MODE": "on",
    "NEW_RELIC_LOG_LEVEL": "error",
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
    "DD_CRASHTRACKING_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
}
IS_MISSING = "import sys, importlib.util; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
AT_ONCE = 5.0  # seconds. A task that is not recognised waits 10 s for a busy lock, and 1 s for its own main process


@pytest.fixture(scope="module", params=["no agent", *AGENTS])
def shared_worker(request, redis, single, tmp_path_factory):
    agent = request.param
    assert BIN.exists(), "The agents are not installed. Run: make .cache/agents/.installed"
    if agent in AGENTS and subprocess.run([PYTHON, "-c", IS_MISSING, agent], check=False).returncode:
        pytest.skip(f"{agent} is not installed for this Python: see the group `agents` in pyproject.toml")
    redis.clear()
    env = {**OFFLINE, AGENT: agent} if agent in AGENTS else {}
    program = (*STARTED_BY.get(agent, ()), *CELERY)
    options = {"conf": redis.conf, "env": env, "tasks": "support.agenttasks", "program": program}
    with Zoo(single.hosts, single) as zoo, Worker(zoo, tmp_path_factory.mktemp("worker"), **options) as worker:
        yield worker


def test_tasks_in_sequence_take_over_their_locks(worker):
    for name in ("waiting.wait", "agents.bound"):
        worker.run(name, "sequence")  # the first one connects
        began = time.monotonic()
        for _ in range(6):
            assert worker.run(name, "sequence")["args"] == ["sequence"]
        assert time.monotonic() - began < AT_ONCE


def test_skip_and_raise_do_not_wait_for_a_busy_lock(worker):
    with worker.zoo.hold_elsewhere("busy"):
        skipped, failed = worker.send("policy.skip", "busy"), worker.send("policy.raise", "busy")
        with pytest.raises(TaskRevokedError):
            worker.get(skipped, AT_ONCE)
        with pytest.raises(LockBusy):
            worker.get(failed, AT_ONCE)
        assert str(skipped.state) == "REVOKED"


@pytest.mark.parametrize("name", ["waiting.wait", "agents.bound"])
def test_waiting_tasks_need_no_process(worker, name):
    key = f"waiting-{name}"
    with worker.zoo.hold_elsewhere(key):
        waiting = [worker.send(name, key) for _ in range(6)]
        worker.zoo.wait_contenders(key, 7)
        waiters = [payload.about["task"] for payload in worker.zoo.payloads(key) if payload is not None]
        assert waiters == [name] * 6
        worker.run("ping", timeout=AT_ONCE)
    for result in waiting:
        assert worker.get(result)["args"] == [key]


def test_the_queue_shows_the_name_of_a_running_task(worker):
    for name in ("waiting.wait", "plain"):
        result, gate = worker.begin(name, "named")
        (holder,) = worker.zoo.payloads("named")
        gate.open()
        assert holder is not None
        assert holder.what == f"task {name} {result.id}"
        worker.get(result)
        worker.zoo.wait_contenders("named", 0)


def test_a_unique_task_that_a_task_sends_is_known_by_its_arguments(worker):
    sent = worker.run("agents.sends", "sent")
    assert worker.get(worker.app.AsyncResult(sent))["args"] == ["sent"]


def test_agents_do_not_measure_the_wait_for_the_lock(worker):
    for result in [worker.send("agents.measured", "measured") for _ in range(4)]:
        worker.get(result)
    if AGENT not in worker.env:
        return
    eventually(lambda: len(seconds_of_runs(worker)) == 4)  # the agent may report after the result is stored
    assert all(0.9 < seconds < 1.9 for seconds in seconds_of_runs(worker))


def seconds_of_runs(worker):
    names = ("agents.measured", "support.agenttasks.measured")
    runs = worker.home / RUNS
    reports = [json.loads(line) for line in runs.read_text().splitlines()] if runs.exists() else []
    return [seconds for name, seconds in reports if name in names]
