"""`manage.py zklock leader`: the leader, and each change."""

import json
import os
import signal
import socket
import subprocess

import pytest
from support.faults import proxied
from support.locking import MANAGE, as_json, ending, zklock
from support.zoo import next_line

from django_zklock import operations, zk_leader
from django_zklock.management.exit_codes import ExitCode


def test_the_command_shows_the_leader_and_counts_the_others(zoo):
    with zk_leader("lead/{shard}", fields={"shard": 7}, what="the\x1b[2Jwork") as hold, zoo.hold_elsewhere("lead/7"):
        for name in (("lead/7",), ("lead/{shard}", "--field=shard=7")):
            data = as_json("leader", *name)
            assert (data["key"], data["standing_by"]) == ("lead/7", 1)
            leader = data["leader"]
            assert (leader["host"], leader["pid"], leader["token"]) == (
                socket.gethostname(),
                os.getpid(),
                str(hold.token),
            )
        text = zklock("leader", "lead/7")
        assert f"process {os.getpid()}" in text
        assert f"token {hold.token}\n1 stand by\n" in text
        assert "\x1b" not in text
    assert ending("leader", "lead/7")[::2] == (ExitCode.NO_HOLDER, "'lead/7' has no leader.")
    status, out, _ = ending("leader", "lead/7", "--json")
    assert (status, json.loads(out)["leader"]) == (ExitCode.NO_HOLDER, None)


def test_the_command_shows_an_operator_hold(zoo):
    held = operations.hold_lock("lead", seconds=60, reason="maintenance", by="ada")
    assert zklock("leader", "lead").startswith("operator ada until ")
    assert as_json("leader", "lead")["leader"]["operator"]["reason"] == "maintenance"
    operations.end_hold("lead", token=held.token, by="ada")


@pytest.mark.parametrize("as_json", [True, pytest.param(False, marks=pytest.mark.chaos)])
def test_watching_shows_each_change_until_it_is_interrupted(zoo, as_json):
    process = subprocess.Popen(
        [*MANAGE, "leader", "lead", "--watch", *(["--json"] if as_json else [])],
        env=zoo.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def told():
        line = next_line(process)
        if not as_json:
            return line.partition("  ")[2]
        leader = json.loads(line)["leader"]
        return "no leader" if leader is None else f"token {leader['token']}"

    try:
        assert told() == "no leader"
        with zk_leader("lead") as hold:
            assert told().endswith(f"token {hold.token}")
        assert told() == "no leader"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_the_command_reports_an_outage(zoo):
    with proxied(zoo) as proxy:
        proxy.refuse = True
        for more in ((), ("--watch",)):
            status, _, message = ending("leader", "lead", "--reply-timeout=200ms", *more)
            assert status == ExitCode.UNAVAILABLE
            assert "No connection to ZooKeeper at" in message
