"""The last failures of several servers: each outage is told, and no server is blamed for an earlier one."""

from __future__ import annotations

import pytest

from django_zklock.core import clock
from django_zklock.core.log import flush
from django_zklock.core.zk.outage import CLOSES_AT, REFUSED, Outage

OLD, NEW = ("old", 2181), ("new", 2181)
REQUEST = "createContainer"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    flush(5)
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def outage() -> Outage:
    """Of an ensemble in which the old server does not know a request."""
    outage = Outage([OLD, NEW])
    for _ in range(3):
        outage.answered(OLD)
        outage.accepted()
        outage.closed_at(OLD, OLD, [REQUEST], answered=True)
    return outage


def test_each_outage_of_an_ensemble_with_an_old_server_is_logged(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    """While one server works, the other is known to refuse the request. The earlier failures of the first are not."""
    for number in range(1, 4):
        outage.failed(NEW, REFUSED)
        outage.log()
        outage.log()
        assert len(lines(caplog)) == number
        outage.answered(NEW)
        outage.accepted()
        outage.log()
        assert REFUSED not in outage.explain()
        assert f"old:2181: {CLOSES_AT}{REQUEST}; it needs" in outage.explain()


def test_a_server_that_answers_the_request_is_not_blamed_any_more(outage: Outage) -> None:
    """It may have been upgraded. Other requests are answered all the time, and prove nothing."""
    outage.carried_out(OLD, OLD, "getData")
    assert CLOSES_AT in outage.explain()
    outage.carried_out(OLD, OLD, REQUEST)
    assert CLOSES_AT not in outage.explain()
    assert not outage.is_refused


def test_a_server_that_restarts_is_not_blamed_for_what_was_under_way() -> None:
    """Nothing listens in between, so it was the process that ended the connections, not the request."""
    outage = Outage([OLD])
    for _ in range(4):
        outage.answered(OLD)
        outage.accepted()
        outage.closed_at(OLD, OLD, [REQUEST], answered=True)
        assert not outage.is_refused
        assert CLOSES_AT not in outage.explain()
        outage.failed(OLD, REFUSED)
        outage.restarts(OLD)


@pytest.mark.parametrize("answered", [True, False], ids=["a later request", "the first request"])
def test_two_quick_restarts_are_not_blamed_on_a_request(answered: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The server was up again before the next try. A third connection that ends at the same request proves enough."""
    outage = Outage([OLD])
    for _ in range(2):
        outage.answered(OLD)
        outage.closed_at(OLD, OLD, [REQUEST], answered=answered)
        outage.log()
    assert CLOSES_AT not in outage.explain()
    assert not lines(caplog)
    outage.closed_at(OLD, OLD, [REQUEST], answered=answered)
    outage.log()
    assert f"{CLOSES_AT}{REQUEST}; it needs" in lines(caplog)[0]


def test_requests_that_were_sent_together_are_named_together() -> None:
    """Each of them may be the one that the server does not know."""
    outage = Outage([OLD])
    for _ in range(3):
        outage.closed_at(OLD, OLD, ["getEphemerals", "getChildren", "getChildren"], answered=False)
    assert f"{CLOSES_AT}getEphemerals or getChildren; " in outage.explain()


def test_a_server_that_refused_the_old_session_is_asked_for_a_new_one_at_once(outage: Outage) -> None:
    """Servers that have lost all their data refuse each session that they do not know."""
    assert not outage.may_try(OLD, lambda: True)
    outage.asks_anew()
    assert outage.may_try(OLD, lambda: True)


@pytest.mark.parametrize("session_lasts", [10.0, 100.0])
@pytest.mark.parametrize("answered", [True, False])
def test_a_server_that_closes_connections_gets_at_most_ten_a_minute(
    answered: bool, session_lasts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers want it all the time. A session that has expired meanwhile costs one more connection."""
    now, connected_at = 0.0, []
    monkeypatch.setattr(clock, "now", lambda: now)
    outage = Outage([OLD])
    contact = 0.0
    while now < 60:
        if outage.may_try(OLD, lambda: True):
            connected_at.append(now)
            if now - contact > session_lasts:
                outage.expired(OLD, OLD)
            else:
                outage.answered(OLD)
                outage.closed_at(OLD, OLD, [REQUEST], answered=answered)
            contact = now
        now += 0.05
    assert 8 <= len(connected_at) <= 10
    assert connected_at[3] < 1  # a caller that gives up early learns the reason
