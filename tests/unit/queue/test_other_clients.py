"""What another client's node says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.queue import clients
from django_zklock.queue.clients import Said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", Said()),
        (b"__REVOKE__", Said()),
        (b"10.0.3.9", Said(host="10.0.3.9")),
        (b"fe80::1", Said(host="fe80::1")),
        (b"fe80::1%\x1b[2J", Said(host="fe80::1%\\x1b[2J")),
        (b"web-7", Said(what="web-7")),
        (b"web\n7", Said(what="web\\n7")),
        ("é".encode("latin-1"), Said(what="\ufffd")),
        (b"x" * 200_000, Said(what="x" * 119 + "…")),
    ],
)
def test_what_another_client_wrote_is_shown(data: bytes, said: Said) -> None:
    """Curator writes an address, a program any text. A release request replaces it."""
    assert clients.said(data) == said


@given(st.binary() | st.ip_addresses().map(str).map(str.encode))
def test_any_bytes_are_shown_in_one_line(data: bytes) -> None:
    """Whoever can write to the node can write anything."""
    said = clients.said(data)
    assert said.host.isprintable()
    assert said.what.isprintable()
    assert not (said.host and said.what)
