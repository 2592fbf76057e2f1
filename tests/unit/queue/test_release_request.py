"""Release requests in the data of a znode."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_zklock.core.queue.nodes import MAX_PAYLOAD, Payload
from django_zklock.core.queue.release_request import (
    BY_CURATOR,
    CURATOR,
    release_request,
    requested,
    with_request,
)

TEXT = st.text(max_size=600)
LOCK = "\U0001f512" * 600


def payload(**more: Any) -> Payload:
    known = {"host": "web-1", "pid": 7, "thread": "MainThread", "what": "GET /buy", "since": "", "template": "a/{b}"}
    return Payload(**{"guid": "x" * 36, **known, **more})


def test_a_release_request_keeps_the_payload_of_the_holder() -> None:
    request = release_request(by="anna", reason="deploy 42", at="2026-11-20T12:00:00.000+00:00")
    before = payload(about={"task": "buy"}, limit=3)
    data = with_request(before.encode(), request)
    assert requested(data) == request
    assert Payload.decode(data) == replace(
        before, release_request={"by": "anna", "reason": "deploy 42", "at": request.at}
    )
    assert requested(before.encode()) is None


def test_a_later_release_request_replaces_an_earlier_one() -> None:
    data = with_request(payload().encode(), release_request(by="anna", reason="one"))
    data = with_request(data, release_request(by="ben", reason="two"))
    assert requested(data) == release_request(by="ben", reason="two")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=12), TEXT, TEXT)
@example("\x01" * 600, "\ud800" * 600, '"' * 600, {LOCK: LOCK}, LOCK, LOCK)
def test_a_release_request_is_short_and_printable(
    host: str, what: str, template: str, about: dict[str, str], by: str, reason: str
) -> None:
    data = payload(host=host, what=what, template=template, about=about).encode()
    request = release_request(by=by, reason=reason, at="2026-11-20T12:00:00.000+00:00")
    asked = with_request(data, request)
    assert len(asked) <= MAX_PAYLOAD
    assert requested(asked) == request
    kept = Payload.decode(asked)
    assert kept is not None
    assert kept.guid == "x" * 36
    assert (request.by + request.reason).isprintable()


@pytest.mark.parametrize("odd", [7, {"by": 1, "reason": "x"}, {"by": "x", "reason": None}, ["by"], None])
def test_a_malformed_release_request_is_ignored(odd: object) -> None:
    data = json.dumps({**json.loads(payload().encode()), "release_request": odd}).encode()
    assert requested(data) is None


def test_release_requests_of_curator_are_written_and_read() -> None:
    """It writes an address into its node, and knows no other request than its own."""
    assert with_request(b"127.0.0.1", release_request(by="anna", reason="deploy")) == CURATOR
    request = requested(CURATOR)
    assert request is not None
    assert (request.by, request.reason) == (BY_CURATOR, "")
