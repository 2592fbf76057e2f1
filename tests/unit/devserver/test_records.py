"""The dev server's records: what is written can be read, and nothing that is sent can do harm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing.server import records as r
from django_zklock.testing.server.records import Malformed, Reader, Writer

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.none() | st.text(st.characters(codec="utf-8"))
TEXTS = st.none() | st.lists(st.text(st.characters(codec="utf-8")))
BLOB = st.none() | st.binary(max_size=2000)
ACLS = st.none() | st.lists(st.builds(r.Acl, INT, TEXT.filter(lambda first: first is not None), st.just("anyone")))

RECORDS: list[st.SearchStrategy[Any]] = [
    st.builds(r.Stat, LONG, LONG, LONG, LONG, INT, INT, INT, LONG, INT, INT, LONG),
    st.builds(r.ConnectRequest, INT, LONG, INT, LONG, BLOB),
    st.builds(r.ConnectReply, INT, INT, LONG, BLOB),
    st.builds(r.CreateRequest, TEXT, BLOB, ACLS, INT),
    st.builds(r.CreateTtlRequest, TEXT, BLOB, ACLS, INT, LONG),
    st.builds(r.PathRequest, TEXT),
    st.builds(r.VersionRequest, TEXT, INT),
    st.builds(r.WatchRequest, TEXT, st.booleans()),
    st.builds(r.SetDataRequest, TEXT, BLOB, INT),
    st.builds(r.SetAclRequest, TEXT, ACLS, INT),
    st.builds(r.ModeRequest, TEXT, INT),
    st.builds(r.AuthRequest, INT, TEXT, BLOB),
    st.builds(r.SetWatchesRequest, LONG, TEXTS, TEXTS, TEXTS),
    st.builds(r.SetWatches2Request, LONG, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS),
    st.builds(r.MultiHeader, INT, st.booleans(), INT),
]
KINDS = [r.CreateRequest, r.CreateTtlRequest, r.SetAclRequest, r.SetWatches2Request, r.ConnectRequest, r.MultiHeader]


@given(st.one_of(RECORDS), st.binary(max_size=10))
def test_a_record_is_read_as_it_was_written(record: tuple[Any, ...], behind: bytes) -> None:
    """All fields come back, and the reader is behind the record, whatever follows."""
    writer = Writer()
    r.write(writer, record)
    reader = Reader(bytes(writer.data) + behind)
    assert r.read(type(record), reader) == record
    assert reader.left == len(behind)


@given(st.one_of(RECORDS), st.data())
def test_a_record_cut_short_is_malformed(record: tuple[Any, ...], data: st.DataObject) -> None:
    """A reader never makes up what is not there."""
    writer = Writer()
    r.write(writer, record)
    end = data.draw(st.integers(0, len(writer.data) - 1))
    with pytest.raises(Malformed):
        r.read(type(record), Reader(bytes(writer.data[:end])))


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_a_record_or_malformed(kind: type[tuple[Any, ...]], data: bytes) -> None:
    """No bytes raise anything but Malformed, or make lists longer than they are themselves."""
    try:
        record = r.read(kind, Reader(data))
    except Malformed:
        return
    assert all(len(value) <= len(data) for value in record if isinstance(value, list))


def test_fast_writers_write_the_same_bytes() -> None:
    """The shortcuts for speed write the same bytes as the record's fields."""
    stat = r.Stat(1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11)
    header = r.MultiHeader(14, True, -1)
    for record, short in ((stat, r.stat_bytes(stat)), (header, r.multi_header(*header))):
        writer = Writer()
        r.write(writer, record)
        assert bytes(writer.data) == short
    for text in ("", "/a", "/\u00e9\u20ac"):
        writer = Writer()
        writer.text(text)
        assert bytes(writer.data) == r.text_bytes(text)
