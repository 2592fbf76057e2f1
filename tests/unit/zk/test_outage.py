"""Outages: which server is to blame, how often it is tried, and calls that may hang."""

import multiprocessing
import os
import socket
import threading
import time

import pytest
from kazoo.protocol.serialization import Delete

from django_zklock.core import clock
from django_zklock.core.log import flush
from django_zklock.core.zk import outside
from django_zklock.core.zk.client import CreateContainer
from django_zklock.core.zk.connection import HURRIED_ROUNDS, host_timeout, hurried_timeout
from django_zklock.core.zk.options import SessionOptions
from django_zklock.core.zk.outage import (
    CLOSED,
    CLOSED_AT_REQUEST,
    NO_ANSWER,
    REFUSED,
    SILENT,
    SOON,
    Outage,
    cause_of,
    text_of,
)
from django_zklock.core.zk.outside import Outside, resolve

OLD, NEW = ("old", 2181), ("new", 2181)


def lines(caplog):
    flush(5)
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def outage():
    """Of an ensemble in which the old server does not know a request, and closes each connection at it."""
    outage = Outage([OLD, NEW], 5)
    for _ in range(3):
        outage.answered(OLD, OLD)
        outage.closed(OLD, OLD, kinds=frozenset({CreateContainer}))
    return outage


def test_each_outage_of_an_ensemble_with_an_old_server_is_logged(outage, caplog):
    for number in range(1, 4):
        outage.failed(NEW, REFUSED)
        outage.log()
        outage.log()
        assert len(lines(caplog)) == number
        assert f"old:2181: {CLOSED_AT_REQUEST}; new:2181: {REFUSED}." in lines(caplog)[-1]
        outage.answered(NEW, NEW)
        outage.log()
        assert outage.explain(server="new:2181") == "ZooKeeper at new:2181 did not answer."
        outage.answered(OLD, OLD)
        outage.closed(OLD, OLD)


def test_a_server_that_closes_connections_is_blamed_until_it_has_kept_one(outage):
    """It may have been upgraded. Until it gets the request, it answers others, too."""
    outage.answered(OLD, OLD)
    assert CLOSED_AT_REQUEST in outage.explain(server="old:2181")
    assert outage.refuses
    outage.carried_out(OLD, Delete, clock.now())
    assert CLOSED_AT_REQUEST in outage.explain()
    outage.carried_out(OLD, Delete, clock.now() - SOON)
    assert CLOSED_AT_REQUEST not in outage.explain()
    assert outage.closings == {}


def test_a_server_that_carries_out_what_it_has_closed_connections_at_is_not_blamed(outage):
    outage.carried_out(OLD, Delete, clock.now())
    assert outage.refuses
    outage.carried_out(OLD, CreateContainer, clock.now())
    assert not outage.refuses
    assert outage.may_try(OLD, lambda: True)


def test_connections_that_end_at_different_requests_are_no_refusal():
    outage = Outage([OLD], 5)
    for kind in (Delete, CreateContainer) * 3:
        outage.closed(OLD, OLD, kinds=frozenset({kind}))
    assert not outage.refuses


def test_a_server_that_restarts_is_not_blamed_for_what_was_under_way():
    """Nothing listens in between, so it was the process that ended the connections, not the request."""
    outage = Outage([OLD], 5)
    for _ in range(4):
        outage.answered(OLD, OLD)
        outage.closed(OLD, OLD)
        assert CLOSED_AT_REQUEST not in outage.explain()
        outage.failed(OLD, REFUSED)
        outage.restarts(OLD)
        assert outage.explain().endswith("connection refused."), "nobody develops there"


def test_two_quick_restarts_are_blamed_on_nothing(caplog):
    """The server was up again before the next try. A third connection that it closes proves enough."""
    outage = Outage([OLD], 5)
    for _ in range(2):
        outage.answered(OLD, OLD)
        outage.closed(OLD, OLD)
        outage.log()
    assert CLOSED_AT_REQUEST not in outage.explain()
    assert not lines(caplog)
    outage.closed(OLD, OLD)
    for _ in range(2):
        outage.log()
        outage.answered(OLD, OLD)
    [line] = lines(caplog)
    assert CLOSED_AT_REQUEST in line


