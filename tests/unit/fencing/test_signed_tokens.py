"""Signed tokens: their content, how they are made, and which of them the receiver refuses."""

import base64
import dataclasses
import hashlib
import hmac
import json
import time
from datetime import timedelta

import pytest
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.core.signing import Signer
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st
from support.tokens import MemoryTokens

from django_zklock import conf
from django_zklock.contrib.tokens import signing as tokens
from django_zklock.contrib.tokens.keys import Keys, token_keys
from django_zklock.contrib.tokens.signing import FenceVerifier, TokenHolder, VerifiedToken, unseal
from django_zklock.exceptions import InvalidToken, StaleToken, ZkLockError
from django_zklock.names.template import MAX_KEY, Template

OLD, NEW, THEIRS = ("old" * 12, "new" * 12, "theirs" * 6)


def fence(**changes):
    now = time.time()
    holder = TokenHolder(host="web1", pid=7, guid="00000000-0000-4000-8000-000000000000")
    whole = VerifiedToken(key="inventory/7", token=41, holder=holder, issued=now, lease_until=now + 8)
    return dataclasses.replace(whole, **changes)


def seal(content, keys):
    return tokens.seal(content, Keys(keys))


def verifier(**options):
    return FenceVerifier(MemoryTokens(), **{"keys": [NEW], **options})


def verify(signed, key="inventory/7", **options):
    return verifier(**options).verify(signed, key=key)


def signed_as(content):
    return Signer(key=NEW, salt=tokens.SALT).sign_object(content)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60), st.integers(1, 2**63 - 1))
def test_any_key_and_token_can_be_signed_and_read(value, token):
    template = Template.parse("stock/{sku}")
    try:
        key = template.render({"sku": value})
    except ZkLockError:
        key = value  # no name of a lock, but a text all the same
    sent = fence(key=key, token=token)
    signed = seal(sent, [NEW])
    assert signed.isascii()
    assert signed.isprintable()
    assert " " not in signed
    assert verify(signed, key) == sent


def test_the_longest_key_fits_a_header():
    """Servers accept headers of 8 KiB. The longest token is much shorter, and longer ones are refused unread."""
    longest = fence(key="k" * MAX_KEY, holder=TokenHolder(host="\N{SNOWMAN}" * 64, pid=2**31, guid="g" * 36))
    assert len(seal(longest, [NEW])) < tokens.MAX_LENGTH / 1.5
    with pytest.raises(InvalidToken):
        verify(seal(fence(key="k" * 4 * MAX_KEY), [NEW]), "k" * 4 * MAX_KEY)


def test_a_receiver_in_any_language_can_check_and_read_a_token():
    """It is base64 of JSON, and HMAC-SHA256 with a key made of the salt and ours. Many have no integers above 2**53."""
    content, _, signature = seal(fence(token=2**53 + 1), [NEW]).partition(":")
    key = hashlib.sha256(f"django_zklock.tokenssigner{NEW}".encode()).digest()
    assert base64.urlsafe_b64decode(signature + "=") == hmac.new(key, content.encode(), "sha256").digest()
    assert json.loads(base64.urlsafe_b64decode(content + "=="))["token"] == str(2**53 + 1)


@pytest.mark.parametrize("position", range(0, 200, 9))
def test_a_token_with_one_character_changed_is_invalid(position):
    signed = seal(fence(), [NEW])
    other = "A" if signed[position] != "A" else "B"
    with pytest.raises(InvalidToken):
        verify(signed[:position] + other + signed[position + 1 :])


def forgeries():
    signed = seal(fence(), [NEW])
    content, _, signature = signed.partition(":")
    yield pytest.param("", id="empty")
    yield pytest.param(":", id="separator")
    yield pytest.param("41", id="a bare number")
    yield pytest.param(content, id="unsigned")
    yield pytest.param(content + ":", id="empty signature")
    yield pytest.param(":" + signature, id="signature alone")
    yield pytest.param(signed + "\r\nX-Admin: 1", id="a header after it")
    yield pytest.param(" " + signed, id="a space before it")
    yield pytest.param(f"{signed},{signed}", id="two headers joined")
    yield pytest.param(signed + "\udc80", id="a lone surrogate")
    yield pytest.param(signed + "\N{SNOWMAN}", id="not ASCII")
    yield pytest.param(signed.encode(), id="bytes")
    yield pytest.param(None, id="nothing")
    yield pytest.param("x" * 10_000_000, id="huge")
    yield pytest.param(seal(fence(), [THEIRS]), id="another's key")
    yield pytest.param(Signer(key=NEW).sign_object({"v": 1}), id="no salt")
    yield pytest.param(signing.dumps({"v": 1}, key=NEW, salt=tokens.SALT), id="with a time stamp of Django's")


@pytest.mark.parametrize("signed", list(forgeries()))
def test_a_text_that_was_not_signed_with_a_key_is_invalid(signed):
    with pytest.raises(InvalidToken):
        verify(signed)


def malformed():
    whole = {"v": 1, **dataclasses.asdict(fence()), "token": "41"}
    assert verify(signed_as(whole)).token == 41
    yield from ([], None, 7, "text", {}, {**whole, "v": 2}, {**whole, "key": 7}, {**whole, "holder": "web1"})
    yield from ({**whole, "token": token} for token in (None, "41.0", "", "9" * 5000))
    yield from ({**whole, name: value} for name in ("issued", "lease_until") for value in (None, "soon"))
    yield from ({name: value for name, value in whole.items() if name != gone} for gone in whole)


