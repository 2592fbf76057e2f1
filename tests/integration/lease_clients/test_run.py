"""`python -m zklock_client run KEY -- COMMAND`: shell scripts hold a lock of a coordinator."""

import os
import signal
import subprocess
import sys

import pytest
from support.relay import Relay
from support.zoo import ROOM, TESTS, eventually

from zklock_client import ZkLockClient
from zklock_client.__main__ import BUSY, LOST, NO_COORDINATOR, REFUSED, USAGE

# Tests in the background of a shell ignore SIGINT, those under nohup SIGHUP, and so would the program and its command.
RUN = ["env", "--default-signal=INT,HUP", sys.executable, "-m", "zklock_client", "run"]
CLIENT = TESTS.parent / "clients" / "python"


@pytest.fixture
def start(coordinator, tmp_path):
    """Start the program in a folder of its own. It is gone at the end."""
    processes = []

    def start(*words, address=coordinator.address):
        command = [*RUN, "--address", address, *words]
        environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ending(process):
    _, said = process.communicate(timeout=30 + ROOM)
    return process.returncode, said


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def begin(start, tmp_path, script, *options, **more):
    """Start a shell script under the lock "a"; return the program and the pid of the shell, which runs by now."""
    script = f"{script}; echo $$ > new; mv new pid; while :; do sleep 0.1; done"
    process = start("a", *options, "--", "sh", "-c", script, **more)
    eventually((tmp_path / "pid").exists, 30)
    return process, int((tmp_path / "pid").read_text())


def test_the_command_runs_under_the_lock_and_decides_the_exit_code(coordinator, start, tmp_path):
    process, _ = begin(start, tmp_path, "trap 'exit 7' TERM; env > environment")
    (payload,) = coordinator.zoo.payloads("a")
    assert str(process.pid) in payload.what
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "ZKLOCK_KEY=a" in environment
    (name,) = coordinator.zoo.children("a")
    token = coordinator.zoo.client.exists(f"{coordinator.zoo.base}/a/{name}").czxid
    assert f"ZKLOCK_TOKEN={token}" in environment
    process.terminate()
    assert ending(process)[0] == 7
    assert coordinator.zoo.children("a") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_on_to_the_command(start, tmp_path, number):
    process, _ = begin(start, tmp_path, ":")
    process.send_signal(number)
    assert ending(process) == (128 + number, "")


def test_a_command_that_cannot_be_run_is_told_as_a_shell_does(start, tmp_path):
    (tmp_path / "file").touch()
    assert ending(start("a", "--", "no-such-program")) == (
        127,
        "'no-such-program' cannot be run: No such file or directory.\n",
    )
    assert ending(start("a", "--", "./file")) == (126, "'./file' cannot be run: Permission denied.\n")


@pytest.mark.parametrize("wait", ["0", "0.2"])
def test_a_busy_lock_has_an_exit_code_and_runs_nothing(coordinator, start, tmp_path, wait):
    with ZkLockClient(coordinator.address) as client, client.lock("a"):
        code, said = ending(start("a", "--wait", wait, "--", "touch", "ran"))
    assert (code, (tmp_path / "ran").exists()) == (BUSY, False)
    assert "'a'" in said


def test_no_coordinator_has_an_exit_code(start):
    code, said = ending(start("a", "--reply-timeout", "0.2", "--", "true", address="127.0.0.1:1"))
    assert (code, "127.0.0.1:1" in said) == (NO_COORDINATOR, True), said


def test_a_refusal_and_wrong_usage_have_exit_codes(start):
    assert ending(start("a", "--kind", "semaphore", "--", "true"))[0] == REFUSED
    assert ending(start("a", "--token-file", "none", "--", "true"))[0] == REFUSED
    assert ending(start("a", "--wait", "nan", "--", "true"))[0] == USAGE
    assert ending(start("a"))[0] == USAGE


def test_a_signal_during_the_wait_leaves_the_queue(coordinator, start):
    with ZkLockClient(coordinator.address) as client, client.lock("a"):
        process = start("a", "--", "true")
        coordinator.zoo.wait_contenders("a", 2)
        process.terminate()
        assert ending(process)[0] == 128 + signal.SIGTERM
        coordinator.zoo.wait_contenders("a", 1)


@pytest.mark.parametrize("trap", [":", "trap '' TERM"])
def test_the_command_ends_when_the_lock_is_lost(coordinator, start, tmp_path, trap):
    """Also if it ignores SIGTERM."""
    process, pid = begin(start, tmp_path, trap)
    (name,) = coordinator.zoo.children("a")
    coordinator.zoo.client.delete(f"{coordinator.zoo.base}/a/{name}")
    code, said = ending(process)
    assert (code, "was lost" in said) == (LOST, True), said
    assert not is_alive(pid)


def test_the_command_ends_before_its_lease_does(coordinator, start, tmp_path):
    """The coordinator is silent, and the command ignores SIGTERM."""
    with Relay(coordinator.port) as relay:
        process, pid = begin(start, tmp_path, "trap '' TERM", "--term", "4", address=f"127.0.0.1:{relay.port}")
        relay.freeze()
        coordinator.zoo.wait_contenders("a", 0, timeout=30)
        assert not is_alive(pid)
        assert ending(process)[0] == LOST


def test_the_command_ends_with_a_program_that_is_killed(coordinator, start, tmp_path):
    process, pid = begin(start, tmp_path, ":", "--term", "1")
    process.kill()
    eventually(lambda: not is_alive(pid))
    coordinator.zoo.wait_contenders("a", 0, timeout=30)