def test_a_server_that_refuses_by_its_own_words_is_told_at_once():
    outage = Outage([OLD], 5)
    outage.closed(OLD, OLD, "it requires SASL")
    assert "it requires SASL" in outage.explain()


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("whole_after", [3.0, 30.0, 300.0])
def test_a_caller_sees_a_try_after_an_address_that_only_closes_is_whole(expires, whole_after, monkeypatch):
    """A balancer without servers may have some at any moment. The first answer may be that the session has expired."""
    now, tries = 0.0, []
    monkeypatch.setattr(clock, "now", lambda: now)
    outage = Outage([OLD], 5)
    outage.closed(OLD, OLD)  # the connection that the balancer cut
    while now < whole_after:
        if outage.may_try(OLD, lambda: True):
            outage.closed(OLD, OLD, CLOSED)
        now += 0.05
    while now < whole_after + 5:
        if outage.may_try(OLD, lambda: True):
            tries.append(now)
            if not expires or len(tries) == 2:
                break
            outage.answered(OLD, OLD, expired=True)
        now += 0.05
    assert len(tries) == 1 + expires


@pytest.mark.parametrize("connect_timeout", [0.1, 1.0, 5.0])
def test_a_short_connect_timeout_is_no_reason_for_more_connects(connect_timeout, monkeypatch):
    """A server with as many connections as it allows is such an address, too, and many processes try it."""
    now, tries = 0.0, 0
    monkeypatch.setattr(clock, "now", lambda: now)
    outage = Outage([OLD], connect_timeout)
    while now < 60:
        if outage.may_try(OLD, lambda: True):
            outage.closed(OLD, OLD, CLOSED)
            tries += 1
        now += 0.05
    assert tries <= 20


@pytest.mark.parametrize("addresses", [1, 3, 5])
@pytest.mark.parametrize("timeout", [6.0, 10.0, 20.0, 60.0])
def test_a_lost_packet_costs_a_fraction_of_what_is_left_of_a_lease(timeout, addresses):
    """From the moment at which the heartbeat is missed, a fifteenth of the timeout remains. The second round begins."""
    seconds = addresses * hurried_timeout(timeout, 0, addresses)
    assert seconds <= timeout * 0.2
    assert hurried_timeout(timeout, 0, addresses) <= max(0.2, timeout / 15 / addresses)
    assert hurried_timeout(timeout, 9, addresses) == pytest.approx(timeout * 0.2 / addresses)


@pytest.mark.parametrize("session_lasts", [10.0, 100.0])
def test_a_server_that_closes_connections_gets_at_most_ten_a_minute(session_lasts, monkeypatch):
    """Callers want it all the time. A session that has expired meanwhile costs one more connection."""
    now, connected_at = 0.0, []
    monkeypatch.setattr(clock, "now", lambda: now)
    outage = Outage([OLD], 5)
    contact = 0.0
    while now < 60:
        if outage.may_try(OLD, lambda: True):
            connected_at.append(now)
            is_expired = now - contact > session_lasts
            outage.answered(OLD, OLD, expired=is_expired)
            if not is_expired:
                outage.closed(OLD, OLD)
            contact = now
        now += 0.05
    assert 8 <= len(connected_at) <= 10
    assert connected_at[3] < 1  # a caller that gives up early learns the reason


# --- calls that may hang ----------------------------------------------------------------------------------------------


NAME = ("zk.example", 2181)


