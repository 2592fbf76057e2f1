"""The verdicts over a queue."""

from __future__ import annotations

import itertools
import uuid

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.queue.nodes import Child, Kind, prefix
from django_zklock.queue.order import LAST_SEQUENCE, ordered
from django_zklock.queue.rules import Absent, Granted, Rule, WaitFor, exclusive

NAMES = st.builds(
    lambda sequences, kind: [f"{prefix(str(uuid.UUID(int=s)), kind)}{s:010d}" for s in sequences],
    st.sets(st.integers(0, LAST_SEQUENCE), min_size=1, max_size=12),
    st.sampled_from(Kind),
)
QUEUES = NAMES.map(ordered)


@given(QUEUES)
def test_exactly_one_contender_has_the_lock(queue: tuple[Child, ...]) -> None:
    """Of those who read the same queue one is granted the lock: the first."""
    assert [child for child in queue if exclusive(queue, child.name) == Granted()] == [queue[0]]


@given(QUEUES)
def test_everyone_else_waits_for_the_one_just_ahead(queue: tuple[Child, ...]) -> None:
    """So a release wakes one contender, not all of them."""
    for ahead, child in itertools.pairwise(queue):
        assert exclusive(queue, child.name) == WaitFor(ahead.name, alone=ahead is queue[0])


@given(QUEUES, NAMES)
def test_the_promise_of_alone_holds(queue: tuple[Child, ...], newcomers: list[str]) -> None:
    """When the one ahead of a contender that waits alone is gone, it has the lock, whoever came in the meantime."""
    last = queue[-1].sequence
    names = [f"{prefix(str(uuid.uuid4()))}{last + 1 + index:010d}" for index, _ in enumerate(newcomers)]
    for child in queue:
        verdict = exclusive(queue, child.name)
        if isinstance(verdict, WaitFor) and verdict.alone and last + len(names) <= LAST_SEQUENCE:
            later = ordered([*(other.name for other in queue if other.name != verdict.child), *names])
            assert exclusive(later, child.name) == Granted()


@given(QUEUES, st.data())
def test_one_who_is_not_in_the_queue_has_nothing(queue: tuple[Child, ...], data: st.DataObject) -> None:
    """A missing own node is no grant and no place in the queue, whether others wait or not."""
    gone = data.draw(st.sampled_from(queue))
    assert exclusive([child for child in queue if child is not gone], gone.name) == Absent()
    assert exclusive([], gone.name) == Absent()


def test_exclusive_is_a_rule() -> None:
    """The type checker takes it where a rule is wanted."""
    rule: Rule = exclusive
    assert rule((), "me") == Absent()
