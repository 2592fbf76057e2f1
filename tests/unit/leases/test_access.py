"""Which client a request comes from, and how many it may send."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest import mock

import pytest

from django_zklock import conf
from django_zklock.conf.errors import Problems
from django_zklock.conf.leases import LeaseClient, LeaseOptions, read_leases
from django_zklock.contrib.leases import access
from django_zklock.contrib.leases.access import ANYBODY, Access, hash_of
from django_zklock.contrib.leases.coordinator import key_of
from django_zklock.contrib.leases.refusal import Code, Refusal

BILLING = LeaseClient(name="billing", tokens=(hash_of("secret"),), certificates=("billing.internal",), max_rate=2.0)
OPTIONS = LeaseOptions(clients={"billing": BILLING})


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse unknown clients at once."""
    monkeypatch.setattr(access, "DELAY", 0.0)


async def test_a_client_is_known_by_its_token_or_certificate() -> None:
    known = Access(OPTIONS)
    assert await known.client("somewhere", "Bearer secret") is BILLING
    assert await known.client("somewhere", "", ["other", "billing.internal"]) is BILLING


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer \ud800"])
async def test_an_unknown_token_or_certificate_is_refused(authorization: str) -> None:
    with pytest.raises(Refusal, match="Authorization") as caught:
        await Access(OPTIONS).client("somewhere", authorization, ["stranger"])
    assert caught.value.code is Code.UNAUTHENTICATED


async def test_a_wrong_token_is_not_made_good_by_a_certificate() -> None:
    with pytest.raises(Refusal):
        await Access(OPTIONS).client("somewhere", "Bearer wrong", ["billing.internal"])


async def test_without_clients_all_programs_are_served() -> None:
    assert await Access(LeaseOptions()).client("somewhere", "") is ANYBODY


async def test_failed_tries_from_one_address_are_one_line_and_a_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that guesses tokens cannot fill the log."""
    monkeypatch.setattr(access, "LOG_PERIOD", 0.2)
    known = Access(OPTIONS)
    for address in ["10.0.0.1"] * 5 + ["10.0.0.2"]:
        with pytest.raises(Refusal):
            await known.client(address, "Bearer wrong")
    assert [record.getMessage() for record in caplog.records] == [
        f"the lock coordinator does not know a client at {address}" for address in ("10.0.0.1", "10.0.0.2")
    ]
    while len(caplog.records) < 3:
        await asyncio.sleep(0.01)
    assert "10.0.0.1 (4 more times" in caplog.records[2].getMessage()


async def test_an_unknown_client_waits_for_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known one does not, meanwhile."""
    monkeypatch.setattr(access, "DELAY", 0.2)
    known = Access(OPTIONS)
    began = time.monotonic()
    refusal = asyncio.ensure_future(known.client("somewhere", "Bearer wrong"))
    await known.client("somewhere", "Bearer secret")
    assert not refusal.done()
    with pytest.raises(Refusal):
        await refusal
    assert time.monotonic() - began >= 0.2


def test_a_client_that_sends_too_many_requests_is_slowed_down() -> None:
    """Far too many are refused."""
    known = Access(OPTIONS)
    with mock.patch("django_zklock.clock.now", return_value=100.0) as clock:
        assert [known.delay(BILLING) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
        clock.return_value = 101.0
        assert known.delay(BILLING) == 0.5
        with pytest.raises(Refusal, match="2 requests a second") as caught:
            for _ in range(50):
                known.delay(BILLING)
        assert caught.value.code is Code.TOO_MANY


def test_a_rate_of_zero_refuses_all() -> None:
    with pytest.raises(Refusal):
        Access(OPTIONS).delay(LeaseClient(name="none", tokens=(hash_of("x"),), max_rate=0.0))


@pytest.mark.parametrize(
    ("prefix", "key", "may"),
    [("", "a/b", True), ("a", "a", True), ("a", "a/b", True), ("a", "ab", False), ("a/b", "a", False)],
)
def test_a_prefix_of_keys_ends_at_a_segment(prefix: str, key: str, may: bool) -> None:
    assert LeaseClient(name="x", prefixes=(prefix,)).may_lock(key) is may


def test_the_repr_of_a_client_hides_its_hash() -> None:
    assert hash_of("secret") not in repr(OPTIONS)


@pytest.mark.parametrize(
    ("leases", "match"),
    [
        ([], "not a dict"),
        ({"CLIENT": {}}, 'Did you mean "CLIENTS"'),
        ({"CLIENTS": []}, "not a dict of clients"),
        ({"CLIENTS": {"a": []}}, "not a dict"),
        ({"CLIENTS": {"a": {}}}, "neither TOKENS nor CERTIFICATES"),
        ({"CLIENTS": {"a": {"TOKENS": ["secret"]}}}, "no hash of a token"),
        ({"CLIENTS": {"a": {"TOKENS": [hash_of("x")], "PREFIXES": "a"}}}, "not a list of texts"),
        ({"CLIENTS": {"a": {"TOKENS": [hash_of("x")], "PREFIXES": ["a//b"]}}}, "empty segment"),
        ({"CLIENTS": {"a": {"CERTIFICATES": ["a"], "KINDS": ["mutex"]}}}, "unknown kind"),
        ({"CLIENTS": {"a": {"CERTIFICATES": ["a"], "MAX_LEASES": 1.5}}}, "a whole number from 0"),
        ({"CLIENTS": {"a": {"CERTIFICATES": ["a"]}, "b": {"CERTIFICATES": ["a"]}}}, "same token or certificate"),
        ({"MAX_TERM": 0}, "must be a time above 0"),
    ],
)
def test_invalid_settings_of_the_coordinator_are_reported(leases: Any, match: str) -> None:
    (problem,) = conf.problems({"URL": "zk://zk1:2181/x", "LEASES": leases})
    assert match in str(problem)


def test_settings_of_the_coordinator_are_read() -> None:
    raw = {"CLIENTS": {"billing": {"TOKENS": [hash_of("secret")], "PREFIXES": ["/billing/"], "MAX_RATE": 5}}}
    assert conf.problems({"URL": "zk://zk1:2181/x", "LEASES": raw}) == []


@pytest.mark.parametrize("prefix", ["größe/a b", "gr%C3%B6%C3%9Fe/a%20b/"])
def test_prefixes_are_written_as_names_or_as_keys(prefix: str) -> None:
    problems = Problems()
    options = read_leases({"CLIENTS": {"a": {"CERTIFICATES": ["a"], "PREFIXES": [prefix]}}}, "LEASES", problems)
    assert options.clients["a"].may_lock(key_of("größe/a b/7"))
    assert not options.clients["a"].may_lock(key_of("größe/a"))
