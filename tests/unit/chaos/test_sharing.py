"""The checker judges histories of readers, writers and permits."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.chaos.checker import check_history
from support.chaos.simulated import Family, written

SEEDS = st.integers(0, 2**32)


def rules(text: str) -> set[str]:
    """The rules that a written history breaks."""
    return set(check_history(written(text)).rules)


def held(owner: str, kind: str, token: int, start: float, end: float, called: float | None = None) -> str:
    """One hold, with a lease that lasts to its end; permits are brought along as `semaphore/2`."""
    kind, _, limit = kind.partition("/")
    return f"""
        {called or start - 0.01} {owner} invoke op={token} timeout=60 kind={kind} limit={limit or 0}
        {start} {owner} granted op={token} token={token} until={end + 1}
        {end - 0.01} {owner} valid op={token} until={end + 1}
        {end} {owner} release op={token}
        {end + 0.01} {owner} released op={token}
    """


# --- who may hold a key together --------------------------------------------------------------------------------------

KINDS = ("lock", "read", "write", "semaphore/2")
PAIRS = list(itertools.product(KINDS, KINDS))
TOGETHER = {("read", "read"), ("semaphore/2", "semaphore/2")}


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_readers_share_permits_share_and_nobody_else_does(first: str, second: str) -> None:
    """Also not readers and permits: each kind keeps the others out."""
    text = held("A", first, 7, 2, 4) + held("B", second, 8, 3, 5)
    assert (not rules(text)) == ((first, second) in TOGETHER)


def test_readers_keep_a_writer_out_until_the_last_has_gone() -> None:
    readers = held("A", "read", 7, 2, 4) + held("B", "read", 8, 2.5, 6)
    assert not rules(readers + held("C", "write", 9, 6.02, 7, called=3))
    assert rules(readers + held("C", "write", 9, 5, 7, called=3)) == {"exclusion", "check"}


def test_a_check_of_a_reader_that_passes_during_a_write_is_a_fault() -> None:
    text = """
        1 A invoke timeout=5 kind=read
        2 A granted token=7 until=3
        1 B invoke timeout=9 kind={}
        4 B granted token=8 until=9
        5 A valid until=5
    """
    assert rules(text.format("write")) >= {"check"}
    assert not rules(text.format("read"))


# --- downgrade --------------------------------------------------------------------------------------------------------

DOWNGRADED = """
    1 A invoke timeout=5 kind=write
    2 A granted token=7 until=9
    3 A downgrade
    3.2 A downgraded
    5 A valid until=9
    6 A release
    6.1 A released
