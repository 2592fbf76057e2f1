"""Every decoder reads anything from outside: it returns what it has read, or says in its own way that it cannot."""

import base64
import importlib
import inspect
import json
import os
import pkgutil
import random
from functools import partial

import pytest

import django_zklock
from django_zklock.contrib.leases import coordinator
from django_zklock.contrib.tokens import signing
from django_zklock.contrib.tokens.keys import Keys
from django_zklock.core.protocol.operator_holds import read_hold
from django_zklock.core.queue import markers, nodes, release_request
from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.escaping import key_of
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.core.queue.untrusted import LARGEST, LATEST, digits, integer, json_object, moment, number, text
from django_zklock.core.zk.gateway import Node
from django_zklock.dashboard.acts import Target
from django_zklock.exceptions import InvalidToken, UnreadableQueue
from django_zklock.inspection.ensemble import _read
from django_zklock.report import formatting

ROUNDS = int(os.environ.get("ZKLOCK_FUZZ_ROUNDS", "300"))
"""Inputs of each decoder."""

KEYS = Keys(["k" * 40])
GUID = "0be73a55-ce0a-8d7b-9a4f-a8e7f2e1d111"
HOLD = nodes.prefix(GUID) + "0000000007"
ODD = [
    10**400,
    -(10**400),
    2**80,
    -1,
    0,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    True,
    False,
    None,
    "",
    "9" * 4000,
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-11-01T12:00:00+00:00",
    "x" * 5000,
    "\ud800",
    "\x1b[31m\n\u202e\x00",
    "../..",
    [],
    [[]],
    {},
    {"a": {}},
    "queued",
    "1",
    "lock-",
    "lease-",
    GUID,
    1.5,
]
BYTES = [
    b"",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"a":1,"a":2}',
    b"x" * 2**20,
    b"__REVOKE__",
    b'{"guid":"a","pid":' + b"9" * 60_000 + b"}",
    b'{"guid":"a","pid":NaN}',
    b'{"guid":' * 5000,
]


def node(data):
    return Node(path=f"/b/k/{HOLD}", data=data, ctime=float(len(data)) ** 5, czxid=7, owner=0)


def base64_of(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


#: What a decoder reads, the errors by which it says that it cannot, and the fields of a right input.
TEXTS = {"by": "anna", "reason": "slow", "id": GUID, "title": "down", "ends": 2e9, "before": 1}
PAYLOAD = {"guid": GUID, "pid": 4, "about": {"operator": "a", "seconds": "5"}, "release_request": TEXTS}
SIGNED = {
    "v": 1,
    "key": "k",
    "token": "7",
    "holder": {"host": "h", "pid": 1, "guid": GUID},
    "issued": 1,
    "lease_until": 2,
}
DECODERS = {
    "Payload": (nodes.Payload.decode, (), PAYLOAD),
    "WaitsFor": (WaitsFor.decode, (), PAYLOAD),
    "LimitRecord": (markers.LimitRecord.read, (), TEXTS),
    "unseal": (
        lambda data: signing.unseal(KEYS.sign(base64_of(data), salt=signing.SALT), KEYS),
        (InvalidToken,),
        SIGNED,
    ),
    "read_hold": (lambda data: read_hold("k", node(data)), (), PAYLOAD),
    "requested": (release_request.requested, (), PAYLOAD),
    "with_request": (
        lambda data: release_request.with_request(data, release_request.release_request(by="a", reason="b")),
        (),
        PAYLOAD,
    ),
    "own_limit": (nodes.own_limit, (), PAYLOAD),
    "set_limit": (lambda data: markers.set_limit("!limit:3:0000000001", data, 1e300), (), TEXTS),
    "request_text": (
        lambda data: formatting.request_text(release_request.release_request(by="a", reason="b", at=as_text(data))),
        (),
        {},
    ),
    "_address": (lambda data: coordinator._address(as_text(data)), (), {}),
    "parse": (lambda data: nodes.parse(as_text(data)), (UnreadableQueue,), {}),
    "is_operator": (lambda data: is_operator(as_text(data)), (), {}),
    "limit_in": (lambda data: markers.limit_in(as_text(data)), (), {}),
    "key_of": (lambda data: key_of("/b", f"/b/x{as_text(data)}"), (), {}),
    "Target": (lambda data: Target.parse(as_text(data)), (), {}),
    "_read": (lambda data: _read(f"Mode: {as_text(data)}\nZxid: {as_text(data)}"), (), {}),
}


def as_text(data):
    return data.decode(errors="surrogateescape")


def decoders_of_package():
    names = [module.name for module in pkgutil.walk_packages(django_zklock.__path__, "django_zklock.")]
    # Commands and migrations have none, and the modules of an app that is not installed cannot be imported.
    passed = (".migrations", ".models", "otel", "v1", "testing", "management")
    modules = [importlib.import_module(name) for name in names if not any(part in name for part in passed)]
    members = [member for module in modules for member in vars(module).values() if inspect.isclass(member)]
    return {cls.__name__ for cls in members if cls.__module__.startswith("django_zklock") and "decode" in vars(cls)}


def inputs(fields, rng):
    """Yield what no program of ours writes: odd fields of a right input, lost ones, cut and changed bytes, or noise."""
    yield from BYTES
    for name in fields:
        yield from (json.dumps({**fields, name: value}).encode() for value in ODD)
    while True:
        changed = {**fields, **{name: rng.choice(ODD) for name in fields if rng.random() < 0.3}}
        data = bytearray(json.dumps({n: v for n, v in changed.items() if rng.random() < 0.95}).encode())
        if rng.random() < 0.5:
            data[rng.randrange(len(data)) :] = rng.randbytes(rng.randrange(9))
        yield bytes(data)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_only_that_it_cannot_read(name):
    decode, refusals, fields = DECODERS[name]
    source = inputs(fields, random.Random(name))
    for _ in range(max(ROUNDS, len(BYTES) + len(fields) * len(ODD))):
        data = next(source)
        try:
            repr(decode(data))  # as a page or a log line shows it
        except refusals:
            continue
        except Exception as error:
            pytest.fail(f"{name} raises {error!r} for {data[:300]!r}")


def test_each_decoder_is_tried():
    """A new class with a method `decode` needs a line in `DECODERS`."""
    assert decoders_of_package() - DECODERS.keys() == set()


@pytest.mark.parametrize("value", [10**400, 1e308, float("inf"), float("nan"), True, "5", None, -(10**400), LATEST * 2])
def test_a_number_is_finite_and_bounded(value):
    for read in (partial(number, least=0, most=LATEST), partial(integer, most=2**31), moment, digits):
        if read is not digits or value != "5":
            with pytest.raises(ValueError, match="not a"):
                read(value)
    assert [digits(text, default=7) for text in ("9" * 5000, "٣", str(LARGEST))] == [7, 7, LARGEST]


@pytest.mark.parametrize("value", ["\ud800", "x" * 11, "", 5, None, b"x"])
def test_a_text_is_bounded_and_encodable(value):
    with pytest.raises(ValueError, match="not a text"):
        text(value, 10, least=1)
    assert text(value, 10, least=1, default="?") == "?"
    assert json_object(b'{"a":1}', 7) == {"a": 1} != json_object(b'{"a":1}', 6)
