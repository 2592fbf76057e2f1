"""Texts of unknown origin come out as one line of what prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue.escaping import MAX_SHOWN, printable, session_hex


@given(st.text(st.characters(codec=None)), st.integers(1, 100))
def test_every_text_is_capped_and_prints(text: str, limit: int) -> None:
    """And can be encoded, whatever is in it."""
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize("text", ["", "GET /buy/<sku>", "Zoë", "日本", "x" * MAX_SHOWN])
def test_a_text_that_prints_is_left_alone(text: str) -> None:
    """In whatever language."""
    assert printable(text) == text


def test_unprintable_characters_are_shown_escaped() -> None:
    """Rather than obeyed, or lost."""
    assert printable("\x1b[31m a\r\nb\u202ec\ud800\u200b") == r"\x1b[31m a\r\nb\u202ec\ud800\u200b"
    assert printable("x" * 600) == "x" * 511 + "…"


def test_a_session_id_is_shown_as_zookeeper_prints_it() -> None:
    """Without a sign: a server whose number is above 127 gives negative ones."""
    assert session_hex(-1) == "0xffffffffffffffff"
    assert session_hex(0x100002AB) == "0x100002ab"
    assert session_hex(None) == session_hex(0) == ""
