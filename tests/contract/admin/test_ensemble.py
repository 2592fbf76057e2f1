"""What each server tells of itself."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.faults import within
from support.zoo import Zoo

from django_zklock.inspection import check_quorum, ensemble
from django_zklock.inspection.ensemble import _ask
from django_zklock.inspection.shared import Shared
from django_zklock.zk.options import SessionOptions


def test_a_server_tells_its_role_version_and_figures(zoo: Zoo) -> None:
    check_quorum()
    found = ensemble(max_age=0)
    (server,) = found.servers
    assert (server.address, server.role, server.serves, server.problem) == (zoo.address, "standalone", True, "")
    assert server.version.startswith("3.")
    # Not "outstanding": ZooKeeper may say -1 there for a moment, and what is below zero is left out.
    assert None not in [server.latency, server.connections, server.watches, server.znodes, server.sessions]
    assert (server.znodes or 0) > 0
    assert found.findings == ()


def test_callers_share_a_report_for_some_seconds(zoo: Zoo) -> None:
    assert ensemble(max_age=0) is not ensemble(max_age=0)
    assert ensemble() is ensemble()


def test_callers_at_the_same_time_share_a_result(zoo: Zoo) -> None:
    """However long it takes: else probes of an ensemble that is down would wait for each other."""
    callers, begun = 10, threading.Barrier(10)
    results: list[object] = []

    def compute(options: SessionOptions, timeout: float) -> object:
        threading.Event().wait(timeout)
        results.append(object())
        return results[-1]

    shared = Shared(compute)

    def ask(_: int) -> object:
        begun.wait(20)
        return shared.get(0.2, 0.0)

    with ThreadPoolExecutor(callers) as pool:
        assert set(pool.map(ask, range(callers))) == set(results)
    assert len(results) < callers


@pytest.fixture
def trickling() -> Iterator[tuple[str, int]]:
    """The address of a server that sends a byte now and then, without an end."""
    enough = threading.Event()

    class Trickle(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while not enough.wait(0.02):
                    self.request.sendall(b"x")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield ("127.0.0.1", server.server_address[1])
        enough.set()
        server.shutdown()


def test_a_server_that_never_ends_its_reply_costs_no_more_than_the_timeout(trickling: tuple[str, int]) -> None:
    with within(20):
        report = _ask(trickling, SessionOptions(hosts=(trickling,)), 0.2)
    assert (report.role, report.problem) == ("", "does not answer: timed out")
