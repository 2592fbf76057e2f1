"""The report on the health of an ensemble has the problems of its servers."""

import contextlib
import errno
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.utils import translation

from django_zklock.core.zk.options import SessionOptions
from django_zklock.core.zk.outage import address
from django_zklock.inspection import EnsembleReport, ServerReport
from django_zklock.inspection.ensemble import OwnAnswer, _ask, _findings, _placed, _report

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


def found(*servers):
    return [(finding.result, finding.text) for finding in _findings(EnsembleReport(servers, ()), 10.0)]


def test_healthy_servers_are_reported_as_healthy():
    assert found(LEADER, FOLLOWER, THIRD) == []
    assert found(ServerReport(address="zk1:2181", role="standalone", version="3.8.0")) == []
    assert found(FOLLOWER) == []


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
def test_each_problem_is_reported_with_its_remedy(servers, result, words):
    assert any(finding[0] == result and words in finding[1] for finding in found(*servers)), found(*servers)


def look(*servers):
    return tuple(
        ServerReport(address=f"zk{number}:2181", role=role, zxid=zxid, version="3.9.3")
        for number, (role, zxid) in enumerate(servers, 1)
    )


def splits(servers, server="zk1:2181", config=b""):
    report = EnsembleReport(tuple(servers), ())
    findings = _findings(report, 10.0, own=OwnAnswer(server=server, config=config))
    return [finding.text for finding in findings if finding.splits]


@pytest.mark.parametrize(
    "servers",
    [
        look(("leader", 0x100000050)),
        # an idle ensemble after an election: its followers keep their zxid until the next transaction
        look(("leader", 0x200000000), ("follower", 0x100000007)),
        look(("follower", 0), ("leader", 0x100000000)),
        look(("leader", 0x100000090), ("observer", 0x100000050)),
        # one server by its name and by its address
        [*look(("leader", 5)), replace(look(("leader", 5))[0], standing="alias")],
        [*look(("standalone", 5)), replace(look(("standalone", 5))[0], standing="alias")],
        # no quorum: it serves nobody
        look(("leader", 0x200000050), ("read-only", 0x100000007)),
        # it was removed, and still follows
        [*look(("leader", 0x200000050)), replace(look(("follower", 0x200000050))[0], standing="stranger")],
    ],
)
def test_a_healthy_ensemble_is_never_called_two(servers):
    assert splits(servers) == []


@pytest.mark.parametrize(
    "servers",
    [
        look(("leader", 0x100000050), ("leader", 0x200000003)),
        look(("leader", 0x100000050), ("leader", 0x100000053)),
        look(("standalone", 5), ("follower", 0x100000001)),
        look(("standalone", 5), ("standalone", 9)),
    ],
)
def test_two_ensembles_are_an_error(servers):
    (text,) = splits(servers)
    assert "to two holders" in text


def test_a_server_that_knows_no_other_is_an_error_unless_all_addresses_are_its_own():
    down = ServerReport(address="zk2:2181", problem="does not answer: refused", standing="stranger")
    alone, config = look(("leader", 0x100000050)), b"server.1=zk1:1:2:participant\n"
    assert splits([*alone, down], config=config) == [
        "zk1:2181 serves without the other servers. Two of them would give the same lock to two holders."
    ]
    assert splits(alone, config=config) == []
    assert splits([*alone, replace(alone[0], standing="alias")], config=config) == []


def test_a_server_that_is_no_member_is_named():
    removed = replace(THIRD, standing="stranger")
    ((result, text),) = found(LEADER, FOLLOWER, removed)
    assert (result, text.startswith("zk3:2181 is in URL, and is no member of the ensemble.")) == ("warning", True)


def test_observers_do_not_vote():
    down = replace(THIRD, role="", problem="does not answer: timed out")
    observers = [replace(FOLLOWER, address=f"zk{number}:2181", role="observer") for number in (4, 5)]
    ((_, text),) = found(LEADER, FOLLOWER, down, *observers)
    assert "They stop if one more server fails." in text


