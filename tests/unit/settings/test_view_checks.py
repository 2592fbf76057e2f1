"""The system checks of locked views under ATOMIC_REQUESTS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.db import transaction
from django.test import override_settings
from django.urls import path
from django.urls.resolvers import URLPattern
from django.views import View
from support import ledgersite
from support.ledger import Ledger

from django_zklock import zk_locked
from django_zklock.checks import check_views
from django_zklock.middleware import LockConflictMiddleware


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger("ledger", tmp_path / "ledger.sqlite3")
    ledger.settings["ATOMIC_REQUESTS"] = True
    yield ledger
    ledger.close()


class OwnMiddleware(LockConflictMiddleware):
    """That of a project."""


class Urls:
    def __init__(self, *patterns: URLPattern) -> None:
        self.urlpatterns = list(patterns)


def messages_for(*routes: str) -> list[tuple[str | None, str]]:
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
def test_a_view_with_a_correct_transaction_causes_no_warning(ledger: Ledger, route: str) -> None:
    assert messages_for(route) == []


@pytest.mark.parametrize("route", ["opted_out_above/", "opted_out_below/"])
def test_a_locked_view_that_is_opted_out_causes_a_warning(ledger: Ledger, route: str) -> None:
    """Its work has no transaction, so an abort would leave half of it."""
    ((id, words),) = messages_for(route)
    assert id == "zklock.W004"
    assert "support.ledgersite." in words


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("handler/", "get of support.ledgersite.Handler"),
        ("decorated_handler/", "get of support.ledgersite.DecoratedHandler"),
        ("action/", "buy of support.ledgersite.Actions"),
    ],
)
def test_a_locked_handler_causes_a_warning(ledger: Ledger, route: str, name: str) -> None:
    """Its transaction begins before its lock, even if a framework calls it."""
    ((id, words),) = messages_for(route)
    assert id == "zklock.W005"
    assert words.endswith(f"before the lock. Handlers concerned, with their databases (1): {name} (ledger).")


def test_many_locked_handlers_cause_one_warning(ledger: Ledger) -> None:
    class Handler(View):
        @zk_locked("x")
        def get(self) -> None: ...

    views: list[Any] = [type(f"View{number}", (Handler,), {}) for number in range(9)]
    urls = Urls(*(path(f"{number}/", view.as_view()) for number, view in enumerate(views)))
    with override_settings(ROOT_URLCONF=urls):
        (message,) = check_views()
        assert "(9): get of " in message.msg
        assert message.msg.endswith("View4 (ledger); and 4 more.")
        with override_settings(SILENCED_SYSTEM_CHECKS=["zklock.W005"]):
            assert message.is_silenced()


def test_an_explicit_release_on_silences_the_warning(ledger: Ledger) -> None:
    class Handler(View):
        @zk_locked("x", release_on="commit")
        def get(self) -> None: ...

    with override_settings(ROOT_URLCONF=Urls(path("x/", Handler.as_view()))):
        assert check_views() == []


@pytest.mark.parametrize(("name", "ids"), [("one", []), ("x", ["zklock.W004"])])
def test_the_transaction_of_one_of_several_locks_counts(ledger: Ledger, name: str, ids: list[str]) -> None:
    raw = {"URL": "zk://localhost/app", "LOCKS": {"one": {"path": "one", "atomic": "ledger"}}}
    with override_settings(ZKLOCK=raw):
        view = transaction.non_atomic_requests(using="ledger")(zk_locked([name, "y"])(ledgersite.write))
        with override_settings(ROOT_URLCONF=Urls(path("a", view))):
            assert [message.id for message in check_views()] == ids


def test_without_atomic_requests_no_view_is_warned_of(ledger: Ledger) -> None:
    ledger.settings["ATOMIC_REQUESTS"] = False
    assert messages_for("opted_out_above/", "handler/") == []


@pytest.mark.parametrize(
    ("middleware", "ids"),
    [
        ([], ["zklock.W009"]),
        (["shop.gone.Middleware"], ["zklock.W009"]),
        (["django_zklock.middleware.LockConflictMiddleware"], []),
        (["unit.settings.test_view_checks.OwnMiddleware"], []),
    ],
)
@pytest.mark.parametrize("route", ["plain/", "wrapped/", "decorated_handler/", "action/"])
def test_a_locked_view_needs_the_middleware(middleware: list[str], ids: list[str], route: str) -> None:
    with override_settings(MIDDLEWARE=middleware):
        assert [id for id, _ in messages_for(route)] == ids
        assert messages_for("calls_helper/") == []


def test_every_warning_says_what_to_do(ledger: Ledger) -> None:
    from django.urls import include

    urls = Urls(path("below/", include((ledgersite.urlpatterns, "site"))))  # type: ignore[arg-type]
    with override_settings(ROOT_URLCONF=urls):
        messages = check_views()
    assert sorted(str(message.id) for message in messages) == ["zklock.W004"] * 2 + ["zklock.W005"]
    assert "(4): " in messages[-1].msg
    assert all(message.hint and isinstance(message, checks.Warning) for message in messages)
