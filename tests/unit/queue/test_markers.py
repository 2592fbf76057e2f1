"""Markers: what their names and their data say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue import markers, nodes, order
from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON
from django_zklock.core.queue.markers import LimitRecord


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_limit_record_is_read_back_and_prints(by: str, reason: str, value: int, before: int) -> None:
    name, record = markers.limit_marker(value), LimitRecord(by=by, reason=reason, before=before)
    marker = markers.set_limit(name, record.encode(), 1_000.0)
    assert marker is not None
    assert marker.limit == value
    assert (marker.by + marker.reason).isprintable()
    assert (len(marker.by), len(marker.reason)) <= (MAX_BY, MAX_REASON)
    assert marker.when is not None
    decoded = LimitRecord.decode(record.encode())
    assert (decoded.before, decoded.id) == (before, record.id)
    assert markers.limit_in(name) == value
    assert markers.is_limit_marker(name)
    assert nodes.parse(name) is None, "it is no contender"
    assert order.limit_marker_in([name, "x"]) == name


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b'{"by": 7, "before": -1}', b"[" * 100_000, json.dumps({"by": "x" * 5000}).encode()],
)
def test_junk_in_the_data_does_not_change_the_limit(data: bytes) -> None:
    marker = markers.set_limit("!limit:3:", data, 1e300)
    assert marker is not None
    assert (marker.limit, marker.by, marker.reason, marker.when) == (3, "", "", None)
    assert LimitRecord.decode(data).before == 0


@pytest.mark.parametrize("name", ["!limit:0:", "!limit:x:", "!limit:3", "!limit:3:-1:", "!reads:x:", "limit:3:"])
def test_other_names_set_no_limit(name: str) -> None:
    assert markers.set_limit(name, b"{}", 0.0) is None


def test_two_changes_have_two_records() -> None:
    assert LimitRecord(by="anna", reason="x").encode() != LimitRecord(by="anna", reason="x").encode()