def test_servers_that_may_not_be_asked_are_no_outage():
    closed = [
        ServerReport(address=f"zk{number}:2181", problem=_report("", "srvr is not ... in the whitelist.").problem)
        for number in range(3)
    ]
    assert {result for result, _ in found(*closed)} == {"warning"}
    assert "4lw.commands.whitelist" in found(*closed)[0][1]
    assert {result for result, _ in found(_report("zk1:2181", ""))} == {"warning"}


def test_the_command_srvr_is_enough():
    report = _report("zk1:2181", SRVR)
    assert (report.role, report.version, report.latency) == ("follower", "3.8.0", 0.0015)
    assert report.zxid == 0x100000010
    assert "is in no quorum" in _report("zk1:2181", "This ZooKeeper instance is not currently serving requests").problem


@pytest.mark.parametrize("zxid", ["0x8000000000000000", "0x" + "f" * 16, "0x" + "1" * 400, "-0x1", "NaN", "٣", ""])
def test_an_invalid_zxid_is_not_known(zxid):
    assert _report("zk1:2181", f"Mode: leader\nZxid: {zxid}\n").zxid == -1
    assert _report("zk1:2181", "Mode: leader\nZxid: 0x7fffffffffffffff\n").zxid == 2**63 - 1


@pytest.mark.parametrize("latency", ["٣", "nan", "1e999", "-1", "9" * 5000, "1.2.3", "", "many"])
def test_an_invalid_latency_is_left_out(latency):
    report = _report("zk1:2181", f"Mode: leader\nLatency min/avg/max: 0/{latency}/1\n")
    assert (report.role, report.latency, report.milliseconds) == ("leader", None, "")


def test_texts_of_a_server_are_short_and_printable():
    version, role = f"3.{'9' * 5000}\x1b", f"leader\u202e{'x' * 5000}"
    report = _report("zk1:2181", f"Mode: {role}\nZookeeper version: {version}\n")
    assert report.version.isprintable()
    assert report.role.isprintable()
    assert max(len(report.version), len(report.role)) <= 40
    assert found(report) != []


def test_a_read_only_server_runs_and_grants_nothing():
    down = ServerReport(address="zk2:2181", problem="does not answer: refused")
    server = _report("zk1:2181", SRVR.replace("follower", "read-only"))
    assert (server.role, server.runs, server.serves) == ("read-only", True, False)
    texts = [text for _, text in found(server, down, replace(down, address="zk3:2181"))]
    assert texts[0].startswith("No majority: 1 of 3 servers runs, 2 are needed.")
    assert texts[1] == "zk1:2181 runs read-only, as it is in no quorum, and grants no lock."


def test_a_server_without_quorum_runs_and_is_not_down():
    alone = _report("zk1:2181", "This ZooKeeper instance is not currently serving requests")
    down = ServerReport(address="zk2:2181", problem="does not answer: refused")
    assert (alone.runs, alone.serves, down.runs) == (True, False, False)
    text = found(alone, down, replace(down, address="zk3:2181"))[0][1]
    assert text.startswith("No majority: 1 of 3 servers runs, 2 are needed.")


def test_an_own_answer_counts_for_more_than_a_filtered_command():
    """A proxy may cut `srvr`, while a quorum answers the requests of this process."""
    cut = ServerReport(address="zk1:2181", problem="does not answer: timed out")
    assert {
        finding.result for finding in _findings(EnsembleReport((cut,), ()), 10.0, own=OwnAnswer(server="zk1:2181"))
    } == {"warning"}


def test_a_finding_is_in_the_language_of_its_reader():
    down = ServerReport(address="zk1:2181", problem="does not answer: Connection refused")
    error, warning = _findings(EnsembleReport((down,), ()), 10.0)
    with translation.override("de"):
        assert error.text.startswith(
            "Keine Mehrheit: 0 von 1 Servern laufen, nötig ist 1. Keine Sperre"  # codespell:ignore
        )  # codespell:ignore ist
        assert warning.text == "zk1:2181 antwortet nicht: Connection refused."
    assert warning.text == "zk1:2181 does not answer: Connection refused."


