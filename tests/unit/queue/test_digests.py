"""A field such as `{url:digest}` makes a short and stable part of a key, of any text."""

from __future__ import annotations

import json
import unicodedata
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_zklock import Lock, ReadWriteLock, zk_lock, zk_locks, zk_semaphore
from django_zklock.core.queue.escaping import hide_tails, show_tails
from django_zklock.exceptions import InvalidLockName
from django_zklock.management.arguments import key_of
from django_zklock.names.binding import KeyBinder
from django_zklock.names.template import MAX_DIGESTED, Template, digest
from unit.queue.test_field_values import ONE_THING

ZKLOCK = {"URL": "zk://127.0.0.1:1/x", "LOCKS": {"feed": {"path": "feed/{url:digest}", "timeout": 3}}}
URL = "https://example.com/feed.xml?q={x}&r= y"


def of(value: object, field: str = "x:digest") -> str:
    return Template.parse(f"{{{field}}}").render({"x": value})


@given(st.text(max_size=50), st.text(max_size=50))
def test_two_texts_have_one_digest_only_if_they_are_one(first: str, second: str) -> None:
    for text in filter(None, (first, second)):
        assert len(of(text)) == 32
        assert of(text) == of(unicodedata.normalize("NFD", text)) == of(json.loads(json.dumps(text)))
    if first and second:
        same = unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second)
        assert (of(first) == of(second)) is same


def test_a_pair_of_surrogates_is_the_character_that_json_makes_of_it() -> None:
    """A task gets that character."""
    assert of("\ud83d\ude00") == of(json.loads(json.dumps("\ud83d\ude00"))) == of("\U0001f600")


@pytest.mark.parametrize("text", ONE_THING)
def test_one_thing_has_one_digest_however_it_is_written(text: str) -> None:
    assert {of(value) for value in ONE_THING[text]} == {digest(text, "field")}


def test_a_large_value_may_be_digested() -> None:
    """A list of ids is too large for any other field."""
    ids = list(range(500))
    with pytest.raises(InvalidLockName, match=r"too large for a name. Use an attribute of it, or \{name:digest\}"):
        of(ids, "x")
    assert of(ids) == digest(json.dumps([str(number) for number in ids], separators=(",", ":")), "ids")


@pytest.mark.parametrize("value", ["", None, "x" * (MAX_DIGESTED + 1), {1}, b"a", object(), ["x"] * (MAX_DIGESTED + 1)])
@pytest.mark.timeout(5)
def test_a_value_that_names_nothing_has_no_digest(value: object) -> None:
    """One lock for all that is missing would be a mistake. A huge value would take long."""
    with pytest.raises(InvalidLockName, match="field 'x:digest' of lock name"):
        of(value)


def test_the_digest_keeps_its_characters_between_other_fields() -> None:
    """Its length is fixed, so its end needs no separator; the values around it are escaped as ever."""
    template = Template.parse("{a}9{x:digest}9{b}")
    key = template.render({"a": "19", "x": URL, "b": "29"})
    assert key == "1%39" + "9" + of(URL) + "9" + "2%39"
    assert template.may_render(key)
    assert template.fields == ("a", "x", "b")
    attribute = Template.parse("{order.url:digest}").render({"order": type("Order", (), {"url": 7})})
    assert attribute == of(7)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("url:digst", r"has the field 'url:digst'; did you mean \{url:digest\}\?"),  # codespell:ignore
        ("order.url:Digest", r"did you mean \{order.url:digest\}\?"),
        ("url: digest", r"did you mean \{url:digest\}\?"),
        ("url:>8", "no index, no call, no format"),
        ("url:", "no index, no call, no format"),
        ("url:digest:digest", "no index, no call, no format|did you mean"),
        (":digest", "no index, no call, no format"),
        ("url!r:digest", "no index, no call, no format"),
        ("order._url:digest", "a private attribute"),
    ],
)
def test_a_misspelt_digest_is_refused_with_a_suggestion(field: str, message: str) -> None:
    with pytest.raises(InvalidLockName, match=message):
        Template.parse(f"feed/{{{field}}}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: zk_lock(f"feed-{URL}"),
        lambda: zk_lock("import-100% }"),
        lambda: zk_lock("import-100% {free}"),
        lambda: zk_lock('import-{"a": 1}'),
        lambda: zk_lock(f"import-{'k' * 240}"),
        lambda: zk_lock(f"import-{'k' * 2400}"),
        lambda: zk_lock("feed/{url}", fields={"url": "k" * 240}),
        lambda: zk_lock("feed/{url}", fields={"url": "ü" * 40}),
    ],
    ids=range(8),
)
def test_a_value_that_is_no_name_is_told_of_the_digest(make: Callable[[], Lock]) -> None:
    """Slashes, braces and length: the data decides, in production."""
    with override_settings(ZKLOCK=ZKLOCK), pytest.raises(InvalidLockName) as caught:
        assert make().key
    assert 'ass the value as a field: zk_lock("feed/{url:digest}", fields={"url": url})' in str(caught.value)


def test_every_call_takes_a_digest() -> None:
    key = f"feed/{digest(URL, 'url')}"
    fields: Any = {"url": URL}

    def fetch(*, url: str = URL) -> None: ...

    with override_settings(ZKLOCK=ZKLOCK):
        for lock in (
            zk_lock("feed", fields=fields),
            zk_semaphore("feed/{url:digest}", 3, fields=fields),
            ReadWriteLock("feed/{url:digest}", fields=fields),
        ):
            assert lock.key == key
        several = zk_locks("feed", "feed/{url:digest}", "rows/{url:digest}", fields=fields)
        assert several.keys == (key, key.replace("feed", "rows"))
        assert zk_lock("feed", fields=fields).spec.template == "feed/{url:digest}"
        binder = KeyBinder("feed/{url:digest}", fetch)
        binder.check_fields("feed/{url:digest}")
        name, bound = binder.bind_one((), {})
        assert zk_lock(name, fields=bound).key == key


def test_a_key_with_a_digest_leads_to_its_entry() -> None:
    with override_settings(ZKLOCK=ZKLOCK):
        for value, hidden in ((URL, False), ("7", True)):
            key = zk_lock("feed", fields={"url": value}).key
            assert (hide_tails(key) != key) is hidden
            assert key_of(Namespace(name="feed", fields={"url": value})) == key
            for shown in (key, hide_tails(key), show_tails(key)):
                lock = Lock.of_key(shown)
                assert lock.key == key
                assert lock.spec.timeout == 3
        assert Lock.of_key("feed/7").spec.timeout == 5
        with pytest.raises(InvalidLockName, match=r"is a template. Fill in \{url\}, for example feed/[0-9a-f]{32}\."):
            Lock.of_key("feed/{url:digest}")
