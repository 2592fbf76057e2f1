"""The options of unique tasks, and the rules of their reservations."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from django_zklock import zk_locked
from django_zklock.conf.options import given_options
from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.lifecycle import unique_key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "until_end"}, "until_done"),
        ({"unique": True}, "until_done"),
        ({"unique": "until_start", "on_duplicate": "skip"}, "raise"),
        ({"unique": "until_start", "unique_for": 0}, "seconds"),
        ({"unique": "until_start", "unique_for": True}, "seconds"),
        ({"unique": "until_start", "unique_for": float("nan")}, "seconds"),
        ({"unique": "until_start", "unique_for": "1h"}, "seconds"),
        ({"on_duplicate": "raise"}, "need unique"),
        ({"unique_for": 5}, "need unique"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        zk_locked("a", **options)


def test_options_of_unique_tasks_are_read():
    options = {"unique": "until_done", "on_duplicate": None, "unique_for": timedelta(minutes=1)}
    assert given_options(options) == {"unique": "until_done", "on_duplicate": None, "unique_for": 60.0}


@pytest.mark.parametrize("key", ["", "\ud800", "\x00", "x" * 2_000_000, "ü", "a//b", "a/../b", 5, None, ["a"]])
def test_a_header_without_a_key_of_a_reservation_is_ignored(key):
    assert not reservations.is_key(key)


def test_a_key_that_is_too_long_has_a_digest_of_the_key_of_its_lock():
    task = SimpleNamespace(name="shop.work")
    long = [unique_key(task, f"{'x' * 200}/" * 4 + "y" * 170 + str(number)) for number in range(2)]
    assert all(reservations.is_key(key) for key in long)
    assert len(set(long)) == 2
    assert unique_key(task, "feed/7") == "task/shop.work/feed/7"