def test_a_server_that_resets_connections_may_have_too_many():
    def serve():
        with contextlib.suppress(OSError):  # the end
            while True:
                peer = listener.accept()[0]
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        host = listener.getsockname()
        options = SessionOptions(hosts=(host,))
        reports = [_ask(host, options, 10) for _ in range(20)]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert all("maxClientCnxns" in report.problem for report in reports)


# --- members that `URL` does not name ---------------------------------------------------------------------------------

TIMED_OUT, CLOSED = "does not answer: timed out", f"does not answer: {os.strerror(errno.ECONNREFUSED)}"


def placed(urls, config, answers, connected):
    """Return the report for these servers in `URL`, which all run, and who else was asked; they have these problems."""
    asked = []

    def ask(host):
        asked.append(address(host))
        problem = answers[address(host)]
        return ServerReport(address=address(host), role="" if problem else "follower", problem=problem)

    reports = {
        (host, int(port)): ServerReport(address=f"{host}:{port}", role="follower")
        for host, port in (url.split(":") for url in urls)
    }
    own = OwnAnswer(server=connected, config=config.encode())
    with ThreadPoolExecutor(4) as pool:
        return EnsembleReport(_placed(reports, own, pool, ask), ()), asked


def private(*numbers):
    """A configuration with addresses of a private network."""
    lines = [f"server.{number}=10.0.0.{number}:2888:3888:participant;10.0.0.{number}:2181" for number in numbers]
    return "\n".join(lines)


def test_servers_behind_a_translation_of_addresses_are_the_members():
    """Nobody can reach the addresses in the configuration from here. That is no failure of three more servers."""
    answers = {f"10.0.0.{number}:2181": TIMED_OUT for number in (1, 2, 3)}
    report, _ = placed(["192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3"], private(1, 2, 3), answers, "192.0.2.1:1")
    assert [(server.standing, server.problem) for server in report.servers] == [("voter", "")] * 3
    assert report.spare == 1


def test_a_member_that_cannot_be_reached_is_not_down():
    answers = {"10.0.0.3:2181": TIMED_OUT}
    report, _ = placed(["10.0.0.1:2181", "10.0.0.2:2181"], private(1, 2, 3), answers, "10.0.0.1:2181")
    assert report.spare is None
    assert report.servers[2].address == "server.3 (10.0.0.3:2181)"
    assert report.servers[2].problem.endswith("was not looked at; name it in URL: timed out")


def test_a_member_whose_machine_refuses_connections_is_down():
    answers = {"10.0.0.3:2181": CLOSED}
    report, _ = placed(["10.0.0.1:2181", "10.0.0.2:2181"], private(1, 2, 3), answers, "10.0.0.1:2181")
    assert (report.servers[2].address, report.spare) == ("10.0.0.3:2181", 0)


def test_a_server_whose_members_all_answer_elsewhere_is_a_stranger():
    """A proxy, or a server that was removed."""
    answers = {f"10.0.0.{number}:2181": "" for number in (1, 2, 3)}
    report, _ = placed(["10.0.0.9:2181"], private(1, 2, 3), answers, "10.0.0.9:2181")
    assert [server.standing for server in report.servers] == ["stranger", "voter", "voter", "voter"]
    assert report.spare == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "[0:0:0:0:0:0:0:1]"])
def test_the_loopback_of_another_machine_is_not_asked(host):
    config = f"server.1={host}:2888:3888:participant;{host}:2181"
    report, asked = placed(["10.0.0.1:2181"], config, {}, "10.0.0.1:2181")
    assert asked == []
    assert [(server.standing, server.address) for server in report.servers] == [("voter", "10.0.0.1:2181")]


def test_two_addresses_of_a_server_are_one_voter():
    report, _ = placed(["127.0.0.1:2181", "localhost:2181"], "", {}, "127.0.0.1:2181")
    assert [server.standing for server in report.servers] == ["voter", "alias"]
    assert len(report.voters) == 1
