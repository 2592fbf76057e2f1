"""The node that sets a limit for all processes: what its name and its data say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.queue import limits, nodes, order, signs
from django_zklock.queue.limits import Record
from django_zklock.queue.signs import Limit


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 10_000), st.integers(-1, 2**31 - 1))
def test_what_is_written_is_read_and_prints(by: str, reason: str, value: int, through: int) -> None:
    """Whatever it holds: cut, in one line, with nothing that a terminal would obey."""
    name = Limit(value, through).name
    found = limits.set_limit(name, Record(by, reason).encode(), 1_000.0)
    assert found is not None
    assert found.limit == value
    assert (found.by + found.reason).isprintable()
    assert (len(found.by), len(found.reason)) <= (limits.MAX_BY, limits.MAX_REASON)
    assert found.when is not None
    assert signs.limit(name) == Limit(value, through)
    assert limits.is_limit(name)
    assert nodes.parse(name) is None, "it contends for nothing"
    assert order.limit_of([name, "x"]) == Limit(value, through)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b'{"by": 7}', b"[" * 100_000, json.dumps({"by": "x" * 5000}).encode()]
)
def test_junk_in_its_data_takes_nothing_from_the_limit(data: bytes) -> None:
    """It is the name that counts; nobody is said to have set it then."""
    found = limits.set_limit("!limit:3:-1:", data, 1e300)
    assert found is not None
    assert (found.limit, found.by, found.reason, found.when) == (3, "", "", None)


@pytest.mark.parametrize("name", ["!limit:0:-1:", "!limit:x:-1:", "!limit:3:", "!reads:x:", "limit:3:-1:"])
def test_other_names_set_no_limit(name: str) -> None:
    assert limits.set_limit(name, b"{}", 0.0) is None


@given(st.integers(0, 2**31 - 1))
def test_a_sequential_node_has_the_name_that_zookeeper_gives_it(number: int) -> None:
    """Ten digits; the limit is changed on the strength of it."""
    assert nodes.numbered("/k/!count:", number) == f"/k/!count:{str(number).zfill(10)}"


def test_two_changes_have_two_records() -> None:
    """By which each finds its own again, though all else be equal."""
    assert Record("anna", "x").encode() != Record("anna", "x").encode()
