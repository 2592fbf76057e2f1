"""The report about each server, and results that callers share."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

import pytest
from support.faults import BackgroundCall, within
from support.zoo import ROOM, Zoo

from django_zklock.core.zk.options import SessionOptions
from django_zklock.inspection import check_quorum, ensemble
from django_zklock.inspection.ensemble import _ask
from django_zklock.shared import Shared


def test_the_report_has_role_version_and_latency(zoo: Zoo) -> None:
    check_quorum(reply_timeout=1 + ROOM)
    report = ensemble(max_age=0)
    (server,) = report.servers
    assert (server.address, server.role, server.serves, server.problem) == (zoo.address, "standalone", True, "")
    assert server.version.startswith("3.")
    assert server.latency is not None
    assert report.findings == ()


def test_a_fresh_report_of_the_servers_is_shared(zoo: Zoo) -> None:
    assert ensemble(max_age=0) is not ensemble(max_age=0)
    assert ensemble() is ensemble()


def test_a_caller_gets_no_report_from_before_its_max_age() -> None:
    """A caller that accepts no older result does not get that of a call which began earlier. Keys share nothing."""
    computing, proceed = threading.Event(), threading.Event()
    calls: list[str] = []

    def compute(key: str, timeout: float) -> int:
        calls.append(key)
        computing.set()
        proceed.wait(20)
        return len(calls)

    shared = Shared(compute, most=2)
    first = BackgroundCall(lambda: shared.get("a", 1.0, 0.0))
    computing.wait(20)
    second = BackgroundCall(lambda: shared.get("a", 1.0, 0.0))
    proceed.set()
    assert (first.result(), second.result()) == (1, 2)
    assert (shared.get("b", 1.0, 60.0), shared.get("a", 1.0, 60.0), shared.get("c", 1.0, 60.0)) == (3, 2, 4)
    assert shared.get("a", 1.0, 60.0) == 5  # the oldest key is forgotten


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
