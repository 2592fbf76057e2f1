"""The gRPC service: its answers, its streams, and what it refuses."""

import asyncio
import time

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.certificates import authority, certificate
from support.coordinators import KEY, Served, stub_of
from support.proxy import Proxy

from django_zklock import zk_lock
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.certificate import Certificate
from django_zklock.contrib.leases.options import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.service import OPTIONS, SERVICE
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb

HELD, OVER = pb.LeaseState.STATE_HELD, pb.LeaseState.STATE_OVER


@pytest_asyncio.fixture
async def served(zoo):
    async with Served(LeaseOptions()) as served:
        yield served


async def refused(call, status):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is status
    return caught.value.details() or ""


async def test_the_life_of_a_lease(zoo, served):
    lease = await served.acquire(session_timeout_ms=20_000, signed_token=True)
    assert lease.acquired
    assert lease.fencing_token == zoo.client.exists(lease.acquired_znode_path).czxid
    assert lease.signed_token
    assert 0 < lease.lease_duration_ms <= 8000
    assert abs(lease.lease_expires_at - (time.time() * 1000 + lease.lease_duration_ms)) < 5000
    request = pb.ReleaseLockRequest(lease_id=lease.lease_id)
    assert (await served.stub.ReleaseLock(request)).released
    assert not (await served.stub.ReleaseLock(request)).released
    assert zoo.children(KEY) == []


async def test_without_the_app_of_tokens_a_signed_one_is_refused_before_the_lock(zoo, served, settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_zklock.contrib.tokens"]
    details = await refused(served.acquire(signed_token=True), grpc.StatusCode.INVALID_ARGUMENT)
    assert "signed_token needs django_zklock.contrib.tokens" in details
    assert zoo.children(KEY) == []


async def test_a_busy_lock_has_a_place_and_its_holder(served):
    await served.acquire()
    busy = await served.acquire()
    assert (busy.acquired, busy.place) == (False, 1)
    assert "node-1" in busy.detail


async def test_one_stream_renews_many_leases_and_reports_their_ends(zoo, served):
    leases = [await served.acquire(f"many/{number}", session_timeout_ms=3000) for number in range(3)]
    stream = served.stub.KeepAlive()
    until = time.monotonic() + 4
    while time.monotonic() < until:
        for lease in leases:
            await stream.write(pb.KeepAliveRequest(lease_id=lease.lease_id))
            state = await stream.read()
            assert (state.lease_id, state.state) == (lease.lease_id, HELD)
            assert state.lease_duration_ms > 0
        await asyncio.sleep(0.2)
    await served.stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=leases[0].lease_id))
    over = await asyncio.wait_for(stream.read(), 10)
    assert (over.lease_id, over.state, over.detail) == (leases[0].lease_id, OVER, "the client has released it")
    stream.cancel()


async def test_an_open_stream_alone_renews_no_lease(zoo, served):
    lease = await served.acquire(session_timeout_ms=2500)
    stream = served.stub.KeepAlive()
    await stream.write(pb.KeepAliveRequest(lease_id=lease.lease_id))
    states = [await stream.read(), await asyncio.wait_for(stream.read(), 20)]
    assert [state.state for state in states] == [HELD, OVER]
    assert states[-1].detail == "it was not kept in time"
    stream.cancel()


async def test_a_client_that_closes_its_stream_leaves_the_queue(zoo, served):
    async with zk_lock(KEY):
        request = pb.RecordLockRequest(resource_path=KEY, client_id="node-1", wait_blocking=True)
        call = served.stub.RecordLock(request, timeout=20)
        ended = asyncio.ensure_future(call.code())
        await asyncio.to_thread(zoo.wait_contenders, KEY, 2)
        call.cancel()
        assert await ended is grpc.StatusCode.CANCELLED
        await asyncio.to_thread(zoo.wait_contenders, KEY, 1)
    assert (await served.acquire()).acquired


async def test_wrong_requests_are_refused_with_a_sentence(zoo, served):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert "from 100" in await refused(served.acquire(session_timeout_ms=-1), invalid)
    assert "wait_blocking" in await refused(served.acquire(wait_limit_ms=5), invalid)
    assert "kind" in await refused(served.acquire(kind=17), invalid)
    assert "empty" in await refused(served.acquire(""), invalid)
    too_large = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger" in await refused(served.acquire("x" * 100_000), too_large)


