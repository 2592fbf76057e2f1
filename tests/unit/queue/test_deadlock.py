"""The contenders that a waiter waits for, as a search for deadlocks follows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue import markers
from django_zklock.core.queue.deadlock import WaitsFor, blockers
from django_zklock.core.queue.nodes import Kind, Mark, Payload, new_guid, prefix
from django_zklock.core.queue.order import Granted, ordered, rule_for

KINDS = {"L": Kind.LOCK, "R": Kind.READ, "W": Kind.WRITE, "P": Kind.PERMIT}


def queue_of(kinds: str) -> tuple[list[str], list[str]]:
    """Return the names and guids of a queue. A small "w" is a writer that was downgraded, so it has a marker."""
    guids = [new_guid(Mark.OWN) for _ in kinds]
    names = [
        f"{prefix(guid, KINDS[kind.upper()])}{index:010d}"
        for index, (kind, guid) in enumerate(zip(kinds, guids, strict=True))
    ]
    return names + [markers.reader_marker(guid) for kind, guid in zip(kinds, guids, strict=True) if kind == "w"], guids


@pytest.mark.parametrize(
    ("kinds", "waiter", "holders", "between"),
    [
        ("LL", 1, [0], None),
        ("LLL", 2, [0], None),
        ("WR", 1, [0], None),
        ("RRW", 2, [0, 1], None),
        ("RRWR", 3, [0, 1], 2),
        ("wRWR", 3, [0, 1], 2),
        ("WRWR", 3, [0], None),
        ("RL", 1, [0], None),
        ("LP", 1, [0], None),
        ("L", 0, None, None),
        ("RR", 1, None, None),
        ("wR", 1, None, None),
        ("PP", 1, None, None),
        ("PL", 1, None, None),
    ],
)
def test_a_waiter_waits_for_all_holders(
    kinds: str, waiter: int, holders: list[int] | None, between: int | None
) -> None:
    names, guids = queue_of(kinds)
    blocked = blockers(ordered(names), guids[waiter])
    if holders is None:
        assert blocked is None
        return
    assert blocked is not None
    waiters = [waiter] if between is None else [waiter, between]
    assert [[child.guid for child in children] for children in blocked] == [
        [guids[index] for index in indexes] for indexes in (holders, waiters)
    ]


def test_a_contender_that_is_not_in_the_queue_waits_for_none() -> None:
    for kinds in ("", "LL", "RW"):
        assert blockers(ordered(queue_of(kinds)[0]), new_guid(Mark.OWN)) is None


@given(st.text("LRWwP", min_size=1, max_size=6), st.data())
def test_a_waiter_is_not_granted_the_lock_while_a_holder_is_there(kinds: str, data: st.DataObject) -> None:
    names, guids = queue_of(kinds)
    waiter = data.draw(st.integers(0, len(kinds) - 1))
    queue = ordered(names)
    blocked = blockers(queue, guids[waiter])
    if blocked is None:
        return
    stays = {child.name for child in (*blocked.waiters, data.draw(st.sampled_from(blocked.holders)))}
    remaining = queue.without(data.draw(st.sets(st.sampled_from(names))) - stays)
    rule = rule_for(blocked.waiters[0].kind, data.draw(st.integers(1, 3)))
    assert not isinstance(rule(remaining, blocked.waiters[0].name), Granted)


def test_a_wait_in_a_payload_is_read_as_it_was_written() -> None:
    wait = WaitsFor("stock/7", new_guid(Mark.OWN), 2**40)
    payload = Payload(guid="g", host="", pid=1, thread="", what="", since="", template="", waits_for=wait.fields())
    assert WaitsFor.decode(payload.encode()) == wait
    assert WaitsFor.decode(b"10.0.0.1") is None


def test_a_wait_for_a_key_that_is_too_long_is_left_out() -> None:
    """A part of a key would be the key of another lock."""
    for length in (500, 1000):
        wait = WaitsFor("é" * length, new_guid(Mark.OWN), 7)
        texts = dict.fromkeys(("host", "thread", "what", "since", "template"), "x" * 500)
        payload = Payload(guid="g", pid=1, **texts, waits_for=wait.fields())  # type: ignore[arg-type]
        assert len(payload.encode()) <= 1024
        assert WaitsFor.decode(payload.encode()) is None
