"""Locked views under ATOMIC_REQUESTS: the transaction of a request begins and ends inside its lock."""

import functools

import pytest
from django.db import transaction
from django.test import AsyncClient, override_settings
from support import ledgersite
from support.ledger import Ledger
from support.ledgersite import lose_unnoticed

from django_zklock.exceptions import LockInTransaction

OPTED_OUT = ["opted_out_with_its_own", "api_function_opted_out", "action_opted_out"]
EXACT = ["plain", "wrapped", "twice", "dispatched", "own_dispatch", "atomic_below", *OPTED_OUT]
KEPT = ["handler", "handler_in_block", "decorated_handler", "api_function", "action", "ninja/stock"]
NOT_ATOMIC = ["opted_out_above", "opted_out_below", "handler_opted_out"]


@pytest.fixture
def ledger(tmp_path, django_db_blocker):
    with (
        django_db_blocker.unblock(),
        override_settings(ROOT_URLCONF="support.ledgersite"),
        Ledger.opened("ledger", tmp_path) as ledger,
    ):
        ledger.settings["ATOMIC_REQUESTS"] = True
        yield ledger
        ledgersite.then.clear()


@pytest.mark.parametrize("view", [*EXACT, *KEPT])
def test_a_request_is_committed_or_rolled_back_before_its_lock_is_released(zoo, ledger, client, view):
    with ledger.ends(lambda: len(zoo.children("stock"))) as ends, pytest.raises(ZeroDivisionError):
        client.get(f"/{view}/?fail")
    assert set(ends) == {("rollback", 1)}
    assert ledger.seen() == []
    zoo.assert_empty(timeout=0)
    with ledger.ends(lambda: len(zoo.children("stock"))) as ends:
        response = client.get(f"/{view}/")
    blocks = b"2" if view in ("atomic_below", "handler_in_block") else b"1"
    assert response.content == blocks
    assert ends == [("commit", 1)]
    assert ledger.seen() == ["x"]
    zoo.assert_empty(timeout=0)


@pytest.mark.parametrize("view", NOT_ATOMIC)
def test_a_view_that_is_opted_out_is_in_no_transaction(zoo, ledger, client, view):
    assert client.get(f"/{view}/").content == b"0"
    with pytest.raises(ZeroDivisionError):
        client.get(f"/{view}/?fail")
    assert ledger.seen() == ["x", "x"]


@pytest.mark.parametrize("view", ["atomic_above", "calls_helper", "acquires_a_lock"])
@pytest.mark.usefixtures("zoo")
def test_a_lock_inside_a_transaction_of_the_projects_own_is_refused(ledger, client, view):
    with pytest.raises(LockInTransaction):
        client.get(f"/{view}/")
    assert ledger.seen() == []


@pytest.mark.parametrize(("view", "alias"), [("handler", "audit"), ("handler_opted_out", "ledger")])
@pytest.mark.usefixtures("zoo", "ledger", "audit")
def test_a_transaction_around_the_request_is_not_taken_for_djangos(client, view, alias):
    """A middleware may begin one, on a database without ATOMIC_REQUESTS, or around a view that has opted out."""
    with pytest.raises(LockInTransaction), transaction.atomic(using=alias):
        client.get(f"/{view}/")


@pytest.mark.parametrize("view", [*EXACT, *KEPT])
def test_an_answer_503_commits_nothing(zoo, ledger, client, view):
    """The response is no exception, so Django would commit what the view wrote before its lock was lost."""
    ledgersite.then.append(lose_unnoticed)
    assert client.get(f"/{view}/").status_code == 503
    ledger.assert_idle()
    assert ledger.seen() == []


@pytest.mark.usefixtures("zoo")
def test_a_loss_after_the_view_stops_the_commit(ledger, client, monkeypatch):
    holds = []
    ledgersite.then.append(holds.append)
    original_get = ledgersite.Handler.get

    @functools.wraps(original_get)
    def get(self, request):
        response = original_get(self, request)
        lose_unnoticed(holds[0])
        return response

    monkeypatch.setattr(ledgersite.Handler, "get", get)
    assert client.get("/handler/").status_code == 503
    assert ledger.seen() == []


async def test_async_views_are_left_to_django(zoo, ledger):
    client = AsyncClient()
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        await client.get("/async_view/")
    assert (await client.get("/async_view_opted_out/")).content == b"async"


def test_a_view_that_is_called_directly_is_in_no_transaction(zoo, ledger, rf):
    """Without a resolved URL it is plain code. Django does not begin a transaction either."""
    assert ledgersite.VIEWS["plain"](rf.get("/")).content == b"0"
    assert ledgersite.VIEWS["opted_out_above"](rf.get("/")).content == b"0"


def test_the_other_actions_of_a_view_set_keep_their_transactions(zoo, ledger, client):
    """As the hint of `zklock.W005` says: the class is opted out, and `transaction.atomic` is on the others."""
    assert client.get("/other_action_opted_out/").content == b"1"
    with pytest.raises(ZeroDivisionError):
        client.get("/other_action_opted_out/?fail")
    assert ledger.seen() == ["x"]
