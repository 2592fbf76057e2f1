"""Which children of a directory are permits of another client's recipe, and who can tell whether it is that."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from django_zklock.queue import guids, nodes, recipes
from django_zklock.queue.nodes import Kind, Payload

BARE = "0" * 32
OURS = [f"{nodes.prefix(guids.new(guids.Mark.OWN), Kind.LEASE)}{number:010d}" for number in range(2)]
PLAIN = f"{nodes.prefix(guids.new(guids.Mark.OWN))}0000000000"
CURATORS = f"{nodes.prefix(str(uuid.UUID(int=4)), Kind.LEASE)}0000000007"


@pytest.mark.parametrize(
    ("data", "limit"), [(b"3", 3), (b"", None), (b"{}", None), (b"-1", None), (b"3.0", None), (b"9" * 10, None)]
)
def test_a_limit_is_a_decimal_number_and_nothing_else(data: bytes, limit: int | None) -> None:
    """What operators of ours write there is none."""
    assert recipes.posted_limit(data) == limit


def test_permits_are_told_from_nested_keys_and_signs() -> None:
    """A key of 32 hexadecimal digits cannot be."""
    assert recipes.permits([BARE, *OURS, "nested", "!limit:3:-1:"]) == [BARE, *OURS]


@pytest.mark.parametrize(
    ("names", "witness"),
    [
        ([], ""),
        ([BARE, "nested"], ""),
        ([CURATORS], ""),
        ([BARE, *OURS, CURATORS], OURS[1]),
        ([*OURS, PLAIN], PLAIN),
        (["f" * 22 + "-" * 10, "x-0000000001"], ""),
    ],
    ids=["nobody", "bare", "another's", "ours", "a lock", "strangers"],  # names of ours are other ones in each process
)
def test_the_newest_of_ours_tells_or_who_wants_no_permit(names: list[str], witness: str) -> None:
    """Names that nobody knows tell nothing."""
    assert recipes.witness(names) == witness


def test_a_witness_says_by_whose_recipe_it_came() -> None:
    """Nobody else says that."""
    payload = Payload(guid="g", host="h", pid=1, thread="t", what="", since="", template="a", limit=2)
    assert not recipes.testifies(payload.encode(), "kazoo")
    assert not recipes.testifies(b"10.0.0.1", "kazoo")
    assert recipes.testifies(replace(payload, layout="kazoo").encode(), "kazoo")
