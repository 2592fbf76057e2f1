"""A call that may hang runs on a thread of its own, once at a time, and costs its caller no more than it has."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from django_zklock.core.zk import outside
from django_zklock.core.zk.outage import Outage
from django_zklock.core.zk.outside import Outside, resolve

HOST = ("zk.example", 2181)


class Gate:
    """A call that hangs while the gate is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.calls += 1
        self.open.wait(20)
        if self.error is not None:
            raise self.error
        return self.calls


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_a_call_that_hangs_is_waited_for_once_and_made_once(gate: Gate) -> None:
    call = Outside(gate)
    for within, longest in [(0.2, 2), (0.2, 0.15), (0.2, 0.15)]:
        call.begin()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            call.get(within)
        assert time.monotonic() - began < longest
    assert gate.calls == 1
    gate.open.set()
    assert call.get(60) == 1


def test_the_value_before_stays_while_a_call_hangs(gate: Gate) -> None:
    call = Outside(gate)
    gate.open.set()
    call.begin()
    assert call.get(20) == 1
    gate.open.clear()
    call.begin()
    assert call.get(0.05) == 1
    gate.error = ValueError("broken")
    gate.open.set()
    with pytest.raises(ValueError, match="broken"):
        call.get(20)


def test_a_value_that_came_too_late_is_the_next_callers(gate: Gate) -> None:
    """A resolver that always takes longer than a caller waits would else serve nobody in time."""
    call = Outside(gate)
    call.begin()
    with pytest.raises(TimeoutError):
        call.get(0.05)
    gate.open.set()
    call._ended.wait(20)
    call.begin()
    assert call.get(0) == 1
    call.begin()
    assert call.get(20) == 2


def test_a_process_with_too_many_threads_says_so(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    gate.open.set()
    call, known = Outside(gate), Outside(gate)
    known.begin()
    assert known.get(20) == 1
    with monkeypatch.context() as patch:
        patch.setattr(outside, "quiet_thread", lambda *arguments: Refused())
        for lookup in (call, known):
            lookup.begin()
        with pytest.raises(OSError, match="can't start new thread"):
            call.get(20)
        assert known.get(20) == 1
    call.begin()
    assert call.get(20) == 2


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The answers of the resolver, one for each look-up: a list of IP addresses, or an error."""
    answers: list[object] = []

    def getaddrinfo(host: str, port: int, **how: int) -> list[tuple[object, ...]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    outside._addresses.cache_clear()
    return answers


def test_addresses_need_no_resolver(answers: list[object]) -> None:
    hosts = [("127.0.0.1", 1), ("::1", 2), ("fe80::1%eth0", 3)]
    assert resolve(hosts, 0) == {host: (host,) for host in hosts}


def test_each_address_of_a_name_counts_once(answers: list[object]) -> None:
    """The resolver may name one several times."""
    answers.append(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    assert resolve([HOST], 20) == {HOST: (("10.0.0.1", 2181), ("10.0.0.2", 2181))}


def test_the_addresses_stay_while_the_resolver_is_out_of_order(answers: list[object]) -> None:
    temporary, final = socket.gaierror(socket.EAI_AGAIN, "later"), socket.gaierror(socket.EAI_NONAME, "none")
    answers += [temporary, ["10.0.0.1"], temporary, ["10.0.0.2"], final, temporary]
    seen = [resolve([HOST], 20)[HOST] for _ in range(len(answers))]
    assert [str(answer) if isinstance(answer, OSError) else answer[0][0] for answer in seen] == [
        outside.UNRESOLVED,
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        outside.NO_HOST,
        outside.UNRESOLVED,
    ]


# --- servers that refuse ------------------------------------------------------------------------------------------


def test_a_server_that_refuses_is_tried_ten_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once after the first time, as that may be a restart; and not at all once nobody waits."""
    now = 0.0
    monkeypatch.setattr("django_zklock.core.clock.now", lambda: now)
    host, outage, wanted = ("127.0.0.1", 2181), Outage([("127.0.0.1", 2181)]), True
    tries: list[float] = []
    while now < 180:
        if outage.may_try(host, lambda: wanted):
            tries.append(now)
            outage.refused(host, host, "because")
        now += 0.01
    assert tries[1] < 0.2
    for start in (0, 60, 120):
        assert 4 <= sum(start <= at < start + 60 for at in tries) <= 10
    wanted = False
    now += 3600
    assert not outage.may_try(host, lambda: wanted)
    assert "because" in outage.explain()
    outage.accepted()
    assert outage.may_try(host, lambda: wanted)


def test_an_idle_process_finds_a_server_that_once_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ask while it is disconnected: probes and alerts look at its state only. It tries once a minute."""
    now = 0.0
    monkeypatch.setattr("django_zklock.core.clock.now", lambda: now)
    host, outage, tries = ("127.0.0.1", 2181), Outage([("127.0.0.1", 2181)]), 0
    outage.accepted()
    while now < 600:
        if outage.may_try(host, lambda: False):
            tries += 1
            outage.refused(host, host, "because")
        now += 0.1
    assert 8 <= tries <= 12
