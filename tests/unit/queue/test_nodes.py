"""The children of a lock's directory: their names, their payload, those of other clients, and release requests."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_zklock.core.protocol import contender_info
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Child, Kind, Mark, Payload, has_guid, new_guid, parse, prefix
from django_zklock.core.queue.release_request import release_request, requested, with_request
from django_zklock.exceptions import UnreadableQueue
from django_zklock.locks import trace

GUID = "2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111"
HEX = "2bd53a55ce0a4d7b9a4fa8e7f2e1d111"
PAYLOAD = Payload(
    guid=GUID,
    host="web-1",
    pid=42,
    thread="MainThread",
    what="shop.views.buy",
    since="2026-11-20T10:00:00.000000+00:00",
    template="inventory/{sku}",
    about={"task": "shop.tasks.restock", "id": HEX, "queue": "celery", "retries": "0"},
)
ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from("\ud800\x00é").map(lambda text: 9000 * text)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.builds(new_guid, st.sampled_from(Mark)), st.sampled_from(Kind), st.integers(-(2**31), 2**31 - 1))
def test_a_znode_name_is_read_as_it_was_written(guid, kind, sequence):
    name = prefix(guid, kind) + "%010d" % sequence  # noqa: UP031 - as the server writes it
    assert parse(name) == Child(name, kind, guid, sequence)


@pytest.mark.parametrize("kind", [Kind.LOCK, Kind.READ])
def test_a_contender_of_ours_in_kazoos_grammar_has_its_guid_without_dashes(kind):
    """The registry knows it by that, and so does code that compares it with its payload's."""
    guid = new_guid(Mark.OWN).replace("-", "")
    name = f"{prefix(guid, kind, 'kazoo')}0000000007"
    assert parse(name) == Child(name, kind, guid, 7)
    assert has_guid(name, guid)


@pytest.mark.parametrize("name", ["a", "", "locks", "leases", "123456789", f"_c_{GUID}-lock-", "123456789%30", "é"])
def test_a_name_without_a_number_is_no_contender(name):
    assert parse(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "0000000001",
        "lock-0000000001",
        f"_c_{GUID}-lock-000000005",
        f"_c_{GUID}-lock-00000000055",
        f"_c_{GUID}-permit-0000000001",
        f"_c_{GUID}-lock---000000005",
        f"_c_{GUID[:-1]}-lock-0000000001",
        f"xxx_c_{GUID}-lock-0000000001",
        f"{HEX}__semaphore__0000000001",
        f"{HEX[:-1]}__lock__0000000001",
        "n_-000000001",
        "é\u202e\ud800" * 50 + "0000000001",
    ],
)
def test_an_unknown_name_with_a_number_is_refused(name):
    """A contender must not be passed over because its client is unknown; the message names it in ASCII."""
    with pytest.raises(UnreadableQueue) as caught:
        parse(name)
    assert str(caught.value).isascii()
    assert (ascii(name) if name.isascii() else ascii(name)[:20]) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("latch", r"-latch-0000000001.* of a LeaderLatch .* LeaderSelector"),
        ("lease", "Semaphores cannot share a queue with other clients"),
    ],
)
def test_a_recipe_of_curators_that_cannot_share_a_queue_is_refused_by_its_name(kind, said):
    """A latch passes over other recipes, and our permits cannot be counted with those of others in one order."""
    with pytest.raises(UnreadableQueue, match=said):
        parse(f"_c_{GUID}-{kind}-0000000001")


@given(st.text(max_size=20).filter(str.isprintable), st.integers(0, 2**31 - 1))
def test_texts_in_any_script_are_read_as_they_were_written(text, pid):
    payload = replace(PAYLOAD, host=text, thread=text, what=text, template=text, pid=pid)
    assert Payload.decode(payload.encode()) == payload


@given(st.tuples(*[ANY_TEXT] * 6), st.integers(0, 10))
@example(("\x00" * 5000,) * 6, 9)
@example(("\U0001f512" * 5000,) * 6, 9)
@example(("\\" * 5000,) * 6, 9)
@example(("\ud800" * 5000,) * 6, 5000)  # Python converts no number of so many digits to a text
def test_a_payload_never_exceeds_its_limit(texts, power):
    fields = dict(zip(("guid", "host", "thread", "what", "since", "template"), texts, strict=True))
    fields |= dict.fromkeys(("max_hold", "warn_after", "session_timeout", "waited"), 2**31 - 1)
    about = {"task": fields["what"], "request": fields["template"], fields["host"]: fields["thread"]}
    payload = Payload(**fields, pid=10**power, about=about)
    data = payload.encode()
    assert len(data) <= MAX_PAYLOAD
    read = Payload.read(data)
    assert Payload.read(read.encode()) == read, "nothing is cut or escaped twice"
    assert all(map(str.isprintable, map(str, asdict(read).values())))


def test_a_long_field_is_cut_with_an_ellipsis_and_the_others_are_kept():
    """The guid finds the contender, so a long name of a view must not cost it. Fields that just fit are whole."""
    full = replace(PAYLOAD, what="x" * 200, template="y" * 200, about={"id": "z" * 255})
    assert Payload.decode(full.encode()) == full
    payload = Payload.decode(replace(full, what="x" * 5000).encode())
    assert payload == replace(full, what="x" * 199 + "…")


def test_long_fields_do_not_cut_the_trace_of_a_task():
    """So is its id. `ADMIN_LINKS` lead to both; a part says nothing."""
    header = f"00-{'a' * 32}-{'b' * 16}-01"
    long = dict.fromkeys(("host", "thread", "what", "template"), "x" * 5000)
    about = {"task": "x" * 5000, "id": HEX, "queue": "x" * 5000, "retries": "3", **trace.of_header(header)}
    data = replace(PAYLOAD, **long, about=about).encode()
    assert len(data) <= MAX_PAYLOAD
    payload = Payload.decode(data)
    assert trace.header_of(payload.about) == header
    assert payload.about["id"] == HEX