@pytest.mark.parametrize("content", list(malformed()))
def test_a_signed_token_of_another_format_is_invalid(content):
    with pytest.raises(InvalidToken):
        verify(signed_as(content))


def test_keys_are_rotated_without_a_gap():
    before, after = seal(fence(), [OLD]), seal(fence(), [NEW, OLD])
    assert verify(before, keys=[OLD, NEW]) == verify(before, keys=[NEW, OLD])
    assert verify(after, keys=[OLD, NEW]) == verify(after, keys=[NEW])
    with pytest.raises(InvalidToken):
        verify(before, keys=[NEW])


@pytest.mark.parametrize(
    ("settings", "signs", "verifies"),
    [
        ({"SECRET_KEY": NEW}, NEW, [NEW]),
        ({"SECRET_KEY": NEW, "SECRET_KEY_FALLBACKS": [OLD]}, NEW, [NEW, OLD]),
        ({"ZKLOCK": {"TOKEN_KEYS": [NEW, OLD]}, "SECRET_KEY": THEIRS}, NEW, [NEW, OLD]),
        ({"ZKLOCK": {"TOKEN_KEYS": None}, "SECRET_KEY": NEW}, NEW, [NEW]),
        ({"ZKLOCK": None, "SECRET_KEY": NEW}, NEW, [NEW]),
    ],
    ids=["SECRET_KEY", "its fallbacks", "TOKEN_KEYS", "no TOKEN_KEYS", "no ZKLOCK"],
)
def test_the_keys_come_from_the_settings(settings, signs, verifies):
    with override_settings(**settings):
        assert unseal(tokens.seal(fence(), token_keys()), Keys([signs]))
        for key in verifies:
            assert verify(seal(fence(), [key]), keys=None)
        for key in {OLD, NEW, THEIRS} - {*verifies}:  # not SECRET_KEY if there are TOKEN_KEYS
            with pytest.raises(InvalidToken):
                verify(seal(fence(), [key]), keys=None)


@pytest.mark.parametrize("keys", ["", "x" * 40, [], [NEW, ""], [NEW, "short"], [NEW, 7], {NEW: 1}, 7])
def test_invalid_keys_are_refused_at_once(keys):
    with pytest.raises(ImproperlyConfigured, match="not a list of keys") as caught:
        FenceVerifier(MemoryTokens(), keys=keys)
    assert NEW not in str(caught.value)
    with override_settings(ZKLOCK={"TOKEN_KEYS": keys}), pytest.raises(ImproperlyConfigured, match="TOKEN_KEYS"):
        token_keys()
    (problem,) = conf.problems({"URL": "zk://h", "TOKEN_KEYS": keys})
    assert (problem.id, NEW in str(problem)) == ("E011", False)


@pytest.mark.parametrize(("begin", "end"), [(-68, -60), (600, 608)], ids=["over", "not begun"])
def test_a_token_outside_its_lease_is_stale(begin, end):
    receiver, now = verifier(), time.time()
    outside = fence(token=99, issued=now + begin, lease_until=now + end)
    with pytest.raises(StaleToken) as caught:
        receiver.verify(seal(outside, [NEW]), key="inventory/7")
    assert caught.value.lock == "inventory/7"
    assert receiver.verify(seal(fence(), [NEW]), key="inventory/7")


@pytest.mark.parametrize("leeway", [60, timedelta(minutes=1)])
def test_the_leeway_covers_clocks_that_differ(leeway):
    now = time.time()
    assert verify(seal(fence(lease_until=now - 30), [NEW]), leeway=leeway)
    assert verify(seal(fence(issued=now + 30, lease_until=now + 38), [NEW]), leeway=leeway)


@pytest.mark.parametrize("leeway", [-1, float("nan"), float("inf")])
def test_a_leeway_is_a_time(leeway):
    with pytest.raises(ValueError, match="leeway"):
        verifier(leeway=leeway)


def test_a_token_is_stale_once_a_newer_one_was_seen():
    receiver = verifier()
    older, newer = seal(fence(token=41), [NEW]), seal(fence(token=42), [NEW])
    receiver.verify(older, key="inventory/7")
    receiver.verify(older, key="inventory/7")
    receiver.verify(newer, key="inventory/7")
    with pytest.raises(StaleToken) as caught:
        receiver.verify(older, key="inventory/7")
    assert caught.value.lock == "inventory/7"
    assert receiver.verify(newer, key="inventory/7").token == 42
    assert receiver.verify(seal(fence(key="other", token=5), [NEW]), key="other").token == 5


class Slow(MemoryTokens):
    def advance(self, key, token):
        super().advance(key, token)
        time.sleep(0.1)


def test_a_token_whose_lease_ends_while_the_store_is_asked_is_stale():
    with pytest.raises(StaleToken):
        FenceVerifier(Slow(), keys=[NEW], leeway=0).verify(
            seal(fence(lease_until=time.time() + 0.05), [NEW]), key="inventory/7"
        )


async def test_a_coroutine_verifies_tokens_as_sync_code_does():
    receiver = verifier()
    newer = seal(fence(token=42), [NEW])
    assert (await receiver.averify(newer, key="inventory/7")).token == 42
    with pytest.raises(StaleToken):
        await receiver.averify(seal(fence(), [NEW]), key="inventory/7")
    with pytest.raises(InvalidToken):
        await receiver.averify(newer, key="inventory/8")
    with pytest.raises(StaleToken):
        await FenceVerifier(Slow(), keys=[NEW], leeway=0).averify(
            seal(fence(lease_until=time.time() + 0.05), [NEW]), key="inventory/7"
        )
