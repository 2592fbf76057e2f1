"""`manage.py zklock run`: a lock around any command, with real processes."""

import contextlib
import json
import os
import pty
import select
import signal
import sys
import time

import psutil
import pytest
from support.locking import MANAGE, ending
from support.zoo import eventually, next_line

from django_zklock import zk_lock
from django_zklock.management.exit_codes import ExitCode

RUN = [*MANAGE, "run"]
# Tells when it is up, and ignores SIGTERM; so does its child, which it leaves in its group.
STUBBORN = (
    "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo $! > {0}.tmp; mv {0}.tmp {0};"
    "while :; do sleep 0.05; done"
)


@pytest.fixture
def run(zoo):
    started = []

    def start(*arguments, fresh=False):
        started.append(zoo.spawn(MANAGE[2], "zklock", "run", *arguments, first="pass" if fresh else ""))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=50)


def gone(pid):
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def pid_in(file):
    return int(eventually(lambda: file.exists() and file.read_text(), 20))


def test_the_command_has_its_own_input_output_and_status(zoo, run):
    script = 'read line; echo "$line $1 $2 $ZKLOCK_KEY $ZKLOCK_TOKEN"; exit 7'
    with zk_lock("backup/db"):
        process = run("backup/db", "--timeout=forever", "--json", "--", "sh", "-c", script, "x", "--", "secret")
        zoo.wait_contenders("backup/db", 2, 20)
    zoo.wait_contenders("backup/db", 1)
    (payload,) = zoo.payloads("backup/db")
    assert payload is not None
    assert (payload.what, dict(payload.about)) == ("run: sh", {"command": "sh"})
    out, err = process.communicate("hello\n", timeout=50)
    report = json.loads(err)
    assert out == f"hello -- secret backup/db {report['token']}\n"
    assert process.returncode == report["status"] == 7
    assert (report["lock"], report["lost"]) == ("backup/db", "")
    zoo.assert_empty()


def test_the_exit_code_tells_that_the_lock_was_not_acquired(zoo, tmp_path):
    with zoo.hold_elsewhere("k"):
        for options, wanted in ((["--timeout=0"], ExitCode.BUSY), (["--timeout=0.2", "-E", "5"], 5)):
            status, _, message = ending("run", "k", *options, "--", "touch", tmp_path / "ran")
            assert status == wanted, message
            assert "k" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.chaos)], ids=lambda member: member.name
)
def test_a_signal_ends_the_wait_of_run(zoo, run, number):
    with zk_lock("k"):
        process = run("k", "--timeout=forever", "--", "true")
        zoo.wait_contenders("k", 2, 20)
        process.send_signal(number)
        _, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (128 + number, "")
        zoo.wait_contenders("k", 1, 2)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.chaos)], ids=lambda member: member.name
)
def test_signals_are_forwarded_to_the_command(zoo, run, number):
    script = f"trap 'echo got; exit 9' {number.name.removeprefix('SIG')}; echo up; while :; do sleep 0.05; done"
    process = run("k", "--", "sh", "-c", script)
    assert next_line(process) == "up"
    process.send_signal(number)
    out, _ = process.communicate(timeout=50)  # the shell may say of its `sleep` that the signal has ended that, too
    assert (process.returncode, out) == (9, "got\n")


def test_the_exit_code_of_a_command_that_is_killed_or_cannot_run_is_a_shells(zoo, capfd):
    assert ending("run", "k", "--", "sh", "-c", "kill -KILL $$")[0] == 128 + signal.SIGKILL
    for command, status in (("/nowhere/at-all", ExitCode.NOT_FOUND), ("/etc/passwd", ExitCode.NOT_RUN)):
        assert ending("run", "k", "--", command)[0] == status
        assert "cannot be run" in capfd.readouterr().err


def test_a_lost_lock_stops_the_command_and_its_children(zoo, run, tmp_path):
    file = tmp_path / "pid"
    process = run("k", "--kill-after=0.3", "--", "sh", "-c", STUBBORN.format(file))
    inner = pid_in(file)
    zoo.delete("k")
    _, err = process.communicate(timeout=50)
    assert process.returncode == ExitCode.LOST, err
    assert "was lost" in err
    eventually(lambda: gone(inner), 5)