@pytest.mark.parametrize(
    "header", ["", None, 7, "01-aa-bb-cc", f"00-{'A' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'b' * 16}-01 "]
)
def test_an_invalid_trace_header_adds_nothing_to_the_payload(header):
    assert trace.of_header(header) == {}


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from([*asdict(PAYLOAD), "new"]), JSON))
def test_a_payload_with_odd_fields_is_read_as_far_as_it_goes(fields):
    payload = Payload.decode(json.dumps({**fields, "guid": GUID}).encode())
    assert payload.guid == GUID
    for name, value in asdict(payload).items():
        assert type(value) is type(asdict(PAYLOAD)[name])
        str(value).encode()
    assert all(isinstance(item, str) for pair in payload.about.items() for item in pair)


def test_the_version_of_a_later_release_survives_a_rewrite():
    data = PAYLOAD.encode().replace(b'{"version":1,', b'{"version":2,')
    assert replace(Payload.decode(data), limit=3).encode().startswith(b'{"version":2,')


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=20), JSON, max_size=3), st.integers(0, 3000))
@example({"new": "\ud800"}, 0)
@example({"new": 0}, 3000)
@example({}, 1024 - len('{"new large":""}'))
def test_fields_of_later_releases_survive_or_are_dropped_as_a_whole(fields, size):
    unknown = {f"new {name}": value for name, value in {**fields, "large": "x" * size}.items()}
    data = json.dumps({**json.loads(PAYLOAD.encode()), **unknown}).encode()
    for what in ("x" * 5000, "buy", ""):
        payload = Payload.decode(data)
        data = replace(payload, what=what).encode()
        assert payload.guid == GUID
        assert len(data) <= max(MAX_PAYLOAD, len(replace(payload, unknown={}).encode()) + 1024)
        kept = {name: value for name, value in json.loads(data).items() if name.startswith("new ")}
        assert repr(kept) in (repr(unknown), "{}")
        assert bool(kept) is bool(payload.unknown)
        assert kept or fields or size > 1008


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"192.168.0.7",
        b"web-1 42",
        b"null",
        b"[]",
        b"{}",
        b'{"guid": 1}',
        b'{"guid": ""}',
        b" " * 70_000 + b'{"guid": "a"}',
    ],
)
def test_the_payload_of_another_client_is_none(data):
    assert Payload.decode(data) is None


@pytest.mark.parametrize(
    ("data", "host_and_what"),
    [
        (b"", ("", "")),
        (b"__REVOKE__", ("", "")),
        (b"10.0.3.9", ("10.0.3.9", "")),
        (b"fe80::1", ("fe80::1", "")),
        (b"fe80::1%\x1b[2J", ("fe80::1%\\x1b[2J", "")),
        (b"web-7", ("", "web-7")),
        (b"web\n7", ("", "web\\n7")),
        ("é".encode("latin-1"), ("", "\ufffd")),
        (b"x" * 200_000, ("", "x" * 119 + "…")),
    ],
)
def test_the_payload_of_another_client_is_shown(data, host_and_what):
    said = contender_info.foreign_payload(data)
    assert (said.host, said.what) == host_and_what


@given(st.binary() | st.ip_addresses().map(str).map(str.encode))
def test_any_bytes_are_shown_in_one_line(data):
    said = contender_info.foreign_payload(data)
    assert said.host.isprintable()
    assert said.what.isprintable()
    assert not (said.host and said.what)


LONG_TEXT = st.text(max_size=600)
LOCK = "\U0001f512" * 600


def holder(**more):
    known = {"host": "web-1", "pid": 7, "thread": "MainThread", "what": "GET /buy", "since": "", "template": "a/{b}"}
    return Payload(**{"guid": "x" * 36, **known, **more})


def test_a_release_request_keeps_the_payload_of_the_holder():
    request = release_request(by="é" * 40, reason="deploy 42", at="2026-11-20T12:00:00.000+00:00")
    before = holder(about={"task": "buy"}, limit=3)
    data = with_request(before.encode(), request)
    assert requested(data) == request
    assert Payload.decode(data) == replace(
        before, release_request={"by": "é" * 40, "reason": "deploy 42", "at": request.at}
    )
    assert requested(before.encode()) is None
    later = release_request(by="ben", reason="two")
    assert requested(with_request(data, later)) == later
    assert requested(replace(before, release_request={"by": "ben", "reason": "two"}).encode()) == later


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(LONG_TEXT, LONG_TEXT, LONG_TEXT, st.dictionaries(LONG_TEXT, LONG_TEXT, max_size=12), LONG_TEXT, LONG_TEXT)
@example("\x01" * 600, "\ud800" * 600, '"' * 600, {LOCK: LOCK}, LOCK, LOCK)
def test_a_release_request_is_short_and_printable(host, what, template, about, by, reason):
    data = holder(host=host, what=what, template=template, about=about).encode()
    request = release_request(by=by, reason=reason, at="2026-11-20T12:00:00.000+00:00")
    asked = with_request(data, request)
    assert len(asked) <= MAX_PAYLOAD
    assert requested(asked) == request
    kept = Payload.decode(asked)
    assert kept.guid == "x" * 36
    assert (request.by + request.reason).isprintable()


@pytest.mark.parametrize("odd", [7, {"by": 1, "reason": "x"}, {"by": "x", "reason": None}, ["by"], None])
def test_a_malformed_release_request_is_ignored(odd):
    data = json.dumps({**json.loads(holder().encode()), "release_request": odd}).encode()
    assert requested(data) is None
