"""Texts of unknown origin come out as one line of what prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.errors import InvalidLockName
from django_zklock.core.queue.escaping import MAX_SHOWN, escape, printable, session_hex, shown_key


@given(st.text(st.characters(codec=None)), st.integers(1, 100))
def test_every_text_is_capped_and_prints(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize("text", ["", "GET /buy/<sku>", "Zoë", "日本", "x" * MAX_SHOWN])
def test_a_text_that_prints_is_left_alone(text: str) -> None:
    assert printable(text) == text


def test_unprintable_characters_are_shown_escaped() -> None:
    assert printable("\x1b[31m a\r\nb\u202ec\ud800\u200b") == r"\x1b[31m a\r\nb\u202ec\ud800\u200b"
    assert printable("x" * 600) == "x" * 511 + "…"


def test_a_session_id_is_shown_as_zookeeper_prints_it() -> None:
    """Without a sign: a server whose number is above 127 gives negative ones."""
    assert session_hex(-1) == "0xffffffffffffffff"
    assert session_hex(0x100002AB) == "0x100002ab"
    assert session_hex(None) == session_hex(0) == ""


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("kunden/J%C3%BCrgen%20Gro%C3%9F", "kunden/Jürgen Groß"),
        ("%E6%97%A5%E6%9C%AC/%22a%22", '日本/"a"'),
        ("a%2Fb%25/%7Bx%7D", "a%2Fb%25/%7Bx%7D"),
        ("%20a%20%20b%20/c%20d", "%20a%20%20b%20/c d"),
        ("a%E2%80%8Bb%E2%80%AEc%0A", "a%E2%80%8Bb%E2%80%AEc%0A"),
        ("%41%c3%bc%C3%FF%", "%41%c3%bc%C3%FF%"),
        ("e%CC%81", "e%CC%81"),
    ],
)
def test_a_key_is_shown_as_people_write_it(key: str, shown: str) -> None:
    assert shown_key(key) == shown


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True))
def test_two_keys_are_never_shown_alike(texts: list[str]) -> None:
    try:
        keys = {escape(text) for text in texts}
    except InvalidLockName:
        return
    shown = {shown_key(key) for key in keys}
    assert len(shown) == len(keys)
    assert all(text.isprintable() for text in shown)
