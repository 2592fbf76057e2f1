"""The report on the servers in `URL` names what is wrong, and calls nothing healthy or down that it does not know."""

import contextlib
import socket
import struct
import threading
from dataclasses import replace

import pytest
from django.utils import translation
from support.lookinfo import NOTHING

from django_zklock.core.zk.options import SessionOptions
from django_zklock.inspection import EnsembleReport, ServerReport
from django_zklock.inspection.ensemble import _ask, _distinct, _read, _with_leader
from django_zklock.report.facts import Facts
from django_zklock.report.servers import Down, Quorum, Split, problem_text, summary, unasked

LEADER = ServerReport(address="zk1:2181", state="serves", role="leader", zxid=0x100000050)
FOLLOWER = ServerReport(address="zk2:2181", state="serves", role="follower", zxid=0x100000050)
THIRD = replace(FOLLOWER, address="zk3:2181")
DOWN = ServerReport(address="zk3:2181", state="down", problem="does not answer: timed out")
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
NOT_SERVING = "This ZooKeeper instance is not currently serving requests"
NOT_ALLOWED = "srvr is not executed because it is not in the whitelist."


def read(text, address="zk1:2181"):
    return ServerReport(address=address, **_read(text))


def found(*servers, has_quorum=False):
    """Return the causes and texts of incidents, and the texts of servers that cannot be asked."""
    report = EnsembleReport(servers, has_quorum)
    facts = Facts(replace(NOTHING, problem="No answer." if report.is_lost else ""), report)
    incidents = [incident for cause in (Quorum, Split, Down) for incident in cause.find(facts)]
    named = [(incident.cause, incident.describe()["explanation"]) for incident in incidents]
    return named + ([] if report.is_lost else [("", problem_text(server)) for server in unasked(report)])


def causes(*servers, has_quorum=False):
    return [cause for cause, _ in found(*servers, has_quorum=has_quorum)]


@pytest.mark.parametrize(
    "servers",
    [
        (LEADER, FOLLOWER, THIRD),
        (replace(LEADER, role="standalone"),),
        (FOLLOWER,),
        # an idle ensemble after an election: its followers keep their zxid until the next transaction
        (replace(LEADER, zxid=0x200000000), FOLLOWER),
        (LEADER, replace(FOLLOWER, role="observer")),
    ],
)
def test_a_healthy_ensemble_has_no_finding(servers):
    assert found(*servers) == []


@pytest.mark.parametrize(
    ("servers", "cause", "words"),
    [
        ((LEADER, FOLLOWER, DOWN), "down", "zk3:2181 does not answer: timed out."),
        (
            (DOWN, replace(DOWN, address="zk4:2181")),
            "quorum",
            "0 of 2 servers are in a quorum. That is no majority",
        ),
        ((LEADER, replace(LEADER, address="zk2:2181", zxid=0x200000003)), "split", "the same lock to two holders"),
        ((replace(LEADER, role="standalone"), FOLLOWER), "split", "the same lock to two holders"),
    ],
)
def test_each_problem_is_reported(servers, cause, words):
    ((named, text),) = found(*servers)
    assert named == cause
    assert words in text


def test_a_server_without_quorum_is_no_second_ensemble():
    assert "split" not in causes(LEADER, read(SRVR.replace("follower", "read-only"), "zk2:2181"))


def test_observers_do_not_vote():
    observers = [replace(FOLLOWER, address=f"zk{number}:2181", role="observer") for number in (4, 5)]
    report = EnsembleReport((LEADER, FOLLOWER, DOWN, *observers))
    assert summary(report) == "2 of 3 servers run. One more failure stops all locks."


@pytest.mark.parametrize("reply", [NOT_ALLOWED, ""])
def test_a_server_that_may_not_be_asked_is_unknown_and_not_down(reply):
    unknown = read(reply, "zk3:2181")
    assert (unknown.is_unknown, unknown.is_down, unknown.runs) == (True, False, False)
    assert causes(LEADER, FOLLOWER, unknown) == [""]
    assert EnsembleReport((LEADER, FOLLOWER, unknown)).spare is None


