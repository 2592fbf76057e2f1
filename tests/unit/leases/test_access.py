"""Which client a request comes from, and how many it may send."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from django_zklock import conf
from django_zklock.conf.errors import Problems
from django_zklock.conf.leases import LeaseClient, LeaseOptions, read_leases
from django_zklock.contrib.leases.access import ANYBODY, Access, hash_of
from django_zklock.contrib.leases.coordinator import key_of
from django_zklock.contrib.leases.refusal import Code, Refusal

BILLING = LeaseClient(name="billing", tokens=(hash_of("secret"),), certificates=("billing.internal",), max_rate=2.0)
OPTIONS = LeaseOptions(clients={"billing": BILLING})


def test_a_client_is_known_by_its_token_or_certificate() -> None:
    known = Access(OPTIONS, anybody=True)
    assert known.client("somewhere", "Bearer secret") is BILLING
    assert known.client("somewhere", "", ["other", "billing.internal"]) is BILLING


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer \ud800"])
def test_an_unknown_token_or_certificate_is_refused(authorization: str) -> None:
    with pytest.raises(Refusal, match="Authorization") as caught:
        Access(OPTIONS, anybody=True).client("somewhere", authorization, ["stranger"])
    assert caught.value.code is Code.UNAUTHENTICATED


def test_a_wrong_token_is_not_made_good_by_a_certificate() -> None:
    with pytest.raises(Refusal):
        Access(OPTIONS, anybody=True).client("somewhere", "Bearer wrong", ["billing.internal"])


def test_without_clients_the_settings_decide_who_is_served() -> None:
    assert Access(LeaseOptions(), anybody=True).client("somewhere", "") is ANYBODY
    with pytest.raises(Refusal, match="no clients"):
        Access(LeaseOptions(), anybody=False).client("somewhere", "Bearer secret")


def test_a_client_sends_no_more_requests_than_it_may() -> None:
    known = Access(OPTIONS, anybody=False)
    with mock.patch("django_zklock.clock.now", return_value=100.0) as clock:
        for _ in range(2):
            known.client("somewhere", "Bearer secret")
        with pytest.raises(Refusal, match="2 requests a second") as caught:
            known.client("somewhere", "Bearer secret")
        assert caught.value.code is Code.TOO_MANY
        clock.return_value = 100.5
        known.client("somewhere", "Bearer secret")
        with pytest.raises(Refusal):
            known.client("somewhere", "Bearer secret")


@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_a_rate_below_one_allows_less_than_a_request_a_second(rate: float) -> None:
    slow = LeaseClient(name="slow", tokens=(hash_of("secret"),), max_rate=rate)
    known = Access(LeaseOptions(clients={"slow": slow}), anybody=False)
    with mock.patch("django_zklock.clock.now", return_value=100.0) as clock:
        for now in (100.0, 102.0):
            clock.return_value = now
            if rate:
                known.client("somewhere", "Bearer secret")
            with pytest.raises(Refusal):
                known.client("somewhere", "Bearer secret")


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
