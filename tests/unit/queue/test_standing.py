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
    st.integers(-1, 8),
)
def test_who_has_a_permit_from_outside_has_one_by_the_rule(
    came: list[tuple[Kind, int]], limit: Limit | None, kept: int
) -> None:
    """If all limits are known, also where they differ; each of the others waits for somebody."""
    children = replace(queue([kind for kind, _ in came]), limit=limit, past=Limit(0, kept))
    own = {child.name: limit for child, (_, limit) in zip(children, came, strict=True)}
    granted = [
        place
        for place, child in enumerate(children)
        if isinstance(rules.rule_for(child.kind, own[child.name])(children, child.name), rules.Granted)
    ]
    assert standing.held(children, own) == tuple(granted)
    assert standing.holders(children, own) == max((place + 1 for place in granted), default=0)
    assert standing.undecided(children, own) == ()
    for place in range(len(children)):
        assert bool(standing.behind(children, place, granted)) == (place not in granted)


@given(st.lists(st.integers(1, 4), min_size=1))
def test_limits_are_asked_for_as_far_as_the_highest_that_is_known(own: list[int]) -> None:
    """So nobody is missed, but who knows of more permits than all that stand ahead; and no crowd is read in vain."""
    children = queue([Kind.LEASE] * len(own))
    known: dict[str, int] = {}
    while wanted := standing.undecided(children, known):
        known[wanted[0]] = own[int(wanted[0][1:])]
    highest = max(own[: len(known)])
    assert len(known) == min(len(own), highest)
    every = {child.name: min(limit, highest) for child, limit in zip(children, own, strict=True)}
    assert standing.held(children, known) == standing.held(children, every)


def test_a_queue_with_sides_is_told_from_a_plain_one() -> None:
    """By any one who takes a side."""
    assert standing.kind(queue([Kind.LOCK, Kind.LOCK])) == "lock"
    assert standing.kind(queue([Kind.LOCK, Kind.READ])) == "read-write"
    assert standing.kind(queue([Kind.LOCK, Kind.LEASE])) == "semaphore"
