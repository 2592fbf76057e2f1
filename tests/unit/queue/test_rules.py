"""The verdicts over a queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue.nodes import Child, Kind, Mark, new_guid, prefix
from django_zklock.core.queue.order import (
    LAST_SEQUENCE,
    Absent,
    Granted,
    Permits,
    Queue,
    Verdict,
    WaitFor,
    exclusive,
    ordered,
    rule_for,
    shared,
)

PLAIN = st.just(Kind.LOCK)
KINDS = st.sampled_from(Kind)
LIMITS = st.integers(1, 5)


def queue_of(kinds: Iterable[Kind], *, start: int = 0, mark: Mark = Mark.OWN) -> Queue:
    names = (f"{prefix(new_guid(mark), kind)}{start + index:010d}" for index, kind in enumerate(kinds))
    return ordered(names)


def queues(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Queue]:
    return st.builds(
        lambda kinds, start: queue_of(kinds, start=start),
        st.lists(kinds, min_size=1, max_size=12),
        st.sampled_from([0, 7, LAST_SEQUENCE - 40]),
    )


def without(queue: Queue, names: Iterable[str]) -> Queue:
    gone = set(names)
    return Queue(tuple(child for child in queue if child.name not in gone), queue.limit)


def told(queue: Queue, child: Child, limit: int) -> Verdict:
    return rule_for(child.kind, limit)(queue, child.name)


def conflict(first: Child, other: Child) -> bool:
    return first.kind is not other.kind or first.kind not in (Kind.READ, Kind.PERMIT)


# --- plain locks ------------------------------------------------------------------------------------------------------


@given(queues(PLAIN))
def test_each_other_plain_contender_waits_for_the_one_just_ahead(queue: Queue) -> None:
    """So a release wakes one contender, not all of them."""
    for ahead, child in itertools.pairwise(queue):
        assert exclusive(queue, child.name) == WaitFor((ahead.name,), is_last=ahead is queue[0])


@given(queues(PLAIN), LIMITS)
def test_a_semaphore_with_one_permit_is_a_lock(queue: Queue, limit: int) -> None:
    leases = queue_of([Kind.PERMIT] * len(queue))
    for index, child in enumerate(leases):
        verdict = Permits(1)(leases, child.name)
        if isinstance(verdict, WaitFor):
            assert verdict == WaitFor((leases[index - 1].name,), is_last=index == 1, depends_on_limit=True)
        else:
            assert (verdict, index) == (Granted(), 0)


# --- all kinds in one queue -------------------------------------------------------------------------------------------


@given(queues(KINDS), LIMITS)
def test_contenders_that_hold_together_can_share(queue: Queue, limit: int) -> None:
    holders = [child for child in queue if told(queue, child, limit) == Granted()]
    assert holders[0] == queue[0]
    assert not any(conflict(*pair) for pair in itertools.combinations(holders, 2))
    assert holders[0].kind is not Kind.PERMIT or len(holders) <= limit


@given(queues(KINDS), LIMITS)
def test_holders_are_the_first_in_the_queue(queue: Queue, limit: int) -> None:
    """The holders are as many as can share the lock, so no contender starves."""
    granted = [told(queue, child, limit) == Granted() for child in queue]
    many = sum(granted)
    assert granted == [True] * many + [False] * (len(queue) - many)
    if many < len(queue):
        assert conflict(queue[many - 1], queue[many]) or (queue[0].kind is Kind.PERMIT and many == limit)


@given(queues(KINDS), LIMITS, st.data())
def test_a_waiter_is_woken_before_it_could_be_granted(queue: Queue, limit: int, data: st.DataObject) -> None:
    for child in queue:
        verdict = told(queue, child, limit)
        if isinstance(verdict, WaitFor):
            ahead = [child_ahead.name for child_ahead in queue[: queue.index_of(child.name)]]
            assert set(verdict.children) <= set(ahead)
            others = [name for name in ahead if name not in verdict.children]
            gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
            assert told(without(queue, gone), child, limit) != Granted()


@given(queues(KINDS), LIMITS, st.lists(KINDS, max_size=4))
def test_the_end_of_the_last_predecessor_is_a_grant(queue: Queue, limit: int, newcomers: list[Kind]) -> None:
    later = queue_of(newcomers, start=queue[-1].sequence + 1)
    for child in queue:
        verdict = told(queue, child, limit)
        if isinstance(verdict, WaitFor) and verdict.is_last:
            for name in verdict.children:
                now = Queue((*without(queue, [name]), *later))
                assert told(now, child, limit) == Granted()


@given(st.lists(KINDS, min_size=2, max_size=6), LIMITS)
def test_the_end_of_a_minimum_hold_grants_nothing_by_itself(kinds: list[Kind], limit: int) -> None:
    """Another node may have taken its place, so the queue has to be looked at."""
    queue = queue_of(kinds, mark=Mark.REPLACEABLE)
    for child in queue:
        verdict = told(queue, child, limit)
        assert not isinstance(verdict, WaitFor) or not verdict.is_last


@given(queues(KINDS), LIMITS, st.data())
def test_a_contender_outside_the_queue_has_no_grant(queue: Queue, limit: int, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(queue))
    assert told(without(queue, [gone.name]), gone, limit) == Absent()
    assert told(Queue(), gone, limit) == Absent()


# --- readers ----------------------------------------------------------------------------------------------------------


def test_a_reader_waits_for_the_last_writer_ahead_and_for_none_behind() -> None:
    """A later contender blocks no earlier one (kazoo issue 649)."""
    queue = queue_of([Kind.WRITE, Kind.READ, Kind.WRITE, Kind.READ, Kind.READ, Kind.WRITE])
    assert shared(queue, queue[1].name) == WaitFor((queue[0].name,), is_last=True)
    assert shared(queue, queue[4].name) == WaitFor((queue[2].name,), is_last=False)
    assert shared(without(queue, [queue[0].name]), queue[1].name) == Granted()


def test_a_downgraded_writer_lets_readers_in() -> None:
    queue = queue_of([Kind.WRITE, Kind.READ, Kind.WRITE, Kind.READ])
    names = [child.name for child in queue]
    now = ordered([*names, f"!reads:{queue[0].guid}:"])
    assert [isinstance(told(now, child, 1), Granted) for child in now] == [True, True, False, False]


# --- permits ----------------------------------------------------------------------------------------------------------


@given(queues(st.just(Kind.PERMIT)), LIMITS, LIMITS)
def test_a_limit_that_is_set_wins_over_the_limit_in_code(queue: Queue, own: int, limit: int) -> None:
    """So it can be changed while processes run."""
    limited = Queue(queue.children, limit)
    assert sum(told(limited, child, own) == Granted() for child in limited) == min(limit, len(queue))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=30))
def test_holders_are_within_the_limit_that_the_last_of_them_read(events: list[tuple[int, int]]) -> None:
    """Contenders come, look and leave in any order while the limit changes. A holder does not look again."""
    limit, children, saw = 1, [], dict[str, int]()
    for number, (what, value) in enumerate(events):
        if what < 3:
            children.append(queue_of([Kind.PERMIT], start=number)[0])
        elif what < 5:
            limit = value
        elif what < 6 and children:
            saw.pop(children.pop(value % len(children)).name, None)
        elif children:
            child = children[value * what % len(children)]
            if Permits(1)(Queue(tuple(children), limit), child.name) == Granted():
                saw.setdefault(child.name, limit)
        holders = [child.name for child in children if child.name in saw]
        assert not holders or len(holders) <= saw[holders[-1]]