@pytest.mark.parametrize(
    ("option", "script", "status", "text"),
    [
        (
            "--abort-on=never",
            "echo up; read line; exit 3",
            3,
            "was lost while the command ran; the policy let it finish",
        ),
        ("--kill-after=20", "trap '' TERM; echo up; read line; exit 0", ExitCode.LOST, "was lost"),
    ],
    ids=["the policy lets it finish", "it ends by itself"],
)
def test_a_loss_that_the_command_survives_is_reported(zoo, run, option, script, status, text):
    process = run("k", option, "--", "sh", "-c", script)
    assert next_line(process) == "up"
    zoo.delete("k")
    assert process.stderr is not None
    assert "lock 'k' is lost" in process.stderr.readline()
    _, err = process.communicate("\n", timeout=50)
    assert process.returncode == status, err
    assert text in err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel tells no child of the end of its parent")
def test_the_command_ends_when_run_is_killed(zoo, run, tmp_path):
    file = tmp_path / "pid"
    process = run("k", "--", "sh", "-c", f"trap '' TERM; echo $$ > {file}.tmp; mv {file}.tmp {file}; read line")
    shell = pid_in(file)
    process.kill()
    eventually(lambda: gone(shell), 5)
    eventually(lambda: not zoo.contenders(), 20)


@pytest.mark.chaos
def test_the_command_is_stopped_before_another_process_gets_the_lock(single, zoo, run):
    """Without ZooKeeper it is stopped while its session may still live: here, within 4 s."""
    process = run("k", "--", "sh", "-c", "trap 'echo stopped; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    assert next_line(process) == "up"
    server = single.leader
    server.pause()
    try:
        paused_at = time.monotonic()
        assert next_line(process) == "stopped"
        assert time.monotonic() - paused_at < 4
    finally:
        server.resume()
    process.communicate(timeout=50)
    assert process.returncode == ExitCode.LOST


@contextlib.contextmanager
def on_a_terminal(zoo, *arguments, program=RUN):
    """Start `manage.py zklock run`, or a program, on a terminal of its own; yield its process id and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(zoo.environment())
        os.execvp(program[0], [*program, *arguments])
    try:
        yield pid, terminal
    finally:
        with contextlib.suppress(ChildProcessError):  # the test has waited for its end
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(terminal)


def test_the_command_has_the_terminal(zoo):
    """It reads from it and gets Ctrl-C. Ctrl-Z stops neither it nor `run`, which would lose the lock."""
    again = 'while [ -z "$two" ]; do read two; done; echo "<$two>"; exit 4'
    script = f'trap "echo caught" INT; echo up; read one; echo "<$one>"; {again}'
    with on_a_terminal(zoo, "k", "--", "bash", "-c", script) as (pid, terminal):
        seen(terminal, "up")
        os.write(terminal, b"\x1ahello\n")
        text = seen(terminal, "<hello>")
        os.write(terminal, b"\x03")
        text += seen(terminal, "caught", b"\n")  # bash sees a signal that comes just before a read after it
        os.write(terminal, b"again\n")
        seen(terminal, "<again>")
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.waitstatus_to_exitcode(status) == 4, text


def seen(terminal, wanted, meanwhile=b""):
    text = ""
    deadline = time.monotonic() + 20
    while wanted not in text:
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 4096).decode(errors="replace")
        else:
            os.write(terminal, meanwhile)
    return text


def test_a_command_that_takes_too_long_is_stopped_before_the_lock_is_free(zoo, run, tmp_path):
    mark = tmp_path / "child"
    process = run(
        "k",
        "--max-hold",
        "6s",
        "--abort-on",
        "never",
        "--kill-after",
        "1s",
        "--json",
        "--",
        "sh",
        "-c",
        STUBBORN.format(mark),
    )
    child = pid_in(mark)
    with zk_lock("k", timeout=50):
        assert gone(child)
    assert process.wait(30) == ExitCode.LOST
    assert process.stderr is not None
    *_, report, message = process.stderr.read().splitlines()
    assert json.loads(report)["lost"] == "it was held for longer than max_hold, 6 s"
    assert message.endswith("The command was stopped.")


def test_a_missing_command_and_contradicting_options_are_wrong_usage(zoo):
    assert ending("run", "k")[0] == ending("run", "k", "--")[0] == ExitCode.USAGE
    for options, problem in (
        (["--limit=2", "--kind=read"], 'limit=2 and kind="read"'),
        (["--limit=0"], ""),
        (["--limit=x"], "'x' is not a number from 1 to 10000"),
    ):
        status, _, message = ending("run", "k", *options, "--", "true")
        assert (status, problem in message) == (ExitCode.USAGE, True), message
    with zoo.configured(LOCKS={"k": {"path": "k", "limit": 2}}):
        assert ending("run", "k", "--kind=read", "--", "true")[0] == ExitCode.USAGE
        assert ending("run", "k", "--kind=read", "--limit=none", "--", "true")[0] == 0