def test_servers_that_may_not_be_asked_are_no_lost_quorum():
    assert causes(read(NOT_ALLOWED), read("", "zk2:2181")) == ["", ""]


def test_an_answered_write_proves_the_quorum_that_no_server_tells_of():
    assert causes(read(NOT_ALLOWED), DOWN, has_quorum=True) == ["down", ""]
    assert causes(DOWN, has_quorum=True) == ["down"]


@pytest.mark.parametrize("reply", [NOT_SERVING, SRVR.replace("follower", "read-only")])
def test_a_server_without_quorum_runs_and_grants_nothing(reply):
    server = read(reply)
    assert (server.runs, server.serves, server.is_down) == (True, False, False)
    assert found(server, DOWN, replace(DOWN, address="zk2:2181"))[0][1].startswith("0 of 3 servers are in a quorum.")


def test_a_leader_that_serves_no_client_is_no_failure():
    """With `leaderServes=no`. Only one server can be it, and only if no other one leads."""
    silent, other = read(NOT_SERVING, "zk3:2181"), read(NOT_SERVING, "zk4:2181")
    servers = _with_leader((FOLLOWER, silent))
    assert [(server.role, server.serves) for server in servers] == [("follower", True), ("leader", True)]
    assert causes(*servers, has_quorum=True) == []
    for many in [(FOLLOWER, silent, other), (LEADER, silent), (read(NOT_ALLOWED), silent)]:
        assert _with_leader(many) == many


def test_the_command_srvr_is_enough():
    report = read(SRVR)
    assert (report.role, report.version, report.zxid) == ("follower", "3.8.0", 0x100000010)


@pytest.mark.parametrize("zxid", ["0x8000000000000000", "0x" + "f" * 16, "0x" + "1" * 400, "-0x1", "NaN", "٣", ""])
def test_an_invalid_zxid_is_not_known(zxid):
    assert read(f"Mode: leader\nZxid: {zxid}\n").zxid == -1
    assert read("Mode: leader\nZxid: 0x7fffffffffffffff\n").zxid == 2**63 - 1


def test_texts_of_a_server_are_short_and_printable():
    version, role = f"3.{'9' * 5000}\x1b", f"leader\u202e{'x' * 5000}"
    report = read(f"Mode: {role}\nZookeeper version: {version}\n")
    assert report.version.isprintable()
    assert report.role.isprintable()
    assert max(len(report.version), len(report.role)) <= 40
    assert not report.serves


def test_a_problem_of_a_server_is_in_the_language_of_its_reader():
    down = ServerReport(address="zk1:2181", state="down", problem="does not answer: Connection refused")
    with translation.override("de"):
        assert problem_text(down) == "zk1:2181 antwortet nicht: Connection refused."
    assert problem_text(down) == "zk1:2181 does not answer: Connection refused."


@contextlib.contextmanager
def listening(answer):
    """Listen at a port; give each connection to `answer`. Yields the port."""

    def serve():
        with contextlib.suppress(OSError):  # the end
            while True:
                with listener.accept()[0] as peer:
                    answer(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(*hosts, timeout=10.0):
    options = SessionOptions(hosts=hosts)
    return _distinct(_ask(host, options, timeout) for host in hosts)


def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_server_that_resets_connections_may_have_too_many():
    with listening(reset) as port:
        reports = [report for _ in range(20) for report in ask(("127.0.0.1", port))]
    assert {report.state for report in reports} == {"unknown"}
    assert all("maxClientCnxns" in report.problem for report in reports)


def test_a_server_that_accepts_and_does_not_answer_is_unknown():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (report,) = ask(silent.getsockname(), timeout=0.05)
    assert report.is_unknown


def lead(peer):
    peer.recv(4)
    peer.sendall(b"Mode: leader\nZxid: 0x100000003\n")


def test_two_names_of_a_server_are_one_server():
    with listening(lead) as port:
        servers = ask(("127.0.0.1", port), ("localhost", port))
    assert [(server.address, server.role) for server in servers] == [(f"127.0.0.1:{port}", "leader")]


def test_two_names_of_a_server_that_is_down_are_one_server():
    (server,) = ask(("127.0.0.1", 1), ("localhost", 1))
    assert server.is_down