class Gate:
    def __init__(self):
        self.open = threading.Event()
        self.calls = 0
        self.error = None

    def __call__(self):
        self.calls += 1
        self.open.wait(20)
        if self.error is not None:
            raise self.error
        return self.calls


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Make each call, however short the last one was ago."""
    fresh = outside.FRESH
    monkeypatch.setattr(outside, "FRESH", 0.0)
    return fresh


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def test_a_call_that_hangs_is_waited_for_once_and_made_once(gate):
    call = Outside(gate)
    for within, longest in [(2, 20), (2, 1.9), (2, 1.9)]:
        call.begin()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            call.get(within)
        assert time.monotonic() - began < longest
    assert gate.calls == 1
    gate.open.set()
    assert call.get(60) == 1


def test_the_value_before_stays_while_a_call_hangs(gate):
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


@pytest.mark.parametrize(("later", "value"), [(0, 1), (1, 2)])
def test_a_value_that_came_too_late_is_the_next_callers(gate, monkeypatch, fresh, later, value):
    """A resolver that always takes longer than a caller waits would else serve nobody. An old value is not used."""
    monkeypatch.setattr(outside, "FRESH", fresh)
    call = Outside(gate)
    call.begin()
    with pytest.raises(TimeoutError):
        call.get(0.05)
    gate.open.set()
    call._ended.wait(20)
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + later)
    call.begin()
    assert call.get(20) == value


def test_a_forked_child_asks_the_resolver_itself(gate, monkeypatch):
    """It has none of its parent's threads, and would wait for the answer to one for ever."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *host, **how: gate())
    outside._addresses.cache_clear()
    resolve([NAME], 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *host, **how: [(2, 1, 6, "", ("10.0.0.1", 2181))])
    answer = {NAME: (("10.0.0.1", 2181),)}
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(resolve([NAME], 20) != answer))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_process_with_too_many_threads_says_so(gate, monkeypatch):
    class Refused:
        def start(self):
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


@pytest.fixture
def answers(monkeypatch):
    """The answers of the resolver, one for each look-up: a list of IP addresses, or an error."""
    answers = []

    def getaddrinfo(host, port, **how):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    outside._addresses.cache_clear()
    return answers


def test_addresses_need_no_resolver_and_each_address_of_a_name_counts_once(answers):
    hosts = [("127.0.0.1", 1), ("::1", 2), ("fe80::1%eth0", 3)]
    answers.append(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    named = {NAME: (("10.0.0.1", 2181), ("10.0.0.2", 2181))}
    assert resolve([*hosts, NAME], 20) == {host: (host,) for host in hosts} | named


def test_the_addresses_stay_while_the_resolver_is_out_of_order(answers):
    temporary, final = socket.gaierror(socket.EAI_AGAIN, "later"), socket.gaierror(socket.EAI_NONAME, "none")
    answers += [temporary, ["10.0.0.1"], temporary, ["10.0.0.2"], final, temporary]
    seen = [resolve([NAME], 20)[NAME] for _ in range(len(answers))]
    assert [text_of(answer) if isinstance(answer, OSError) else answer[0][0] for answer in seen] == [
        "later",
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        outside.NO_HOST,
        "later",
    ]


def test_a_server_that_refuses_is_tried_ten_times_a_minute_or_once_if_idle(monkeypatch):
    """At once after the first time, as that may be a restart. Probes and alerts read the state of an idle process."""
    now = 0.0
    monkeypatch.setattr(clock, "now", lambda: now)
    outage, tries = Outage([OLD], 5), []
    while now < 1200:
        if outage.may_try(OLD, lambda now=now: now < 600):
            tries.append(now)
            outage.closed(OLD, OLD, "because")
        now += 0.01
    assert tries[1] < 0.2
    for start in (0, 60, 120):
        assert 4 <= sum(start <= at < start + 60 for at in tries) <= 10
    assert 7 <= sum(at > 600 for at in tries) <= 12
    assert "because" in outage.explain()


@pytest.mark.parametrize(
    ("error", "before", "later"),
    [
        (ConnectionResetError(104, "reset"), CLOSED, CLOSED),
        (BrokenPipeError(32, "broken"), CLOSED, CLOSED),
        (TimeoutError("timed out"), NO_ANSWER, SILENT),
        (OSError(113, "No route to host"), "no route to host", CLOSED),
    ],
)
def test_an_error_means_another_cause_once_the_server_has_accepted(error, before, later):
    causes = [cause_of(error, in_handshake=False, connected=connected) for connected in (False, True)]
    assert causes == [before, later]


def test_a_try_is_shorter_if_the_session_is():
    options = SessionOptions(hosts=(NEW,), session_timeout=30, connect_timeout=60)
    granted, asked = (host_timeout(options, timeout, HURRIED_ROUNDS, addresses=1) for timeout in (6.0, 0.0))
    assert granted * 5 == asked
