"""The system checks of locked views under ATOMIC_REQUESTS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core import checks
from django.test import override_settings
from django.urls import path
from django.urls.resolvers import URLPattern
from django.views import View
from support import ledgersite
from support.ledger import Ledger

from django_zklock import zk_locked
from django_zklock.checks import check_views


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger("ledger", tmp_path / "ledger.sqlite3")
    ledger.settings["ATOMIC_REQUESTS"] = True
    yield ledger
    ledger.close()


class Urls:
    def __init__(self, *patterns: URLPattern) -> None:
        self.urlpatterns = list(patterns)


def found(*routes: str) -> list[tuple[str | None, str]]:
    """The ids and words of what the check says of some views of the site."""
    patterns = [pattern for pattern in ledgersite.urlpatterns if str(pattern.pattern) in routes]
    assert len(patterns) == len(routes)
    with override_settings(ROOT_URLCONF=Urls(*patterns)):
        return [(message.id, message.msg) for message in check_views()]


@pytest.mark.parametrize(
    "route",
    [
        "plain/",
        "wrapped/",
        "dispatched/",
        "own_dispatch/",
        "opted_out_with_its_own/",
        "async_view/",
        "async_view_opted_out/",
        "calls_helper/",
        "handler_opted_out/",
        "api_function_opted_out/",
        "action_opted_out/",
        "other_action_opted_out/",
    ],
)
def test_a_view_in_order_is_left_in_peace(ledger: Ledger, route: str) -> None:
    """What has its transaction inside the lock, or none that could be meant, is no matter for a warning."""
    assert found(route) == []


@pytest.mark.parametrize("route", ["opted_out_above/", "opted_out_below/"])
def test_a_locked_view_that_is_opted_out_is_warned_of(ledger: Ledger, route: str) -> None:
    """Its work is in no transaction, so an abort leaves half of it."""
    ((id, words),) = found(route)
    assert id == "zklock.W004"
    assert f"ledgersite.{route.rstrip('/')}" in words


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("handler/", "The handler get of support.ledgersite.Handler"),
        ("decorated_handler/", "The handler get of support.ledgersite.DecoratedHandler"),
        ("action/", "The handler buy of support.ledgersite.Actions"),
        ("api_function/", "The view support.ledgersite.api_function"),
        ("ninja/", "The view support.ledgersite.operation"),
    ],
)
def test_a_locked_handler_is_warned_of(ledger: Ledger, route: str, name: str) -> None:
    """Its transaction is begun before its lock, also if a framework calls it."""
    ((id, words),) = found(route)
    assert id == "zklock.W005"
    assert words == f"{name} is locked, and ATOMIC_REQUESTS begins its transaction on ledger before the lock."


def test_who_says_when_to_release_knows(ledger: Ledger) -> None:
    """An explicit `release` silences the warning, as its hint says."""

    class Handler(View):
        @zk_locked("x", release_on="commit")
        def get(self) -> None: ...

    with override_settings(ROOT_URLCONF=Urls(path("x/", Handler.as_view()))):
        assert check_views() == []


def test_without_atomic_requests_no_view_is_warned_of(ledger: Ledger) -> None:
    ledger.settings["ATOMIC_REQUESTS"] = False
    assert found("opted_out_above/", "handler/") == []


def test_every_warning_says_what_to_do(ledger: Ledger) -> None:
    """All have hints, and the whole site is walked, included URLconfs and all."""
    from django.urls import include

    urls = Urls(path("below/", include((ledgersite.urlpatterns, "site"))))  # type: ignore[arg-type]
    with override_settings(ROOT_URLCONF=urls):
        messages = check_views()
    assert sorted(str(message.id) for message in messages) == ["zklock.W004"] * 2 + ["zklock.W005"] * 5
    assert all(message.hint and isinstance(message, checks.Warning) for message in messages)
