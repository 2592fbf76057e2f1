"""Connections: those that say nothing end, and certificates guard them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from support.certificates import authority, certificate
from support.coordinators import KEY, HttpConnection, Served
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.conf.leases import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.service import OPTIONS

pytestmark = pytest.mark.zookeeper

WANTED = {"resource_path": KEY, "client_id": "curl"}
POST = b"POST /locks/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("sent", [b"", POST, POST + b'content-length: 90\r\n\r\n{"resource'])
async def test_a_connection_that_brings_no_whole_request_ends(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, HttpConnection(served.http_server.port) as connection:
        assert (await connection.request("GET", "/locks/1.2.3")).status == 421
        connection.writer.write(sent)
        assert await _is_ended(connection)
        async with HttpConnection(served.http_server.port) as new:
            new.writer.write(sent)
            assert await _is_ended(new)


async def _is_ended(connection: HttpConnection) -> bool:
    try:
        return await asyncio.wait_for(connection.reader.read(), 10) == b""
    except ConnectionResetError:
        return True


async def test_a_body_that_never_ends_is_refused_and_not_read(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, HttpConnection(served.http_server.port) as connection:
        connection.writer.write(POST + b"content-length: 99999999999\r\n\r\n" + b" " * 20_000)
        assert (await asyncio.wait_for(connection.response(), 10)).status == 413
        with pytest.raises(ConnectionError):
            while True:
                connection.writer.write(b" " * 20_000)
                await asyncio.wait_for(connection.writer.drain(), 10)


async def test_a_request_that_waits_for_a_lock_is_no_idle_connection(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_zklock.contrib.leases.http_server.REQUEST_TIMEOUT", 1.0)
    async with Served(LeaseOptions()) as served, zk_lock(KEY):
        response = await served.http("POST", "/locks/", {**WANTED, "wait_limit_ms": 2500})
        assert response.status == 409


async def test_connections_are_bounded(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("sent", [b"", PREFACE])
async def test_a_connection_by_grpc_that_makes_no_call_ends(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setitem(OPTIONS, "grpc.server_handshake_timeout_ms", 500)
    monkeypatch.setitem(OPTIONS, "grpc.max_connection_idle_ms", 1000)
    async with Served(LeaseOptions()) as served, HttpConnection(served.server.port) as connection:
        connection.writer.write(sent)
        while await asyncio.wait_for(connection.reader.read(1000), 10):
            pass  # the settings of HTTP/2, and its goodbye


async def test_certificates_guard_http_and_name_its_clients(zoo: Zoo, tmp_path: Path) -> None:
    authority(tmp_path, "ca")
    authority(tmp_path, "other")
    certificate(tmp_path, "server", "ca")
    for name, signer in (("billing.internal", "ca"), ("stranger", "ca"), ("forged", "other")):
        certificate(tmp_path, name, signer)
    client = LeaseClient(name="billing", certificates=("billing.internal",))
    tls = tuple(tmp_path / name for name in ("server.pem", "server.key", "ca.pem"))
    async with Served(LeaseOptions(clients={"billing": client}), tls=tls) as served:

        async def status(name: str | None) -> int:
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
