"""The checker accuses no queue that keeps its promises, and finds each fault that is put into its history."""

from __future__ import annotations

import itertools
import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.chaos.checker import check_history
from support.chaos.simulated import Event, Family

SEEDS = st.integers(0, 2**32)
MIXES = st.sampled_from([("lock",), ("read", "read", "write"), ("semaphore",), ("read", "write", "lock", "semaphore")])


@given(SEEDS, st.integers(2, 10), MIXES, st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_a_queue_that_keeps_its_promises_is_never_accused(
    seed: int, owners: int, kinds: tuple[str, ...], limit: int
) -> None:
    """The order in which the files of the processes are read does not matter."""
    family = Family(seed, owners=owners, kinds=kinds, limit=limit)
    random.Random(seed).shuffle(family.events)
    verdict = check_history(family.events)
    assert verdict.ok, verdict.short()


@given(SEEDS, MIXES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_plain_grant_during_any_hold_is_always_found(
    seed: int, kinds: tuple[str, ...], chance: random.Random
) -> None:
    """Another process has a plain lock for a moment in the middle of a hold."""
    events = Family(seed, kinds=kinds).events
    event_of = {(event["p"], event["op"], event["e"]): event for event in events}
    grant = chance.choice([event for event in events if event["e"] == "granted"])
    released = event_of[grant["p"], grant["op"], "release"]["t"]
    start, end = sorted(chance.uniform(grant["t"], released) for _ in range(2))
    assume(grant["t"] < start < end < released)
    about = {"p": "X", "o": "X/main", "op": 1, "key": "k"}
    intruder = [
        {"t": start, "e": "invoke", "timeout": 1, "kind": "lock", **about},
        {"t": start, "e": "granted", "token": 10**6, "until": end, **about},
        {"t": end, "e": "release", **about},
        {"t": end, "e": "released", **about},
    ]
    grant["until"] = max(grant["until"], released)
    assert "exclusion" in check_history([*events, *intruder]).rules


@given(SEEDS, st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_one_permit_too_many_is_always_found(seed: int, limit: int) -> None:
    """The queue grants one permit more than its users know of, and all are held at once."""
    family = Family(seed, kinds=("semaphore",), holds=80, owners=8, limit=limit + 1)
    events = [{**event, "limit": limit} if event["e"] == "invoke" else event for event in family.events]
    for event in events:
        if event["e"] == "granted":
            event["until"] += 10  # the lease lasts to the release
    assume(most_at_once(events) == limit + 1)
    assert "permits" in check_history(events).rules


def most_at_once(events: list[Event]) -> int:
    """Count those that had been granted the lock and had not released it, at most."""
    counts = itertools.accumulate({"granted": 1, "release": -1}.get(str(event["e"]), 0) for event in events)
    return max(counts)


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_a_token_that_falls_is_always_found(seed: int, chance: random.Random) -> None:
    events = Family(seed, kinds=["lock"], holds=10).events
    grants = [event for event in events if event["e"] == "granted" and event["token"]]
    assume(len(grants) > 1)
    index = chance.randrange(1, len(grants))
    grants[index]["token"] = chance.randint(1, grants[index - 1]["token"])
    assert "tokens" in check_history(events).rules