async def test_a_client_is_known_by_its_certificate(zoo, tmp_path):
    ca = authority(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    known, unknown = certificate(tmp_path, "billing.internal", "ca"), certificate(tmp_path, "stranger", "ca")
    authority(tmp_path, "other")
    forged = certificate(tmp_path, "billing.internal", "other")
    client = LeaseClient(name="billing", certificates=("billing.internal",))
    tls = Certificate(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    async with Served(LeaseOptions(clients={"billing": client}), tls) as served:

        async def acquire(key, chain):
            channel = grpc.aio.secure_channel(served.address, grpc.ssl_channel_credentials(ca, key, chain))
            async with channel:
                request = pb.RecordLockRequest(resource_path=KEY, client_id="x")
                return await stub_of(channel).RecordLock(request, timeout=10)

        assert (await acquire(*known)).acquired
        await refused(acquire(*unknown), grpc.StatusCode.UNAUTHENTICATED)
        for stranger in (forged, (None, None)):
            await refused(acquire(*stranger), grpc.StatusCode.UNAVAILABLE)
        await refused(served.acquire(), grpc.StatusCode.UNAVAILABLE)  # without TLS


async def test_the_health_follows_the_connection_to_zookeeper(zoo):
    """A balancer sends no clients where no lock can be given, nor to a coordinator that is about to end."""
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address):
        async with Served(LeaseOptions()) as served:
            health = health_pb2_grpc.HealthStub(served.channel)

            async def reported(status):
                async for answer in health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=20):
                    if answer.status == status:
                        return

            await reported(serving)
            proxy.refuse = True
            proxy.cut_all()
            await reported(not_serving)
            proxy.refuse = False
            await reported(serving)
            await served.server.announce_end()
            await reported(not_serving)


async def test_reflection_lists_the_services(zoo, served):
    def reflect():
        with grpc.insecure_channel(served.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            service = descriptor_pool.DescriptorPool(database).FindServiceByName(SERVICE)
            return [method.name for method in service.methods]

    assert await asyncio.to_thread(reflect) == ["RecordLock", "KeepAlive", "ReleaseLock"]


SECRET = (("authorization", "Bearer secret"),)


@pytest_asyncio.fixture
async def flooded(zoo):
    """A coordinator at which a client has asked far too often for locks. It has three leases from before."""
    busy = LeaseClient(name="busy", tokens=(hash_of("secret"),), max_rate=4.0)
    async with Served(LeaseOptions(clients={"busy": busy})) as served:
        leases = [(await _record(served, resource, SECRET)).lease_id for resource in ("a", "b", "c")]
        flood = [asyncio.ensure_future(_record(served, "busy", SECRET)) for _ in range(60)]
        while sum(call.done() for call in flood) < 2:
            await asyncio.sleep(0.01)
        yield served, leases
        assert sum(call.done() for call in flood) < 30
        for call in flood:
            call.cancel()
        await asyncio.wait(flood)


async def test_keeping_or_ending_a_lease_does_not_wait_behind_requests_for_locks(flooded):
    """Nor does it at the next stream or connection of the client."""
    served, leases = flooded
    stream = served.stub.KeepAlive(metadata=SECRET)
    for lease_id in leases:
        await stream.write(pb.KeepAliveRequest(lease_id=lease_id))
        assert (await stream.read()).state == HELD
    for lease_id in leases:
        assert (await served.stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease_id), metadata=SECRET)).released
    stream.cancel()


async def _record(served, resource, metadata):
    request = pb.RecordLockRequest(resource_path=resource, client_id="x", session_timeout_ms=30_000)
    return await served.stub.RecordLock(request, metadata=metadata)


async def test_the_headers_say_that_a_call_waits_in_the_queue(served):
    async with zk_lock(KEY):
        request = pb.RecordLockRequest(resource_path=KEY, client_id="x", wait_blocking=True)
        record_lock = served.channel.unary_stream(f"/{SERVICE}/RecordLock")
        call = record_lock(request.SerializeToString())
        assert dict(await asyncio.wait_for(call.initial_metadata(), 20))["zklock-queued"] == "true"
        call.cancel()


