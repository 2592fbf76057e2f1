"""Who in a queue has the lock, as one from outside sees it; the same as those inside are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.queue import rules, standing
from django_zklock.queue.nodes import Child, Kind
from django_zklock.queue.order import Queue


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


def test_a_queue_with_sides_is_told_from_a_plain_one() -> None:
    """By any one who takes a side."""
    assert standing.kind(queue([Kind.LOCK, Kind.LOCK])) == "lock"
    assert standing.kind(queue([Kind.LOCK, Kind.READ])) == "read-write"
    assert standing.kind(queue([Kind.LOCK, Kind.LEASE])) == "semaphore"
