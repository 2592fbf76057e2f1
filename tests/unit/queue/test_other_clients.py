"""The data of another client's znode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.protocol import contender_info


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
def test_the_payload_of_another_client_is_shown(data: bytes, host_and_what: tuple[str, str]) -> None:
    said = contender_info.foreign_payload(data)
    assert (said.host, said.what) == host_and_what


@given(st.binary() | st.ip_addresses().map(str).map(str.encode))
def test_any_bytes_are_shown_in_one_line(data: bytes) -> None:
    """Everybody who can write to the node can write anything."""
    said = contender_info.foreign_payload(data)
    assert said.host.isprintable()
    assert said.what.isprintable()
    assert not (said.host and said.what)
