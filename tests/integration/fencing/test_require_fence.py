"""A hold signs its token; another service, view or process accepts only the newest holder."""

import base64
import inspect
import json
import logging
import os
import socket
import subprocess
import sys
import time

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.models import F
from django.http import HttpResponse
from django.test import override_settings
from django.views import View
from support import fencesite
from support.ledgers.models import Account
from support.tokens import MemoryTokens
from support.zoo import TESTS, eventually, guid_of, next_line

from django_zklock import zk_lock
from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.tokens import require_fence
from django_zklock.core.queue.escaping import escape
from django_zklock.exceptions import InvalidLockName, LockLost, LockNotHeld, StaleToken

VIEWS = ["function", "async-function", "row", "class", "dispatched", "async-class", "async-dispatched"]
KEY = "k" * 40


@pytest.fixture(autouse=True)
def site():
    with override_settings(ROOT_URLCONF="support.fencesite"):
        yield
    fencesite.memory._highest.clear()


def sign(key):
    with zk_lock(key) as hold:
        return hold.token, hold.signed_token()


def post(client, path, signed=None, **headers):
    given = headers if signed is None else {**headers, "X-Fencing-Token": signed}
    return client.post(path, headers=given)


def code_of(client, path, signed=None):
    response = post(client, path, signed, accept="application/json")
    return response.status_code, json.loads(response.content)["code"]


def test_a_signed_token_contains_no_secrets(zoo):
    before = time.time()
    with zk_lock("stock/{sku}", fields={"sku": "7"}) as hold:
        content, _, _ = hold.signed_token().partition(":")
        until = hold.lease_remaining + time.time()  # in this order: a pause between the two makes it later
        said = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
        issued, lease_until = said.pop("issued"), said.pop("lease_until")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "guid": guid_of(hold.path)}
        assert said == {"v": 1, "key": "stock/7", "token": str(hold.token), "holder": holder}
        assert before - 0.001 <= issued <= time.time()
        assert issued < lease_until <= until


def test_without_the_app_a_hold_says_what_to_install(zoo):
    apps = [app for app in settings.INSTALLED_APPS if app != "django_zklock.contrib.tokens"]
    with (
        zk_lock("stock/7") as hold,
        override_settings(INSTALLED_APPS=apps),
        pytest.raises(ImproperlyConfigured, match=r'add "django_zklock\.contrib\.tokens" to INSTALLED_APPS'),
    ):
        hold.signed_token()


def test_a_hold_that_is_over_signs_nothing(zoo):
    with zk_lock("stock/7") as hold:
        pass
    with pytest.raises(LockNotHeld):
        hold.signed_token()
    with pytest.raises(LockLost), zk_lock("stock/7", abort_on="never") as hold:
        zoo.delete("stock/7")
        eventually(lambda: hold.lost)
        hold.signed_token()


