"""An error that comes too late to roll back the work is no refusal: a client that repeats the request does it twice."""

import contextlib

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.test import AsyncClient, Client, override_settings
from support import committingsite
from support.ledger import Ledger
from support.ledgersite import lose_unnoticed

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost
from django_zklock.http.responses import answer

SITE = {**committingsite.SETTINGS, "MIDDLEWARE": ["django_zklock.middleware.LockConflictMiddleware"]}
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def ledger(tmp_path, django_db_blocker):
    with django_db_blocker.unblock(), override_settings(**SITE), Ledger.opened("ledger", tmp_path) as ledger:
        yield ledger


@pytest.fixture
def elsewhere(zoo):
    """Have the lock of the functions of `on_commit` held by another program."""
    with zoo.hold_elsewhere(committingsite.BUSY):
        yield


def assert_no_refusal(response):
    assert (response.status_code, response.json()["code"]) == (500, "lock_not_rolled_back")
    assert "Retry-After" not in response
    assert set(response.json()) == {"detail", "code"}
    assert "saved" in response.json()["detail"]


@pytest.mark.usefixtures("elsewhere", "audit")
@pytest.mark.parametrize("view", committingsite.VIEWS)
def test_an_error_after_a_commit_of_the_view_is_no_refusal(ledger, client, view):
    assert_no_refusal(client.post(f"/{view}/"))
    assert ledger.seen() == ["x"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("view", committingsite.ATOMIC)
def test_an_error_after_the_commit_of_the_request_is_no_refusal(zoo, ledger, client, view):
    ledger.settings["ATOMIC_REQUESTS"] = True
    is_away = view == "unique_task"
    with zoo.configured("127.0.0.1:1", CONNECT_TIMEOUT=0.1) if is_away else contextlib.nullcontext():
        assert_no_refusal(client.post(f"/atomic/{view}/"))
    assert ledger.seen() == ["x"]


@pytest.mark.usefixtures("elsewhere")
def test_a_commit_of_one_database_is_no_refusal_if_the_other_is_rolled_back(ledger, audit, client):
    audit.settings["ATOMIC_REQUESTS"] = ledger.settings["ATOMIC_REQUESTS"] = True
    assert_no_refusal(client.post("/atomic/order/"))
    assert (ledger.seen(), audit.seen()) == (["x"], [])


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("door", ["ninja", "ninja-handling"])
def test_django_ninja_does_not_refuse_committed_work(ledger, client, door):
    assert_no_refusal(client.post(f"/{door}/order/"))
    assert ledger.seen() == ["x"]


@pytest.mark.usefixtures("elsewhere")
def test_the_exception_handler_of_rest_framework_does_not_refuse_committed_work(ledger):
    handler = {"EXCEPTION_HANDLER": "django_zklock.contrib.rest_framework.exception_handler"}
    with override_settings(MIDDLEWARE=[], REST_FRAMEWORK=handler):
        assert_no_refusal(Client().post("/function_of_rest_framework/"))
    assert ledger.seen() == ["x"]


@pytest.mark.usefixtures("elsewhere")
def test_the_page_of_such_an_answer_is_not_that_of_other_failures(ledger, client):
    """A page for 500 may ask its reader to try again."""
    pages = {"500.html": "try again", "lock_not_rolled_back.html": "{{ code }}: look"}
    loaders = [("django.template.loaders.locmem.Loader", pages)]
    backend = "django.template.backends.django.DjangoTemplates"
    for name, content in (
        ("lock_not_rolled_back.html", b"lock_not_rolled_back: look"),
        ("", b"Your changes may be saved"),
    ):
        pages.pop("" if name else "lock_not_rolled_back.html", None)
        with override_settings(TEMPLATES=[{"BACKEND": backend, "OPTIONS": {"loaders": loaders}}]):
            response = client.post("/own_block/", headers={"accept": BROWSER})
        assert (response.status_code, response.content[: len(content)]) == (500, content)


@pytest.mark.usefixtures("elsewhere")
async def test_an_async_server_does_not_refuse_committed_work(ledger):
    def close():
        connections["ledger"].close()
        del connections["ledger"]

    await sync_to_async(close)()  # that of an earlier test
    for view in ("async_view", "own_block", "atomic/rendered_after_the_view"):
        assert_no_refusal(await AsyncClient().post(f"/{view}/"))
    await sync_to_async(close)()
    assert ledger.seen() == ["x"] * 3


# --- before the COMMIT, and by no error -------------------------------------------------------------------------------


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("atomic_requests", [True, False])
def test_an_error_before_the_commit_is_a_refusal(ledger, client, atomic_requests):
    ledger.settings["ATOMIC_REQUESTS"] = atomic_requests
    response = client.post("/busy/")
    assert (response.status_code, response["Retry-After"]) == (409, "1")
    assert ledger.seen() == []


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("end", ["block", "release"])
def test_a_lock_that_is_lost_at_its_end_in_a_transaction_is_a_refusal(ledger, rf, end):
    """The error rolls it back."""
    lock = zk_lock("stock", release_on="exit")
    with pytest.raises(LockLost) as caught, transaction.atomic(using="ledger"):
        ledger.write("x")
        if end == "block":
            with lock as hold:
                lose_unnoticed(hold)
        else:
            lose_unnoticed(lock.acquire())
            lock.release()
    response = answer(rf.post("/"), caught.value)
    assert response is not None
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert ledger.seen() == []


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("view", ["aborted_after_a_commit", "checked_after_a_commit"])
def test_a_lock_that_is_lost_in_its_transaction_is_a_refusal(ledger, client, view):
    """The transaction of the request is rolled back, with what was committed inside it."""
    ledger.settings["ATOMIC_REQUESTS"] = True
    response = client.post(f"/atomic/{view}/")
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert ledger.seen() == []
