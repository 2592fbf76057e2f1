"""The HTTP interface of the coordinator, by Django's clients and by its own description."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings
from jsonschema import Draft202012Validator
from support.zoo import Zoo, next_line

from django_zklock import conf, zk_lock
from django_zklock.contrib import leases
from django_zklock.contrib.leases import host as hosts
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.application import application
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.fencing.signing import unseal

pytestmark = pytest.mark.zookeeper

DESCRIPTION = json.loads(Path(leases.__file__).with_name("openapi.json").read_text())
WANTED = {"resource_path": "invoices/2026", "client_id": "curl"}


@pytest.fixture(autouse=True)
def _host(zoo: Zoo) -> Iterator[None]:
    """A host of its own for each test, as in a web worker of a project under development."""
    with override_settings(ROOT_URLCONF="django_zklock.contrib.leases.application", DEBUG=True):
        yield
        asyncio.run(hosts.current().run(_end_all, hosts.current().coordinator))
        hosts.current().stop()
        hosts.use(None)


async def _end_all(coordinator: Coordinator) -> None:
    """End all leases: no client waits for their ends any more."""
    for lease in list(coordinator._leases.values()):
        lease.end("the test is over")


def described(response: Any, path: str, method: str) -> Any:
    """Return the content of a response, which is as the description says."""
    about = DESCRIPTION["paths"][path][method]["responses"][str(response.status_code)]
    if "content" not in about:
        assert not response.content
        return None
    (content_type,) = about["content"]
    assert response["Content-Type"] == content_type
    name = about["content"][content_type]["schema"]["$ref"].rpartition("/")[2]
    answer = response.json()
    schema = {**DESCRIPTION["components"]["schemas"][name], "additionalProperties": False}
    Draft202012Validator(schema).validate(answer)
    return answer


def post(client: Client, **fields: Any) -> Any:
    """Ask for a lease."""
    return client.post("/locks/", {**WANTED, **fields}, content_type="application/json")


def test_the_life_of_a_lease(client: Client, zoo: Zoo) -> None:
    """In a sync project, where each request has a loop of its own."""
    response = post(client, session_timeout_ms=20_000, signed_token=True)
    assert response.status_code == 201
    lease = described(response, "/locks/", "post")
    assert response["Location"] == f"/locks/{lease['lease_id']}"
    assert lease["resource_path"] == "invoices/2026"
    assert int(lease["fencing_token"]) == zoo.client.exists(lease["acquired_znode_path"]).czxid
    assert unseal(lease["signed_token"], conf.token_keys()).token == int(lease["fencing_token"])
    for method in ("get", "put"):
        kept = described(getattr(client, method)(response["Location"]), "/locks/{lease_id}", method)
        assert kept["fencing_token"] == lease["fencing_token"]
        assert 0 < kept["lease_duration_ms"] <= 4000
    ended = client.delete(response["Location"])
    assert (ended.status_code, described(ended, "/locks/{lease_id}", "delete")) == (204, None)
    assert zoo.children("invoices/2026") == []
    for method in ("get", "put", "delete"):
        over = getattr(client, method)(response["Location"])
        assert over.status_code == 404
        assert "over" in described(over, "/locks/{lease_id}", method)["detail"]


def test_a_busy_lock_is_refused_over_http(client: Client) -> None:
    with zk_lock("invoices/2026", what="the nightly run"):
        response = post(client, wait_limit_ms=200)
        assert response.status_code == 409
        assert response["Retry-After"] == "1"
        assert "the nightly run" in described(response, "/locks/", "post")["detail"]


async def test_a_client_that_disconnects_leaves_the_queue_of_the_lock(async_client: AsyncClient, zoo: Zoo) -> None:
    async with zk_lock("invoices/2026"):
        call = asyncio.ensure_future(
            async_client.post("/locks/", {**WANTED, "wait_limit_ms": 20_000}, content_type="application/json")
        )
        await asyncio.to_thread(zoo.wait_contenders, "invoices/2026", 2)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.to_thread(zoo.wait_contenders, "invoices/2026", 1)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("[" * 10_000, "not JSON"),
        ('{"resource_path": 7, "client_id": "x"}', "resource_path is not a string"),
        ('{"resource_path": "a", "client_id": "x", "limit": true}', "limit is not a whole number"),
        ('{"resource_path": "a", "client_id": "x", "session_timeout_ms": -1}', "whole number from 0"),
        ('{"resource_path": "a", "client_id": "x", "session_timeout_ms": 1e3}', "whole number"),
        ('{"resource_path": "a", "client_id": "x", "ttl": 5}', "Unknown field 'ttl'"),
        ('{"resource_path": "\\ud800", "client_id": "x"}', "surrogate"),
        ('{"resource_path": "a", "client_id": "%s"}' % ("x" * 20_000), "more than 16384 bytes"),
    ],
)
def test_an_invalid_body_is_refused(client: Client, body: str, detail: str) -> None:
    response = client.post("/locks/", body, content_type="application/json")
    assert response.status_code == 400
    assert detail in described(response, "/locks/", "post")["detail"]


async def test_a_body_that_is_too_long_is_refused_before_it_has_arrived(zoo: Zoo) -> None:
    """Or anybody could fill the disk on which bodies are stored."""
    answer: asyncio.Queue[Any] = asyncio.Queue()
    chunks = iter([b" " * 20_000] * 2)

    async def receive() -> dict[str, Any]:
        for chunk in chunks:
            return {"type": "http.request", "body": chunk, "more_body": True}
        return await asyncio.Future()  # the client is slow

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/locks/", "headers": headers, "query_string": b""}
    call = asyncio.ensure_future(application(scope, receive, answer.put))
    assert (await asyncio.wait_for(answer.get(), 10))["status"] == 400
    assert b"16384 bytes" in (await answer.get())["body"]
    await asyncio.wait_for(call, 10)


def test_a_form_of_another_site_is_refused(client: Client) -> None:
    response = Client(enforce_csrf_checks=True).post("/locks/", json.dumps(WANTED), content_type="text/plain")
    assert response.status_code == 400
    assert Client(enforce_csrf_checks=True).post("/locks/", WANTED, content_type="application/json").status_code == 201


def test_a_lease_of_another_coordinator_is_refused_with_its_name(client: Client) -> None:
    response = client.put("/locks/00000000.1.abc")
    assert response.status_code == 421
    assert "from 00000000" in described(response, "/locks/{lease_id}", "put")["detail"]


def test_only_known_clients_are_served(client: Client, zoo: Zoo) -> None:
    settings = {"CLIENTS": {"billing": {"TOKENS": [hash_of("secret")], "PREFIXES": ["invoices"]}}}
    with zoo.configured(LEASES=settings):
        response = post(client)
        assert response.status_code == 401
        assert response["WWW-Authenticate"] == "Bearer"
        described(response, "/locks/", "post")
        known = Client(headers={"authorization": "Bearer secret"})
        assert post(known).status_code == 201
        response = post(known, resource_path="orders/1")
        assert response.status_code == 403
        described(response, "/locks/", "post")
        hosts.current().stop()
        hosts.use(None)


def test_a_client_at_its_limit_is_told_when_to_try_again(zoo: Zoo) -> None:
    with zoo.configured(LEASES={"CLIENTS": {"billing": {"TOKENS": [hash_of("secret")], "MAX_LEASES": 0}}}):
        response = post(Client(headers={"authorization": "Bearer secret"}))
        assert (response.status_code, response["Retry-After"]) == (429, "1")
        described(response, "/locks/", "post")
        hosts.current().stop()
        hosts.use(None)


@override_settings(
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
def test_a_project_that_wants_a_login_for_all_views_serves_programs(client: Client) -> None:
    assert post(client).status_code == 201
    assert client.get("/locks/openapi.json").status_code == 200


@override_settings(DEBUG=False)
def test_without_clients_nobody_is_served_in_production(client: Client) -> None:
    assert post(client).status_code == 401


def test_the_openapi_description_is_served(client: Client) -> None:
    assert client.get("/locks/openapi.json").json() == DESCRIPTION


ENDING = """
import time
from django.conf import settings
from django.test import Client
settings.DEBUG = True
settings.ROOT_URLCONF = "django_zklock.contrib.leases.application"
body = {"resource_path": "a", "client_id": "x", "session_timeout_ms": 60000}
lease = Client().post("/locks/", body, content_type="application/json").json()
print(time.monotonic() + lease["lease_duration_ms"] / 1000, flush=True)
"""


def test_a_worker_that_ends_releases_no_lease_before_its_end(zoo: Zoo) -> None:
    """Its clients do not know that it ends."""
    with zoo.running(ENDING) as worker:
        end = float(next_line(worker))
        zoo.wait_contenders("a", 0, timeout=20)
        assert time.monotonic() >= end - 0.1  # it was counted a moment later
        assert worker.wait(20) == 0
