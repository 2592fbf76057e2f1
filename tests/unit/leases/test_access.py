"""Which client a request comes from, and how many it may send."""

import asyncio
import time
from unittest import mock

import pytest

from django_zklock import conf
from django_zklock.conf.table import Problems
from django_zklock.contrib.leases.access import DELAY, MOST_DELAYED, Access, Denials, Pace, hash_of
from django_zklock.contrib.leases.coordinator import key_of
from django_zklock.contrib.leases.options import LeaseClient, LeaseOptions, read_leases
from django_zklock.contrib.leases.refusal import Code, Refusal

BILLING = LeaseClient(name="billing", tokens=(hash_of("secret"),), certificates=("billing.internal",), max_rate=2.0)
OPTIONS = LeaseOptions(clients={"billing": BILLING})


async def test_a_client_is_known_by_its_token_or_certificate():
    access = Access(OPTIONS)
    assert await access.client("somewhere", "Bearer secret") is BILLING
    assert await access.client("somewhere", "", ["other", "billing.internal"]) is BILLING


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer \ud800"])
async def test_an_unknown_token_or_certificate_is_refused(authorization, monkeypatch):
    """A wrong token is not made good by a certificate."""
    monkeypatch.setattr("django_zklock.contrib.leases.access.DELAY", 0.01)
    for certificate in ("stranger", *(["billing.internal"] if authorization == "Bearer wrong" else [])):
        with pytest.raises(Refusal, match="Authorization") as caught:
            await Access(OPTIONS).client("somewhere", authorization, [certificate])
        assert caught.value.code is Code.UNAUTHENTICATED


async def test_guesses_of_tokens_are_slowed_down_and_logged_in_one_line(caplog, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.access.LOG_PERIOD", 0.5)
    access, began = Access(OPTIONS), time.monotonic()
    guesses = [access.client("10.0.0.7", f"Bearer {number}") for number in range(MOST_DELAYED + 100)]
    refusals = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Refusal}
    assert time.monotonic() - began >= DELAY
    while len(caplog.messages) < 2:
        await asyncio.sleep(0.05)
    assert caplog.messages == [
        "the lock coordinator does not know a client at 10.0.0.7",
        f"the lock coordinator does not know a client at 10.0.0.7 ({MOST_DELAYED + 99} more times in 0.5 s)",
    ]


async def test_clients_at_many_addresses_cannot_fill_the_log(caplog, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.access.MOST_LOGGED", 3)
    denials = Denials()
    for number in range(100):
        denials.report(f"address {number}")
    assert len(caplog.messages) == 4
    assert "others" in caplog.messages[-1]


async def test_a_client_sends_no_more_requests_than_it_may():
    pace, slow = Pace(), LeaseClient(name="slow", max_rate=0.5)
    with mock.patch("django_zklock.core.clock.now", return_value=100.0) as clock:
        assert [pace.delay(BILLING) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
        assert [pace.delay(slow) for _ in range(2)] == [0.0, 2.0]
        clock.return_value = 101.0
        assert pace.delay(BILLING) == 0.5
        for _ in range(37):
            pace.delay(BILLING)
        with pytest.raises(Refusal, match="2 requests a second") as caught:
            for _ in range(3):
                pace.delay(BILLING)
        assert caught.value.code is Code.TOO_MANY
        await asyncio.wait_for(pace.wait(BILLING, 0.0), 1)  # what costs nothing waits for nothing
        clock.return_value = 102.0
        assert pace.delay(slow) == 2.0
    with pytest.raises(Refusal, match="0 requests a second"):
        pace.delay(LeaseClient(name="closed", max_rate=0.0))


@pytest.mark.parametrize(
    ("prefix", "key", "may"),
    [("", "a/b", True), ("a", "a", True), ("a", "a/b", True), ("a", "ab", False), ("a/b", "a", False)],
)
def test_a_prefix_of_keys_ends_at_a_segment(prefix, key, may):
    assert LeaseClient(name="x", prefixes=(prefix,)).may_lock(key) is may


def test_the_repr_of_a_client_hides_its_hash():
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
def test_invalid_settings_of_the_coordinator_are_reported(leases, match):
    (problem,) = conf.problems({"URL": "zk://zk1:2181/x", "LEASES": leases})
    assert match in str(problem)


@pytest.mark.parametrize("prefix", ["größe/a b", "gr%C3%B6%C3%9Fe/a%20b/"])
def test_prefixes_are_written_as_names_or_as_keys(prefix):
    problems = Problems()
    options = read_leases({"CLIENTS": {"a": {"CERTIFICATES": ["a"], "PREFIXES": [prefix]}}}, "LEASES", problems)
    assert options.clients["a"].may_lock(key_of("größe/a b/7"))
    assert not options.clients["a"].may_lock(key_of("größe/a"))
