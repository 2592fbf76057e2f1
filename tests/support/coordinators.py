"""A coordinator on the loop of the test, with its gRPC and its HTTP server; and a connection to the latter."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import grpc

from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.http import HttpApplication
from django_zklock.contrib.leases.http_server import HttpServer
from django_zklock.contrib.leases.service import Server
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc

KEY = "invoices/2026"


def stub_of(channel):
    """Return the stub of the service; the generated one has no types."""
    return pb_grpc.LockCoordinatorStub(channel)


class Served:
    def __init__(self, options, certificate=None):
        self.coordinator = Coordinator()
        access = Access(options)
        self.server = Server(self.coordinator, access, "127.0.0.1:0", certificate)
        self.http_server = HttpServer(HttpApplication(self.coordinator, access), "127.0.0.1:0", certificate)
        self.address = f"localhost:{self.server.port}"
        self.channel = grpc.aio.insecure_channel(self.address)
        self.stub = stub_of(self.channel)

    async def acquire(self, resource=KEY, **more):
        request = pb.RecordLockRequest(resource_path=resource, client_id="node-1", **more)
        return await self.stub.RecordLock(request, timeout=20)

    async def http(self, method, path, content=None, **headers):
        async with HttpConnection(self.http_server.port) as connection:
            return await connection.request(method, path, content, **headers)

    async def __aenter__(self):
        await self.server.start()
        self._serving = asyncio.ensure_future(self.http_server.serve())
        return self

    async def __aexit__(self, *_):
        for lease in list(self.coordinator._leases.values()):
            lease.end("the test is over")
        await asyncio.wait_for(self.coordinator.drain(), 20)
        await self.channel.close()
        await self.server.stop()
        self.http_server.stop()
        await asyncio.wait_for(self._serving, 20)


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    content: Any  # from JSON; None if there is no body


class HttpConnection:
    """A connection to a coordinator, which is kept; each request waits for its response."""

    def __init__(self, port, tls=None):
        self._port = port
        self._tls = tls

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("localhost", self._port, ssl=self._tls)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def request(self, method, path, content=None, **headers):
        """Send a request, whose content becomes JSON unless it is bytes; return the response."""
        self.send(method, path, content, **headers)
        return await asyncio.wait_for(self.response(), 30)

    def send(self, method, path, content=None, **headers):
        body = b"" if content is None else content
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        fields = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def response(self):
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Response(int(status.split()[1]), headers, json.loads(body) if body else None)