RECEIVER = """
import sys, threading
from django.conf import settings
settings.configure(
    SECRET_KEY="any",
    INSTALLED_APPS=["django_zklock.contrib.fences"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django; django.setup()
from django.core.management import call_command
from django_zklock.contrib.tokens import FenceVerifier
from django_zklock.contrib.tokens.stores import DatabaseTokens
from django.test import override_settings
call_command("migrate", verbosity=0)
print("ready", flush=True)
for line in sys.stdin:
    secret, key, text = line.rstrip().split("|")
    with override_settings(SECRET_KEY=secret, ZKLOCK={"TOKEN_KEYS": [key]} if key else None):
        try:
            fence = FenceVerifier(DatabaseTokens()).verify(text, key="stock/7")
            print(fence.key, fence.token, fence.holder.pid, threading.active_count(), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""


def test_another_project_verifies_without_zookeeper(zoo):
    command = [sys.executable, "-c", RECEIVER]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def receive(secret_key, token_key, hold):
            """Return what the receiver says of a token that is signed now: it is valid for seconds."""
            print(secret_key, token_key, hold.signed_token(), sep="|", file=process.stdin, flush=True)
            return next_line(process)

        assert next_line(process) == "ready"
        with zoo.configured(TOKEN_KEYS=[KEY]), zk_lock("stock/7") as hold:
            assert receive("its own", KEY, hold) == f"stock/7 {hold.token} {os.getpid()} 1"
            assert receive("its own", "another" * 6, hold) == "InvalidToken"
            assert receive(KEY, "", hold) == f"stock/7 {hold.token} {os.getpid()} 1"
            assert receive("test", "", hold) == "InvalidToken"  # the sender's SECRET_KEY


@pytest.mark.django_db
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_accepts_only_its_newest_holder(zoo, client, view):
    path = f"/{view}/7/"
    older, signed = sign("stock/7")
    response = post(client, path, signed)
    assert (response.status_code, response.content.decode()) == (200, f"stock/7 {older} {os.getpid()}")
    newer, newest = sign("stock/7")
    assert newer > older
    assert post(client, path, newest).status_code == 200
    assert code_of(client, path, signed) == (412, "fence_stale")
    assert post(client, path, newest).status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_needs_a_token_of_its_resource(zoo, client, view):
    assert code_of(client, f"/{view}/7/") == (428, "fence_missing")
    assert code_of(client, f"/{view}/7/", "") == (428, "fence_missing")
    assert code_of(client, f"/{view}/7/", "forged") == (403, "fence_invalid")
    _, other = sign("stock/8")
    assert code_of(client, f"/{view}/7/", other) == (403, "fence_invalid")
    assert post(client, f"/{view}/8/", other).status_code == 200


@pytest.mark.parametrize("sku", ["a b", "a/b", "..a", "ä\N{SNOWMAN}", "%2F", "{sku}"])
def test_values_are_escaped_as_the_sender_escapes_them(zoo, rf, sku):
    @require_fence("stock/{sku}", store=MemoryTokens())
    def view(request, sku):
        return fencesite.answer(request)

    with zk_lock("stock/{sku}", fields={"sku": sku}) as hold:
        response = view(rf.post("/", headers={"X-Fencing-Token": hold.signed_token()}), sku=sku)
    assert response.content.decode() == f"stock/{escape(sku)} {hold.token} {os.getpid()}"


def test_the_receiver_may_use_the_names_of_the_locks(zoo, client):
    with zoo.configured(LOCKS={"stock": {"path": "stock/{sku}"}}), zk_lock("stock", fields={"sku": "7"}) as hold:
        signed = hold.signed_token()
        response = post(client, "/named/7/", **{"X-Stock-Fence": signed})
        assert response.content.decode().startswith("stock/7 ")
        assert code_of(client, "/named/7/", signed) == (428, "fence_missing")
        assert "X-Stock-Fence" in post(client, "/named/7/").content.decode()
    with zk_lock("{{7}}") as hold:
        assert post(client, "/braced/7/", hold.signed_token()).content.decode().startswith("%7B7%7D ")


def test_refusals_are_for_programs_and_not_cached(zoo, client):
    for accept, kind in [("text/plain", "text/plain"), ("*/*", "application/json")]:
        response = post(client, "/function/7/", "<evil>\r\nSet-Cookie: a=b", accept=accept)
        assert (response.status_code, response["Cache-Control"]) == (403, "no-store")
        assert response["Content-Type"].startswith(kind)
        assert ("Set-Cookie" in response, b"evil" in response.content) == (False, False)


def test_a_refusal_is_logged_without_the_token(zoo, client, caplog):
    _, signed = sign("stock/8")
    with caplog.at_level(logging.WARNING, "django_zklock"):
        post(client, "/function/7/", signed)
    (record,) = (record for record in caplog.records if record.name == "django_zklock.fencing")
    assert "support.fencesite.answer refused" in record.getMessage()
    assert record.lock == "stock/7"
    assert signed not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_view_that_fails_or_is_refused_writes_nothing(zoo, client):
    _, signed = sign("stock/7")
    with pytest.raises(ZeroDivisionError):
        post(client, "/row/7/?fail", signed)
    assert not Fence.objects.exists()
    newer, newest = sign("stock/7")
    assert post(client, "/row/7/", newest).status_code == 200
    assert post(client, "/row/7/", signed).status_code == 412, "the holder is stale"
    assert {row.name: row.token for row in Fence.objects.all()} == {"row": newer, "signed:stock/7": newer}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic_requests", [True, False])
def test_the_token_is_stored_in_the_transaction_of_the_request(zoo, client, monkeypatch, atomic_requests):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic_requests)
    _, signed = sign("stock/7")
    with pytest.raises(ZeroDivisionError):
        post(client, "/fail/7/", signed)
    assert Fence.objects.exists() is not atomic_requests


@pytest.mark.django_db
def test_a_refusal_commits_nothing_that_was_written_before_it(rf):
    """Such as by a decorator above: the response is no exception."""
    view = require_fence("k")(lambda request: HttpResponse())
    with transaction.atomic():
        Account.objects.create(name="half")
        response = view(rf.post("/"))
    assert (response.status_code, response["Cache-Control"]) == (428, "no-store")
    assert not Account.objects.filter(name="half").exists()


def test_an_error_of_the_view_is_no_refusal(zoo, rf):
    @require_fence("stock/{sku}", store=MemoryTokens())
    def view(request, sku):
        raise StaleToken

    _, signed = sign("stock/7")
    with pytest.raises(StaleToken):
        view(rf.post("/", headers={"X-Fencing-Token": signed}), sku="7")


@pytest.mark.django_db(transaction=True)
def test_a_verified_token_fences_rows(zoo, rf):
    account = Account.objects.create(name="a")

    @transaction.atomic
    @require_fence("account", store=MemoryTokens())
    def deposit(request):
        account.fence(request.fence, refresh=True)
        Account.objects.filter(pk=account.pk).fenced(request.fence).update(balance=F("balance") + 1)
        return HttpResponse()

    older, signed = sign("account")
    assert deposit(rf.post("/", headers={"X-Fencing-Token": signed})).status_code == 200
    account.refresh_from_db()
    assert (account.balance, account.fencing_token) == (1, older)
    with zk_lock("account") as hold, transaction.atomic():
        hold.fence(account)
    with pytest.raises(StaleToken):  # the store has not seen the newer holder, but the row has
        deposit(rf.post("/", headers={"X-Fencing-Token": signed}))


def test_a_class_or_generator_is_refused_as_a_guarded_view():
    def stream(request):
        yield b""

    def view(request):
        return HttpResponse()

    decorators = [(View, "method_decorator"), (7, "a name first"), (stream, "generator")]
    for wrong, message in decorators:
        with pytest.raises(TypeError, match=message):
            require_fence("stock")(wrong)
    with pytest.raises(TypeError, match="needs the name"):
        require_fence(7)
    with pytest.raises(TypeError, match="without a request"):
        require_fence("stock")(lambda: None)()
    with pytest.raises(InvalidLockName, match=r"uses \{requst\}, but the call has request"):
        require_fence("stock/{requst}")(view)  # codespell:ignore
    with pytest.raises(ImproperlyConfigured, match="not a list of keys"):
        require_fence("stock", keys=["short"])


def test_a_guarded_view_is_still_the_view():
    def view(request, sku="7"):
        """Write."""
        return HttpResponse()

    view.csrf_exempt = True
    guarded = require_fence("stock/{sku}")(view)
    assert (guarded.__name__, guarded.__doc__, guarded.csrf_exempt) == ("view", "Write.", True)
    assert inspect.signature(guarded) == inspect.signature(view)
