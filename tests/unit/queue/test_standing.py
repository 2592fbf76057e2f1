"""Who in a queue has the lock, as one from outside sees it; the same as those inside are told."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.queue import rules, standing
from django_zklock.queue.nodes import Child, Kind
from django_zklock.queue.order import Queue
from django_zklock.queue.signs import Limit


def queue(kinds: list[Kind]) -> Queue:
    return Queue(tuple(Child(f"n{place}", kind, "", place) for place, kind in enumerate(kinds)))


@given(st.integers(0, 8))
def test_of_plain_contenders_the_first_holds_and_each_waits_for_the_one_ahead(many: int) -> None:
    """As the rule for them says."""
    children = queue([Kind.LOCK] * many)
    assert standing.holders(children) == min(1, many)
    for place, child in enumerate(children):
        verdict = rules.exclusive(children, child.name)
        expected = verdict.children[0] if isinstance(verdict, rules.WaitFor) else ""
        assert standing.behind(children, place) == expected


@given(st.lists(st.sampled_from([Kind.LOCK, Kind.READ, Kind.WRITE])))
def test_readers_share_and_all_others_exclude(kinds: list[Kind]) -> None:
    """Who holds waits for nobody; who waits, waits for one ahead, who is no reader if it reads."""
    children = queue(kinds)
    many = standing.holders(children)
    assert many == 1 or all(kind is Kind.READ for kind in kinds[:many])
    assert bool(many) == bool(kinds)
    names = [child.name for child in children]
    for place, child in enumerate(children):
        behind = standing.behind(children, place)
        assert bool(behind) == (place >= many)
        if behind:
            ahead = children[names.index(behind)]
            assert ahead.sequence < child.sequence
            assert child.kind is not Kind.READ or ahead.kind is not Kind.READ


@given(
    st.lists(st.tuples(st.sampled_from([Kind.LEASE, Kind.LEASE, Kind.LOCK]), st.integers(1, 4))),
    st.none() | st.builds(Limit, st.integers(1, 4), st.integers(-1, 8)),
)
def test_who_has_a_permit_from_outside_has_one_by_the_rule(came: list[tuple[Kind, int]], limit: Limit | None) -> None:
    """If all limits are known; where own ones differ, one further back may have one, too, which is not counted."""
    children = replace(queue([kind for kind, _ in came]), limit=limit)
    own = {child.name: limit for child, (_, limit) in zip(children, came, strict=True)}
    many = standing.holders(children, own)
    granted = [
        isinstance(rules.rule_for(child.kind, own[child.name])(children, child.name), rules.Granted)
        for child in children
    ]
    assert all(granted[:many])
    assert many == len(children) or not granted[many]
    if limit is not None or len(set(own.values())) < 2:
        assert sum(granted) == many
    assert standing.undecided(children, own) == ()


@given(st.lists(st.integers(1, 4), min_size=1))
def test_limits_are_asked_for_until_it_is_plain_who_has_a_permit(own: list[int]) -> None:
    """And of nobody whose own limit does not matter, once the first that has none is known."""
    children = queue([Kind.LEASE] * len(own))
    known: dict[str, int] = {}
    while wanted := standing.undecided(children, known):
        known[wanted[0]] = own[int(wanted[0][1:])]
    every = {child.name: limit for child, limit in zip(children, own, strict=True)}
    assert standing.holders(children, known) == standing.holders(children, every)
    assert len(known) <= standing.holders(children, every)


def test_a_queue_with_sides_is_told_from_a_plain_one() -> None:
    """By any one who takes a side."""
    assert standing.kind(queue([Kind.LOCK, Kind.LOCK])) == "lock"
    assert standing.kind(queue([Kind.LOCK, Kind.READ])) == "read-write"
    assert standing.kind(queue([Kind.LOCK, Kind.LEASE])) == "semaphore"
