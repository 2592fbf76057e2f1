"""The report on the health of an ensemble has the problems of its servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.utils import translation

from django_zklock.inspection import ServerReport
from django_zklock.inspection.ensemble import _findings, _report

LEADER = ServerReport(address="zk1:2181", role="leader", version="3.9.3", latency=0.001)
FOLLOWER = ServerReport(address="zk2:2181", role="follower", version="3.9.3", latency=0.001)
THIRD = replace(FOLLOWER, address="zk3:2181")
SRVR = """Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-02-25 08:49 UTC
Latency min/avg/max: 0/1.5/30
Received: 84
Sent: 83
Connections: 3
Outstanding: 2
Zxid: 0x100000010
Mode: follower
Node count: 12
"""


def found(*servers: ServerReport) -> list[tuple[str, str]]:
    return [(finding.result, finding.text) for finding in _findings(servers, 10.0)]


def test_three_healthy_servers_are_reported_as_healthy() -> None:
    assert found(LEADER, FOLLOWER, THIRD) == []
    assert found(ServerReport(address="zk1:2181", role="standalone", version="3.8.0")) == []


@pytest.mark.parametrize(
    ("servers", "result", "words"),
    [
        (
            (LEADER, FOLLOWER, replace(THIRD, role="", problem="does not answer: timed out")),
            "warning",
            "one more server",
        ),
        (
            (replace(FOLLOWER, role=""), replace(LEADER, role="", problem="is away")),
            "error",
            "No majority: 0 of 2 servers run, 2 are needed.",
        ),
        ((replace(LEADER, role="standalone"), replace(FOLLOWER, role="standalone")), "error", "to two holders"),
        ((LEADER, FOLLOWER, replace(THIRD, version="3.8.4")), "warning", "3.8.4, 3.9.3"),
        ((LEADER, FOLLOWER, replace(THIRD, version="3.5.9")), "error", "3.6 or newer is required"),
        ((LEADER, FOLLOWER, replace(THIRD, latency=0.6)), "warning", "zk3:2181 takes 600.0 ms"),
    ],
)
def test_each_problem_is_reported_with_its_remedy(servers: tuple[Any, ...], result: str, words: str) -> None:
    assert any(finding[0] == result and words in finding[1] for finding in found(*servers)), found(*servers)


def test_a_single_follower_is_reported_as_part_of_an_ensemble() -> None:
    """Though the settings name a single host, behind which a load balancer chooses a server."""
    assert found(FOLLOWER) == []


def test_observers_do_not_vote() -> None:
    """Of three voters one is down. Two observers do not replace it."""
    down = replace(THIRD, role="", problem="does not answer: timed out")
    observers = [replace(FOLLOWER, address=f"zk{number}:2181", role="observer") for number in (4, 5)]
    ((_, text),) = found(LEADER, FOLLOWER, down, *observers)
    assert "They stop if one more server fails." in text


def test_servers_that_may_not_be_asked_are_no_outage() -> None:
    closed = [
        ServerReport(address=f"zk{number}:2181", problem=_report("", "srvr is not ... in the whitelist.").problem)
        for number in range(3)
    ]
    assert {result for result, _ in found(*closed)} == {"warning"}
    assert "4lw.commands.whitelist" in found(*closed)[0][1]
    assert {result for result, _ in found(_report("zk1:2181", ""))} == {"warning"}


def test_the_command_srvr_is_enough() -> None:
    """It is allowed by default."""
    report = _report("zk1:2181", SRVR)
    assert (report.role, report.version, report.latency) == ("follower", "3.8.0", 0.0015)
    assert "is in no quorum" in _report("zk1:2181", "This ZooKeeper instance is not currently serving requests").problem


@pytest.mark.parametrize("latency", ["nan", "1e999", "-1", "9" * 5000, "1.2.3", "", "many"])
def test_an_invalid_latency_is_left_out(latency: str) -> None:
    """Another program at that port may have sent it."""
    report = _report("zk1:2181", f"Mode: leader\nLatency min/avg/max: 0/{latency}/1\n")
    assert (report.role, report.latency, report.milliseconds) == ("leader", None, "")


def test_texts_of_a_server_are_short_and_printable() -> None:
    version, role = f"3.{'9' * 5000}\x1b", f"leader\u202e{'x' * 5000}"
    report = _report("zk1:2181", f"Mode: {role}\nZookeeper version: {version}\n")
    assert report.version.isprintable()
    assert report.role.isprintable()
    assert max(len(report.version), len(report.role)) <= 40
    assert found(report) != []


def test_a_server_without_quorum_runs_and_is_not_down() -> None:
    alone = _report("zk1:2181", "This ZooKeeper instance is not currently serving requests")
    down = ServerReport(address="zk2:2181", problem="does not answer: refused")
    assert (alone.runs, alone.serves, down.runs) == (True, False, False)
    text = found(alone, down, replace(down, address="zk3:2181"))[0][1]
    assert text.startswith("No majority: 1 of 3 servers runs, 2 are needed.")


def test_an_own_answer_counts_for_more_than_a_filtered_command() -> None:
    """A proxy may cut `srvr`, while a quorum answers the requests of this process."""
    cut = ServerReport(address="zk1:2181", problem="does not answer: timed out")
    assert {finding.result for finding in _findings([cut], 10.0, answered=True)} == {"warning"}


def test_a_finding_is_in_the_language_of_its_reader() -> None:
    """The problem of the server is translated, too. The words of the system stay as they are."""
    down = ServerReport(address="zk1:2181", problem="does not answer: Connection refused")
    error, warning = _findings([down], 10.0)
    with translation.override("de"):
        assert error.text.startswith(
            "Keine Mehrheit: 0 von 1 Servern laufen, nötig ist 1. Keine Sperre"  # codespell:ignore
        )  # codespell:ignore ist
        assert warning.text == "zk1:2181 antwortet nicht: Connection refused."
    assert warning.text == "zk1:2181 does not answer: Connection refused."