async def test_the_streams_of_a_client_are_bounded(zoo):
    billing = LeaseClient(name="billing", tokens=(hash_of("secret"),), max_waiting=1)
    async with Served(LeaseOptions(clients={"billing": billing})) as served:
        metadata = (("authorization", "Bearer secret"),)
        lease = await served.stub.RecordLock(pb.RecordLockRequest(resource_path=KEY, client_id="x"), metadata=metadata)
        wanted = pb.KeepAliveRequest(lease_id=lease.lease_id)
        first, second = (served.stub.KeepAlive(metadata=metadata) for _ in range(2))
        await first.write(wanted)
        assert (await first.read()).state == HELD
        assert "1 open streams" in await refused(second.read(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        await first.done_writing()
        assert await first.read() is grpc.aio.EOF
        third = served.stub.KeepAlive(metadata=metadata)
        await third.write(wanted)
        assert (await third.read()).state == HELD


OPEN_METHODS = [
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


@pytest.mark.parametrize("method", OPEN_METHODS)
async def test_calls_without_a_token_are_bounded(zoo, monkeypatch, method):
    """It is the same if they send no message. Other methods go on."""
    monkeypatch.setattr("django_zklock.contrib.leases.service.MOST_OPEN", 3)
    billing = LeaseClient(name="billing", tokens=(hash_of("secret"),))
    async with Served(LeaseOptions(clients={"billing": billing})) as served:
        calls = [served.channel.stream_stream(f"/{method}")() for _ in range(10)]
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        while sum(code.done() for code in codes) < 7:
            await asyncio.sleep(0.01)
        assert {code.result() for code in codes if code.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        health = health_pb2_grpc.HealthStub(served.channel)
        if method == OPEN_METHODS[0]:
            assert (await health.Watch(health_pb2.HealthCheckRequest()).read()).status
        else:
            assert (await health.Check(health_pb2.HealthCheckRequest())).status
        assert (await _record(served, KEY, SECRET)).acquired
        for call in calls:
            call.cancel()
        await asyncio.wait(codes)
        again = served.channel.stream_stream(f"/{method}")()
        await again.done_writing()
        assert await again.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_health_of_an_unknown_service_is_not_found(served):
    health = health_pb2_grpc.HealthStub(served.channel)
    await refused(health.Check(health_pb2.HealthCheckRequest(service="x")), grpc.StatusCode.NOT_FOUND)
    unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    stream = health.Watch(health_pb2.HealthCheckRequest(service="x"))
    assert (await stream.read()).status == unknown
    stream.cancel()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("sent", [b"", PREFACE])
async def test_a_connection_that_makes_no_call_ends(zoo, monkeypatch, sent):
    monkeypatch.setitem(OPTIONS, "grpc.server_handshake_timeout_ms", 500)
    monkeypatch.setitem(OPTIONS, "grpc.max_connection_idle_ms", 1000)
    async with Served(LeaseOptions()) as served:
        reader, writer = await asyncio.open_connection("localhost", served.server.port)
        writer.write(sent)
        while await asyncio.wait_for(reader.read(1000), 10):
            pass  # the settings of HTTP/2, and its goodbye
        writer.close()


async def _raw(served, method, message, authorization=""):
    call = served.channel.stream_stream(f"/{SERVICE}/{method}")(metadata=(("authorization", authorization),))
    await call.write(message)
    await call.done_writing()
    return await call.read()


@pytest.mark.parametrize("method", ["RecordLock", "KeepAlive", "ReleaseLock"])
async def test_a_malformed_message_is_an_invalid_request(zoo, caplog, method):
    billing = LeaseClient(name="billing", tokens=(hash_of("secret"),))
    async with Served(LeaseOptions(clients={"billing": billing})) as served:
        known = _raw(served, method, b"\xff" * 9, "Bearer secret")
        assert "no " in await refused(known, grpc.StatusCode.INVALID_ARGUMENT)
        await refused(_raw(served, method, b"\xff" * 9), grpc.StatusCode.UNAUTHENTICATED)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_call_without_a_message_is_refused_in_time(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.service.REQUEST_TIMEOUT", 0.3)
    async with Served(LeaseOptions()) as served:
        call = served.channel.stream_stream(f"/{SERVICE}/RecordLock")()
        assert "no message within" in await refused(call.read(), grpc.StatusCode.INVALID_ARGUMENT)


async def test_the_refusal_of_a_lease_from_elsewhere_says_where(zoo, served):
    async with Served(LeaseOptions()) as other:
        other.coordinator.advertise("locks-2.example.com:50051")
        lease = await other.acquire()
        stream = served.stub.KeepAlive()
        await stream.write(pb.KeepAliveRequest(lease_id=lease.lease_id))
        for call in (served.stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease.lease_id)), stream.read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            metadata = dict(caught.value.trailing_metadata())
            assert metadata["zklock-code"] == "lease-elsewhere"
            assert metadata["zklock-address"] == "locks-2.example.com:50051"
