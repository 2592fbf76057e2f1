"""An onlooker sees the holders of a queue as the contenders do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue import order
from django_zklock.core.queue.markers import LimitRecord
from django_zklock.core.queue.nodes import Child, Kind, Payload
from django_zklock.core.queue.order import Queue
from django_zklock.locks import holders


def queue(kinds: list[Kind]) -> Queue:
    return Queue(tuple(Child(f"n{index}", kind, "", index) for index, kind in enumerate(kinds)))


@given(st.integers(0, 8))
def test_of_plain_contenders_only_the_first_holds(many: int) -> None:
    children = queue([Kind.LOCK] * many)
    assert holders.end_of_holders(children) == min(1, many)
    for index, child in enumerate(children):
        verdict = order.exclusive(children, child.name)
        expected = verdict.children[0] if isinstance(verdict, order.WaitFor) else ""
        assert holders.waits_for(children, index) == expected


@given(st.lists(st.sampled_from([Kind.LOCK, Kind.READ, Kind.WRITE])))
def test_readers_share_and_all_others_exclude(kinds: list[Kind]) -> None:
    children = queue(kinds)
    many = holders.end_of_holders(children)
    assert many == 1 or all(kind is Kind.READ for kind in kinds[:many])
    assert bool(many) == bool(kinds)
    names = [child.name for child in children]
    for index, child in enumerate(children):
        behind = holders.waits_for(children, index)
        assert bool(behind) == (index >= many)
        if behind:
            ahead = children[names.index(behind)]
            assert ahead.sequence < child.sequence
            assert child.kind is not Kind.READ or ahead.kind is not Kind.READ


@given(
    st.lists(st.tuples(st.sampled_from([Kind.PERMIT, Kind.PERMIT, Kind.LOCK]), st.integers(1, 4))),
    st.none() | st.integers(1, 4),
)
def test_the_shown_holders_of_permits_are_those_of_the_rule(came: list[tuple[Kind, int]], limit: int | None) -> None:
    children = replace(queue([kind for kind, _ in came]), limit=limit)
    own = {child.name: limit for child, (_, limit) in zip(children, came, strict=True)}
    granted = [
        index
        for index, child in enumerate(children)
        if isinstance(order.rule_for(child.kind, own[child.name])(children, child.name), order.Granted)
    ]
    limits = {name: limit or most for name, most in own.items()}
    assert holders.holder_indexes(children, limits) == tuple(granted)
    assert holders.end_of_holders(children, limits) == max((index + 1 for index in granted), default=0)
    for index in range(len(children)):
        assert bool(holders.waits_for(children, index, granted)) == (index not in granted)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
def test_contenders_from_before_a_change_hold_by_the_highest_limit(
    many: int, own: int, limit: int, before: int, older: int
) -> None:
    children = replace(queue([Kind.PERMIT] * many + [Kind.LOCK] * 2), limit=limit)
    data = Payload(guid="g", host="h", pid=1, thread="", what="", since="", template="", limit=own).encode()
    change = LimitRecord(by="", reason="", before=before).encode()
    limits = {
        child.name: holders.permit_limit(children, data, change if index < older else None)
        for index, child in enumerate(children)
    }
    expected = [index for index in range(many) if index < (max(own, limit, before) if index < older else limit)]
    assert holders.holder_indexes(children, limits) == tuple(expected)


def test_a_queue_with_readers_or_writers_is_recognized() -> None:
    assert holders.kind_of_queue(queue([Kind.LOCK, Kind.LOCK])) == "lock"
    assert holders.kind_of_queue(queue([Kind.LOCK, Kind.READ])) == "read-write"
    assert holders.kind_of_queue(queue([Kind.LOCK, Kind.PERMIT])) == "semaphore"