"""


@pytest.mark.parametrize(("granted", "fine"), [(2.5, False), (2.99, False), (3.0, True), (3.1, True), (4.0, True)])
def test_a_reader_may_be_granted_as_soon_as_a_downgrade_begins(granted: float, fine: bool) -> None:
    text = DOWNGRADED + held("B", "read", 8, granted, 8, called=2.1)
    assert (not rules(text)) == fine


@pytest.mark.parametrize("kind", ["write", "lock", "semaphore/2"])
def test_a_writer_that_is_granted_after_a_downgrade_is_a_fault(kind: str) -> None:
    """CURATOR-621: a writer that had waited was let in between."""
    assert rules(DOWNGRADED + held("B", kind, 8, 4, 8, called=1.5)) == {"exclusion", "check"}
    assert not rules(DOWNGRADED + held("B", kind, 8, 6.02, 8, called=1.5))


def test_a_writer_that_releases_its_write_block_first_still_reads() -> None:
    text = """
        1 A invoke timeout=5 kind=write
        2 A granted token=7 until=9
        2.1 A invoke op=2 timeout=5 kind=read
        2.2 A granted op=2 token=7 until=9 again=true
        3 A release
        3.1 A released
        5 A release op=2
        5.1 A released op=2
    """
    for kind, granted, fine in [("read", 2.9, False), ("read", 3.05, True), ("write", 4, False), ("write", 5.05, True)]:
        other = text + held("B", kind, 8, granted, 8, called=1.5)
        assert (not rules(other)) == fine, f"{kind} at {granted}"


def test_a_downgrade_without_a_reply_may_have_been_executed_or_not() -> None:
    """But its owner relies on reading alone from then on, so a reader may come."""
    unknown = DOWNGRADED.replace("3.2 A downgraded", "3.2 A downgrade_failed")
    assert not rules(unknown + held("B", "read", 8, 4, 5, called=2.5))
    assert rules(unknown + held("B", "write", 8, 4, 5, called=2.5)) == {"exclusion", "check"}


def test_a_reader_that_is_granted_a_write_lock_is_a_fault() -> None:
    upgraded = """
        1 A invoke timeout=5 kind=read
        2 A granted token=7 until=9
        2.1 A invoke op=2 timeout=5 kind=write
        2.2 A {}
        3 A valid until=9
    """
    granted = upgraded.format("granted op=2 token=7 until=9 again=true")
    assert rules(granted) == {"upgrade"}
    assert not rules(upgraded.format("refused op=2 error=LockUpgradeRefused definite=true"))


# --- permits ----------------------------------------------------------------------------------------------------------


def three(limit: int) -> str:
    """Three permits at once, each of whose contenders brought this limit along."""
    return "".join(held(owner, f"semaphore/{limit}", 7 + n, 2 + n / 10, 4) for n, owner in enumerate("ABC"))


def change(limit: object, call: float, back: float | None, op: int = 99) -> str:
    return f"{call} O set_limit op={op} limit={limit} \n" + (f"{back} O limit_set op={op} \n" if back else "")


@pytest.mark.parametrize(("limit", "broken"), [(1, True), (2, True), (3, False), (4, False)])
def test_more_permits_than_the_limit_are_a_fault(limit: int, broken: bool) -> None:
    assert ("permits" in rules(three(limit))) == broken


def test_a_limit_that_is_set_overrides_the_limit_in_code() -> None:
    assert not rules(change(3, 1, 1.1) + three(2))
    assert rules(change(2, 1, 1.1) + three(3)) == {"permits"}
    assert not rules(change(2, 1, 1.1) + change("null", 1.2, 1.3, op=98) + three(3)), "it was cleared"
    assert rules(change(3, 1, 1.1) + change("null", 1.2, 1.3, op=98) + three(2)) == {"permits"}


def test_a_changed_limit_counts_from_its_call() -> None:
    for back in (2.5, None):
        assert not rules(change(3, 1.5, back) + three(2)), "it may have been set before the third"
    assert rules(change(3, 2.21, 2.3) + three(2)) == {"permits"}, "it was called after the third grant"
    lowered = change(3, 1, 1.1) + change(1, 3, 3.1, op=98)
    assert not rules(lowered + three(1)), "those who have a permit keep it"
    assert not rules(lowered + three(1) + held("D", "semaphore/1", 11, 4.02, 5, called=3.2))
    assert rules(lowered + three(1) + held("D", "semaphore/1", 11, 3.9, 5, called=3.2)) >= {"permits"}


def test_a_limit_without_a_reply_may_count() -> None:
    failed = "1 O set_limit op=99 limit=3 \n 1.1 O limit_failed op=99 definite={} \n"
    assert rules(failed.format("true") + three(2)) == {"permits"}
    assert not rules(failed.format("false") + three(2))


# --- order and tokens -------------------------------------------------------------------------------------------------


def test_two_holds_with_one_token_are_a_fault() -> None:
    assert rules(held("A", "read", 8, 2, 5) + held("B", "read", 8, 2.1, 5, called=1).replace("op=8", "op=9")) == {
        "tokens"
    }


def test_a_reader_that_overtakes_a_writer_is_a_fault() -> None:
    """Else writers starve."""
    first, writer = held("A", "read", 7, 2, 4), held("B", "write", 8, 5.1, 6, called=2.1)
    assert rules(first + writer + held("C", "read", 9, 3, 5, called=2.5)) == {"order", "tokens"}
    assert not rules(first + writer + held("C", "read", 9, 6.1, 7, called=2.5))


def test_a_permit_out_of_order_is_a_fault() -> None:
    """Which of those that have room is told first, does not matter."""
    told_late = held("A", "semaphore/{0}", 7, 2, 9) + held("B", "semaphore/{0}", 8, 4, 9, called=1)
    younger = held("C", "semaphore/{0}", 9, 3, 3.5)
    assert not rules((told_late + younger).format(3))
    assert rules((told_late + younger).format(2)) == {"order"}


def test_the_checker_counts_how_many_share_the_lock() -> None:
    """A lock that lets nobody share keeps all the rules."""
    text = held("A", "read", 7, 2, 4) + held("B", "read", 8, 3, 5) + held("C", "read", 9, 4.5, 6)
    assert check_history(written(text)).figures.together == {"read": 2}
    assert check_history(written(three(3))).figures.together == {"semaphore": 3}
    assert check_history(written(DOWNGRADED + held("B", "read", 8, 4, 8))).figures.together == {"write": 1, "read": 2}


# --- what readers see -------------------------------------------------------------------------------------------------


def test_a_value_that_changes_during_a_read_hold_is_a_fault() -> None:
    """As long as it may trust it."""
    text = """
        1 A invoke timeout=5 kind=read
        2 A granted token=7 until=5
        3 A observed value=4
        {} A observed value={}
    """
    assert not rules(text.format(4, 4))
    assert rules(text.format(4, 5)) == {"unsettled"}
    assert not rules(text.format(5.5, 5))


# --- all at once ------------------------------------------------------------------------------------------------------

MIXES = st.sampled_from([("lock",), ("read", "read", "write"), ("semaphore",), ("read", "write", "lock", "semaphore")])


@given(SEEDS, st.integers(2, 10), MIXES, st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_a_queue_that_keeps_its_promises_is_never_accused(
    seed: int, owners: int, kinds: tuple[str, ...], limit: int
) -> None:
    """For any order of the processes' files."""
    family = Family(seed, owners=owners, kinds=kinds, limit=limit)
    random.Random(seed).shuffle(family.events)
    verdict = check_history(family.events)
    assert verdict.ok, verdict.short()


@given(SEEDS, MIXES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_plain_grant_during_any_hold_is_always_found(
    seed: int, kinds: tuple[str, ...], chance: random.Random
) -> None:
    """A plain lock for a moment in the middle of any hold."""
    events = Family(seed, kinds=kinds).events
    text_of = {(event["p"], event["op"], event["e"]): event for event in events}
    grant = chance.choice([event for event in events if event["e"] == "granted"])
    released = text_of[grant["p"], grant["op"], "release"]["t"]
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


def most_at_once(events: list[dict[str, object]]) -> int:
    """How many had been granted the lock and not given it back."""
    counts = itertools.accumulate({"granted": 1, "release": -1}.get(str(event["e"]), 0) for event in events)
    return max(counts)
