"""Holds of operators, which nothing else passes for, and the markers of limits."""

import json
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_zklock.core.queue import markers, nodes, operator_hold, order
from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON
from django_zklock.core.queue.markers import LimitRecord
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Payload
from django_zklock.core.queue.operator_hold import LONGEST

TEXT = st.text(max_size=600)


def payload(**more):
    values = {
        "guid": nodes.new_guid(nodes.Mark.OPERATOR),
        "host": "h",
        "pid": 1,
        "thread": "t",
        "what": "",
        "template": "",
    }
    return Payload(**{"since": "", **values, **more})


def made(**more):
    """Return the data of a hold by an operator, and the path of its node."""
    guid = nodes.new_guid(nodes.Mark.OPERATOR)
    texts = {name: more.pop(name) for name in ("host", "thread", "template") if name in more}
    of_holder = payload(guid=guid, limit=10_000, since="s" * 30, **texts)
    return operator_hold.hold_data(of_holder, **more), node(guid)


def node(guid):
    return f"/zklock/k/{nodes.prefix(guid)}0000000007"


def read(data, path, **more):
    stat = {"token": 5, "owner": 0, "ctime": 100.0, **more}
    return operator_hold.operator_hold(Payload.decode(data), key="k", path=path, **stat)


@given(by=TEXT, reason=TEXT, host=TEXT, thread=TEXT, seconds=st.floats(0.001, LONGEST))
@example(by="\U0001f512" * 40, reason="\U0001f512" * 200, host="\x01" * 300, thread="\x01" * 300, seconds=LONGEST)
@example(by='"' * 40, reason="\\" * 200, host='"' * 300, thread='"' * 300, seconds=1 / 3)
def test_an_operator_hold_is_read_as_it_was_written(by, reason, host, thread, seconds):
    """No client could end a hold without an end; a text with several lines becomes one line."""
    data, path = made(host=host, thread=thread, template=host, by=by or "x", reason=reason, seconds=seconds)
    assert len(data) <= MAX_PAYLOAD
    hold = read(data, path)
    assert abs(hold.seconds - seconds) < 0.001
    assert str(hold).isprintable()
    assert len(hold.by) <= MAX_BY
    assert len(hold.reason) <= MAX_REASON
    assert (hold.until - hold.since).total_seconds() == pytest.approx(hold.seconds, abs=1e-5)


@given(what=TEXT, host=TEXT)
@example(what="", host="h")
def test_a_minimum_hold_is_named_after_its_work(what, host):
    data, path = made(host=host, by=what, reason="held", seconds=60, minimum=True)
    assert len(data) <= MAX_PAYLOAD
    hold = read(data, path)
    assert (hold.minimum, hold.seconds) == (True, 60)
    assert str(hold).startswith(f"{hold.by} until")


def test_short_texts_of_an_operator_hold_are_kept():
    data, path = made(by="anna", reason="deploy 42", seconds=60)
    hold = read(data, path)
    assert str(hold) == "operator anna until 1970-01-01 00:02:40 UTC: deploy 42"
    assert (hold.token, hold.key, hold.path) == (5, "k", path)


@given(st.uuids(version=4))
def test_znodes_of_other_clients_are_no_operator_holds(guid):
    """Theirs are random UUIDs; so nobody has to read a node to see that it is no hold."""
    assert not operator_hold.is_operator(f"{nodes.prefix(str(guid))}0000000001")
    assert not operator_hold.is_operator(f"{guid.hex}__lock__0000000001")


def test_each_operator_hold_has_the_mark_and_its_own_guid():
    guids = {nodes.new_guid(nodes.Mark.OPERATOR) for _ in range(1000)}
    assert len(guids) == 1000
    assert all(operator_hold.is_operator(f"{nodes.prefix(guid)}0000000001") for guid in guids)
    assert all(str(uuid.UUID(guid)) == guid and uuid.UUID(guid).version == 8 for guid in guids)
    assert not operator_hold.is_operator("inventory")
    assert not operator_hold.is_operator("strange-0000000001")


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"operator": "", "seconds": "1"},
        {"operator": "a"},
        {"operator": "a", "seconds": "nan"},
        {"operator": "a", "seconds": "-1"},
        {"operator": "a", "seconds": "1e300"},
        {"operator": "a", "seconds": "soon"},
    ],
)
def test_a_payload_without_an_end_is_no_operator_hold(about):
    guid = nodes.new_guid(nodes.Mark.OPERATOR)
    assert read(payload(guid=guid, about=about).encode(), node(guid)) is None


def test_neither_an_ephemeral_node_nor_one_of_another_name_is_a_hold():
    """Everybody who runs a task could write such a payload; the end of its session ends it, and nothing else."""
    data, path = made(by="a", reason="r", seconds=1)
    assert read(data, path) is not None
    assert read(data, path, owner=1) is None
    assert read(data, node(str(uuid.uuid4()))) is None
    assert read(data, path, ctime=1e300) is None


def queue(*marks):
    """A queue of contenders with these marks (None: a client of Curator), and their names."""
    guids = [str(uuid.uuid4()) if mark is None else nodes.new_guid(mark) for mark in marks]
    names = [f"{nodes.prefix(guid)}{number:010d}" for number, guid in enumerate(guids)]
    return names, order.ordered(names)


def test_a_waiter_ends_the_holds_that_no_other_waiter_of_ours_ends():
    own, hold = nodes.Mark.OWN, nodes.Mark.OPERATOR
    names, children = queue(hold, None, own, hold, None, hold, own)
    me = names[6]
    assert operator_hold.holds_ahead(children, me) == (names[0], names[3], names[5])
    assert set(operator_hold.holds_to_end(children, me, ())) == {names[3], names[5]}
    assert set(operator_hold.holds_to_end(children, me, (names[0],))) == {names[0], names[3], names[5]}
    assert operator_hold.holds_to_end(children, names[0], ()) == ()


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_limit_record_is_read_back_and_prints(by, reason, value, before):
    record = LimitRecord(by=by, reason=reason, before=before)
    marker = markers.set_limit(markers.limit_marker(value), record.encode(), 1_000.0)
    assert marker.limit == value
    assert marker.when is not None
    assert (marker.by + marker.reason).isprintable()
    assert (len(marker.by), len(marker.reason)) <= (MAX_BY, MAX_REASON)
    assert record.encode() != LimitRecord(by=by, reason=reason, before=before).encode(), "each has an id"
    decoded = LimitRecord.read(record.encode())
    assert (decoded.before, decoded.id) == (before, record.id)


@given(st.integers(1, 10_000))
def test_the_name_of_a_limit_marker_has_the_limit(value):
    name = markers.limit_marker(value)
    assert markers.limit_in(name) == value
    assert markers.is_limit_marker(name)
    assert nodes.parse(name) is None, "it is no contender"
    assert order.limit_marker_in([name, "x"]) == name


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b'{"by": 7, "before": -1}', b"[" * 100_000, json.dumps({"by": "x" * 70_000}).encode()],
)
def test_junk_in_the_data_does_not_change_the_limit(data):
    marker = markers.set_limit("!limit:3:", data, 1e300)
    assert (marker.limit, marker.by, marker.reason, marker.when) == (3, "", "", None)
    assert LimitRecord.read(data).before == 0


@pytest.mark.parametrize("name", ["!limit:0:", "!limit:x:", "!limit:3", "!limit:3:-1:", "limit:3:"])
def test_other_names_set_no_limit(name):
    assert markers.set_limit(name, b"{}", 0.0) is None
