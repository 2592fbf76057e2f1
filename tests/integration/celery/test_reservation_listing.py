"""A report on reservations says how many were read."""

from __future__ import annotations

import pytest
from support.zoo import Zoo

from django_zklock.contrib.celery.unique import listing, page, reservations
from django_zklock.exceptions import ZooKeeperUnavailable

pytestmark = pytest.mark.zookeeper


def test_the_doctor_says_how_many_reservations_it_has_read(zoo: Zoo) -> None:
    for number in range(3):
        reservations.reserve(f"task/feeds.update/feed{number}", str(number))
    assert listing.findings(listing.read(reply_timeout=30)) == [("info", "3 of unique tasks.")]
    part = listing.findings(listing.read(reply_timeout=30, most=2))
    assert part == [("info", "3 of unique tasks. 2 of them were read.")]


def test_a_search_counts_all_reservations_and_a_lock_names_its_own(zoo: Zoo) -> None:
    for number in range(3):
        reservations.reserve(f"task/feeds.update/feed{number}", str(number))
    assert [query for _text, query in page.links("feeds", reply_timeout=30)] == ["q=feeds"]
    (text, _query) = page.links(lock="feed1", reply_timeout=30)[0]
    assert "feeds.update" in text


def test_without_zookeeper_nothing_is_said_of_the_reservations_of_a_lock(zoo: Zoo) -> None:
    with zoo.configured(hosts="127.0.0.1:1"), pytest.raises(ZooKeeperUnavailable):
        listing.of_key("feed1", reply_timeout=0.3)
