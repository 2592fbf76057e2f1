"""The order of the queue."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue.nodes import Kind, Mark, new_guid, prefix
from django_zklock.core.queue.order import LAST_SEQUENCE, ordered
from django_zklock.exceptions import UnreadableQueue

PREFIXES = st.builds(lambda kind: prefix(new_guid(Mark.OWN), kind), st.sampled_from(Kind)) | st.builds(
    lambda guid, word: f"{guid.hex}__{word}__", st.uuids(), st.sampled_from(["lock", "rlock"])
)
QUEUES = st.dictionaries(st.integers(0, LAST_SEQUENCE), PREFIXES, max_size=12)


def name(sequence: int) -> str:
    return prefix(str(uuid.uuid4())) + "%010d" % sequence  # noqa: UP031 - as the server writes it


@given(QUEUES, st.randoms(use_true_random=False))
def test_contenders_are_in_the_order_of_their_numbers(queue: dict[int, str], random: random.Random) -> None:
    names = [f"{start}{sequence:010d}" for sequence, start in queue.items()]
    random.shuffle(names)
    assert [child.sequence for child in ordered(names)] == sorted(queue)


def test_directories_of_nested_keys_are_passed_over() -> None:
    """The directory `a/b` does not wait for the lock `a`."""
    mine = name(3)
    assert [child.name for child in ordered(["nested", mine, "123456789%30"])] == [mine]
    assert not ordered(["nested"])
    assert not ordered([])


def test_a_limit_for_all_processes_is_read_with_the_queue() -> None:
    mine = name(3)
    assert ordered([mine, "!limit:5:"]).limit == 5
    two = ordered(["!limit:5:", mine, "!limit:2:", "!limit:0:"])
    assert (two.limit, two.limit_marker) == (2, "!limit:2:")
    assert ordered([mine, "!limit:0:", "!limit:five:", "!other"]).limit is None


def test_the_marker_of_a_cleared_limit_is_stale_once_one_contender_is_left() -> None:
    assert ordered([name(3), "!limit:0:"]).stale_marker == "!limit:0:"
    assert ordered([name(3), name(4), "!limit:0:"]).stale_marker == ""
    assert ordered([name(3), "!limit:2:"]).stale_marker == ""
    assert ordered([name(3)]).stale_marker == ""


CURATORS: dict[Kind, str] = {
    kind: prefix(str(uuid.UUID(int=number, version=4)), kind)
    for number, kind in enumerate([Kind.LOCK, Kind.READ, Kind.WRITE])
}


@pytest.mark.parametrize("ours", Kind)
@pytest.mark.parametrize("theirs", CURATORS)
def test_a_contender_of_curators_that_would_pass_ours_closes_the_lock(ours: Kind, theirs: Kind) -> None:
    """Each recipe of Curator's sees its own nodes only; ours see all, so ours may be mixed."""
    sides = {Kind.READ, Kind.WRITE}
    names = [f"{prefix(new_guid(Mark.OWN), ours)}0000000001", f"{CURATORS[theirs]}0000000002"]
    if ours is theirs or {ours, theirs} == sides:
        assert len(ordered(names)) == 2
    else:
        with pytest.raises(UnreadableQueue, match="Curator does not see it"):
            ordered(names)
    assert len(ordered([names[0], f"{prefix(new_guid(Mark.OWN), theirs)}0000000002"])) == 2


@pytest.mark.parametrize("theirs", CURATORS)
@pytest.mark.parametrize("kazoos", ["0" * 32 + "__lock__", "0c1a911f60108291a573b6c7724b3a14__rlock__"])
def test_a_contender_of_curator_next_to_kazoos_grammar_closes_the_lock(kazoos: str, theirs: Kind) -> None:
    """Be it kazoo's or ours in its grammar, no recipe of Curator's sees it; our own grammar goes with kazoo's."""
    with pytest.raises(UnreadableQueue, match="in kazoo's grammar"):
        ordered([f"{kazoos}0000000001", f"{CURATORS[theirs]}0000000002"])
    assert len(ordered([f"{kazoos}0000000001", f"{prefix(new_guid(Mark.OWN), theirs)}0000000002"])) == 2


@pytest.mark.parametrize("sequence", [-1, -5, -(2**31), LAST_SEQUENCE + 1, 2**31 - 1])
def test_an_exhausted_counter_closes_the_lock(sequence: int) -> None:
    with pytest.raises(UnreadableQueue, match="delete the directory"):
        ordered([name(1), name(sequence)])


def test_the_last_number_is_still_taken() -> None:
    assert ordered([name(LAST_SEQUENCE)])[0].sequence == LAST_SEQUENCE


def test_a_repeated_number_closes_the_lock() -> None:
    """Two contenders with one number would both be first."""
    first, other = name(4), name(4)
    with pytest.raises(UnreadableQueue, match="same sequence number"):
        ordered([first, name(2), other])


def test_an_unknown_contender_closes_the_lock() -> None:
    with pytest.raises(UnreadableQueue, match="lock-0000000009"):
        ordered([name(1), "lock-0000000009"])
