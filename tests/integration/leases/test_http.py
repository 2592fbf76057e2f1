"""The HTTP interface of the coordinator, by its own description, and its connections, which certificates guard."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import pytest_asyncio
from django.test import override_settings
from jsonschema import Draft202012Validator
from support.certificates import authority, certificate
from support.coordinators import KEY, HttpConnection, Served

from django_zklock import conf, zk_lock
from django_zklock.conf.leases import LeaseClient, LeaseOptions
from django_zklock.contrib import leases
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.certificate import Certificate
from django_zklock.contrib.leases.refusal import Addresses
from django_zklock.contrib.leases.service import OPTIONS
from django_zklock.fencing.signing import unseal

DESCRIPTION = json.loads(Path(leases.__file__).with_name("openapi.json").read_text())
WANTED = {"resource_path": KEY, "client_id": "curl"}
PROBLEM = "application/problem+json"


@pytest_asyncio.fixture
async def served(zoo):
    async with Served(LeaseOptions()) as served:
        yield served


def described(response, status, path="/locks/", method="post"):
    assert response.status == status, response.content
    about = DESCRIPTION["paths"][path][method]["responses"][str(status)]
    assert set(map(str.lower, about.get("headers", ()))) <= set(response.headers)
    if "content" not in about:
        assert response.content is None
        return None
    (content_type,) = about["content"]
    assert response.headers["content-type"] == content_type
    name = about["content"][content_type]["schema"]["$ref"].rpartition("/")[2]
    schema = {**DESCRIPTION["components"]["schemas"][name], "additionalProperties": False}
    Draft202012Validator(schema).validate(response.content)
    return response.content


async def post(served, authorization="", **fields):
    return await served.http("POST", "/locks/", {**WANTED, **fields}, authorization=authorization)


@pytest_asyncio.fixture
async def connection(served):
    async with HttpConnection(served.http_server.port) as connection:
        yield connection


async def test_the_life_of_a_lease(zoo, connection):
    wanted = {**WANTED, "session_timeout_ms": 20_000, "signed_token": True}
    response = await connection.request("POST", "/locks/", wanted)
    lease = described(response, 201)
    location = f"/locks/{lease['lease_id']}"
    assert response.headers["location"] == location.lower()
    assert lease["resource_path"] == KEY
    assert int(lease["fencing_token"]) == zoo.client.exists(lease["acquired_znode_path"]).czxid
    assert unseal(lease["signed_token"], conf.token_keys()).token == int(lease["fencing_token"])
    for method in ("get", "put"):
        kept = described(await connection.request(method.upper(), location), 200, "/locks/{lease_id}", method)
        assert kept["fencing_token"] == lease["fencing_token"]
        assert 0 < kept["lease_duration_ms"] <= 8000


async def test_a_lease_that_was_ended_is_over(zoo, connection):
    lease = described(await connection.request("POST", "/locks/", WANTED), 201)
    location = f"/locks/{lease['lease_id']}"
    ended = await connection.request("DELETE", location)
    assert described(ended, 204, "/locks/{lease_id}", "delete") is None
    assert zoo.children(KEY) == []
    for method in ("get", "put", "delete"):
        over = await connection.request(method.upper(), location)
        assert "over" in described(over, 404, "/locks/{lease_id}", method)["detail"]


async def test_a_busy_lock_is_refused_over_http(served):
    async with zk_lock(KEY, what="the nightly run"):
        response = await post(served, wait_limit_ms=200)
        detail = described(response, 409)["detail"]
        assert response.headers["retry-after"] == "1"
        assert "was not free in time" in detail
        assert "the nightly run" not in detail  # the holder is no lease of this client
    assert (await post(served, client_id="the first")).status == 201
    assert "the first" in described(await post(served), 409)["detail"]  # a lease of this client is named


async def test_a_client_that_disconnects_leaves_the_queue_of_the_lock(served, zoo):
    async with zk_lock(KEY):
        async with HttpConnection(served.http_server.port) as connection:
            connection.send("POST", "/locks/", {**WANTED, "wait_limit_ms": 20_000})
            await asyncio.to_thread(zoo.wait_contenders, KEY, 2)
        await asyncio.to_thread(zoo.wait_contenders, KEY, 1)
    assert (await post(served)).status == 201


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b"[" * 10_000, 400, "not JSON"),
        (b'"\xff"', 400, "not JSON"),
        (b'{"resource_path": 7, "client_id": "x"}', 400, "resource_path is not a string"),
        (b'{"resource_path": "a", "client_id": "x", "limit": true}', 400, "limit is not a whole number"),
        (b'{"resource_path": "a", "client_id": "x", "session_timeout_ms": -1}', 400, "whole number from 0"),
        (b'{"resource_path": "a", "client_id": "x", "session_timeout_ms": 1e3}', 400, "whole number"),
        (b'{"resource_path": "a", "client_id": "x", "wait_limit_ms": null}', 400, "whole number"),
        (b'{"resource_path": "a", "client_id": "x", "ttl": 5}', 400, "Unknown field 'ttl'"),
        (b'{"resource_path": "\\ud800", "client_id": "x"}', 400, "surrogate"),
        (b'{"client_id": "x"}', 400, "empty"),
        (b'{"resource_path": "a", "client_id": "%s"}' % (b"x" * 20_000), 413, "more than 16384 bytes"),
    ],
)
async def test_an_invalid_body_is_refused(served, body, status, detail):
    assert detail in described(await served.http("POST", "/locks/", body), status)["detail"]


async def test_a_form_of_another_site_is_refused(served):
    """A page may send a form to any address, and JSON as text, but not JSON as JSON."""
    described(await served.http("POST", "/locks/", WANTED, content_type="text/plain"), 415)


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/", 404, None),
        ("GET", "/locks", 404, None),
        ("GET", "/locks/a/b", 404, None),
        ("GET", "/locks/", 405, "post"),
        ("PATCH", "/locks/1.2.3", 405, "get, put, delete"),
        ("DELETE", "/locks/openapi.json", 405, "get"),
    ],
)
async def test_an_unknown_path_or_method_is_refused_with_problem_details(served, method, path, status, allowed):
    response = await served.http(method, path)
    assert (response.status, response.headers.get("allow")) == (status, allowed)
    assert response.headers["content-type"] == PROBLEM
    assert response.content["status"] == status
    assert response.content["detail"]


async def test_a_lease_of_another_coordinator_is_refused_with_its_address(served):
    other = Served(LeaseOptions())
    async with other:
        other.coordinator.advertise(Addresses(http="https://locks.example.com:8082"))
        lease = (await post(other)).content
        response = await served.http("PUT", f"/locks/{lease['lease_id']}")
        problem = described(response, 421, "/locks/{lease_id}", "put")
        assert problem["address"] == "https://locks.example.com:8082"
        assert f"from {other.coordinator.id}" in problem["detail"]
        for foreign in ("00000000.1.abc", f"{lease['lease_id']}x"):
            response = await served.http("PUT", f"/locks/{foreign}")
            assert "address" not in described(response, 421, "/locks/{lease_id}", "put"), "nobody has signed it"


async def test_a_lease_that_was_lost_is_over_for_a_reason(zoo, served):
    lease = (await post(served)).content
    zoo.client.delete(lease["acquired_znode_path"])
    path = f"/locks/{lease['lease_id']}"
    while (response := await served.http("PUT", path)).status == 200:
        await asyncio.sleep(0.02)
    assert "its znode was deleted" in described(response, 404, "/locks/{lease_id}", "put")["detail"]
    assert "its znode was deleted" in (await served.http("DELETE", path)).content["detail"]


async def test_only_known_clients_are_served(zoo):
    billing = LeaseClient(name="billing", tokens=(hash_of("secret"),), prefixes=("invoices",), max_leases=1)
    async with Served(LeaseOptions(clients={"billing": billing})) as served:
        response = await post(served)
        described(response, 401)
        assert response.headers["www-authenticate"] == "bearer"
        described(await post(served, "Bearer secret", resource_path="orders/1"), 403)
        headers = {"authorization": "Bearer secret", "host": "locks.example.com"}
        assert (await served.http("POST", "/locks/", WANTED, **headers)).status == 201
        response = await post(served, "Bearer secret", resource_path="invoices/2")
        described(response, 429)
        assert response.headers["retry-after"] == "1"


@override_settings(
    ALLOWED_HOSTS=["shop.example.com"],
    SECURE_SSL_REDIRECT=True,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ],
)
async def test_the_hosts_and_middleware_of_the_project_do_not_matter(served):
    assert (await post(served)).status == 201
    assert (await served.http("GET", "/locks/openapi.json")).content == DESCRIPTION


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 201),
        ("127.0.0.1:8082", 201),
        ("[::1]", 201),
        ("[::1]:8082", 201),
        ("evil.example", 400),
        ("localhost.evil.example:80", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
    ],
)
async def test_without_clients_only_this_machine_is_served(served, host, status):
    """Or a page whose name points to 127.0.0.1 could send requests from the browser of a developer."""
    described(await served.http("POST", "/locks/", WANTED, host=host), status)


# --- connections ------------------------------------------------------------------------------------------------------


POST = b"POST /locks/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("sent", [b"", POST, POST + b'content-length: 90\r\n\r\n{"resource'])
async def test_a_connection_that_brings_no_whole_request_ends(zoo, monkeypatch, sent):
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, HttpConnection(served.http_server.port) as connection:
        assert (await connection.request("GET", "/locks/1.2.3")).status == 421
        connection.writer.write(sent)
        assert await _is_ended(connection)
        async with HttpConnection(served.http_server.port) as new:
            new.writer.write(sent)
            assert await _is_ended(new)


async def _is_ended(connection):
    try:
        return await asyncio.wait_for(connection.reader.read(), 10) == b""
    except ConnectionResetError:
        return True


async def test_a_body_that_never_ends_is_refused_and_not_read(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, HttpConnection(served.http_server.port) as connection:
        connection.writer.write(POST + b"content-length: 99999999999\r\n\r\n" + b" " * 20_000)
        assert (await asyncio.wait_for(connection.response(), 10)).status == 413
        with pytest.raises(ConnectionError):
            while True:
                connection.writer.write(b" " * 20_000)
                await asyncio.wait_for(connection.writer.drain(), 10)


async def test_a_request_that_waits_for_a_lock_is_no_idle_connection(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, zk_lock(KEY):
        response = await served.http("POST", "/locks/", {**WANTED, "wait_limit_ms": 2500})
        assert response.status == 409


async def test_connections_are_bounded(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.MOST_CONNECTIONS", 2)
    async with (
        Served(LeaseOptions()) as served,
        HttpConnection(served.http_server.port) as first,
        HttpConnection(served.http_server.port),
    ):
        assert (await first.request("GET", "/locks/1.2.3")).status == 421
        async with HttpConnection(served.http_server.port) as third:
            assert await _is_ended(third)
        assert (await first.request("GET", "/locks/1.2.3")).status == 421


async def test_a_connection_counts_and_ends_during_the_tls_handshake_too(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.MOST_CONNECTIONS", 2)
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 2.0)
    authority(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    async with Served(LeaseOptions(), Certificate(tmp_path / "server.pem", tmp_path / "server.key", None)) as served:
        port = served.http_server.port
        async with HttpConnection(port) as silent, HttpConnection(port), HttpConnection(port) as third:
            assert await _is_ended(third)
            assert not silent.reader.at_eof()
            assert await _is_ended(silent)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        for _ in range(5):  # none that has ended still counts
            async with HttpConnection(port, context) as new:
                assert (await new.request("GET", "/locks/1.2.3")).status == 421


@pytest.mark.parametrize("sent", [b"", PREFACE])
async def test_a_connection_by_grpc_that_makes_no_call_ends(zoo, monkeypatch, sent):
    monkeypatch.setitem(OPTIONS, "grpc.server_handshake_timeout_ms", 500)
    monkeypatch.setitem(OPTIONS, "grpc.max_connection_idle_ms", 1000)
    async with Served(LeaseOptions()) as served, HttpConnection(served.server.port) as connection:
        connection.writer.write(sent)
        while await asyncio.wait_for(connection.reader.read(1000), 10):
            pass  # the settings of HTTP/2, and its goodbye


async def test_certificates_guard_http_and_name_its_clients(zoo, tmp_path):
    authority(tmp_path, "ca")
    authority(tmp_path, "other")
    certificate(tmp_path, "server", "ca")
    for name, signer in (("billing.internal", "ca"), ("stranger", "ca"), ("forged", "other")):
        certificate(tmp_path, name, signer)
    client = LeaseClient(name="billing", certificates=("billing.internal",))
    tls = Certificate(*(tmp_path / name for name in ("server.pem", "server.key", "ca.pem")))
    async with Served(LeaseOptions(clients={"billing": client}), tls) as served:

        async def status(name):
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            if name:
                context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            async with HttpConnection(served.http_server.port, context) as connection:
                return (await connection.request("POST", "/locks/", WANTED)).status

        assert await status("billing.internal") == 201
        assert await status("stranger") == 401
        for stranger in ("forged", None):
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await status(stranger)
