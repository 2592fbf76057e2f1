"""A coordinator on the loop of the test, with its gRPC server."""

from __future__ import annotations

import asyncio

import grpc

from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.coordinator import Coordinator
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
        self.server = Server(self.coordinator, Access(options), "127.0.0.1:0", certificate)
        self.address = f"localhost:{self.server.port}"
        self.channel = grpc.aio.insecure_channel(self.address)
        self.stub = stub_of(self.channel)

    async def acquire(self, resource=KEY, **more):
        request = pb.RecordLockRequest(resource_path=resource, client_id="node-1", **more)
        return await self.stub.RecordLock(request, timeout=20)

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        for lease in list(self.coordinator._leases):
            lease.end("the test is over")
        await asyncio.wait_for(self.coordinator.drain(), 20)
        await self.channel.close()
        await self.server.stop()
