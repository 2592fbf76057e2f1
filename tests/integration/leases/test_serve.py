"""`manage.py zklock serve`: what it refuses, how it ends, and many requests at once."""

import asyncio
import shutil
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.certificates import authority, certificate
from support.coordinators import KEY
from support.locking import ending, zklock
from support.serving import Serving
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--grpc", "0.0.0.0:0"], 1, "there are no clients in the settings"),
        (["--tls-key", "key.pem"], 2, "--tls-certificate and --tls-key together"),
        (["--tls-client-ca", "ca.pem"], 2, "needs --tls-certificate"),
        (["--tls-key", "key.pem", "--tls-certificate", "none.pem"], 1, "No such file"),
        (["--grpc", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["--advertise", "locks-1:50051"], 2, "is not a host. The port is that of --grpc"),
    ],
)
def test_serve_refuses_invalid_options(zoo, options, status, message):
    ended, _, said = ending("serve", *options)
    assert (ended, message in said) == (status, True), said


def test_serve_creates_a_new_token(zoo):
    token, hashed = (line.rpartition(" ")[2] for line in zklock("serve", "--new-token").splitlines())
    assert hash_of(token) == hashed
    assert len(token) > 40


def test_serve_refuses_a_port_in_use(zoo):
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listener:
        status, _, message = ending("serve", "--grpc", f"127.0.0.1:{listener.getsockname()[1]}")
        assert (status, "cannot be used" in message) == (1, True), message


def test_the_coordinator_serves_until_its_leases_end(zoo):
    with Serving(zoo, session_timeout=20) as serving, grpc.insecure_channel(serving.address) as channel:
        stub = pb_grpc.LockCoordinatorStub(channel)
        wanted = pb.RecordLockRequest(resource_path="a", client_id="x", session_timeout_ms=4000)
        lease = stub.RecordLock(wanted, timeout=20)
        asked = time.monotonic()
        assert next(_keep(channel, lease.lease_id)).state == pb.LeaseState.STATE_HELD
        assert serving.drain() == 0
        assert 3.5 <= time.monotonic() - asked < 25
        assert zoo.children("a") == []


def test_a_second_signal_waits_for_the_announced_ends_of_leases_only(zoo):
    with Serving(zoo, session_timeout=6) as serving, grpc.insecure_channel(serving.address) as channel:
        stub = pb_grpc.LockCoordinatorStub(channel)
        wanted = pb.RecordLockRequest(resource_path="a", client_id="x", session_timeout_ms=60_000)
        lease = stub.RecordLock(wanted, timeout=20)
        answered = time.monotonic()
        streams = [stub.KeepAlive(_never(lease.lease_id)) for _ in range(5)]
        for stream in streams:
            assert next(stream).state == pb.LeaseState.STATE_HELD
        health = health_pb2_grpc.HealthStub(channel)
        assert next(health.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        serving.process.send_signal(signal.SIGINT)
        eventually(lambda: _refuses(stub))
        assert serving.drain() == 0
        assert time.monotonic() >= answered + lease.lease_duration_ms / 1000 - 0.5
        assert serving.log().splitlines()[-1] == "Stopped."
        assert "Error" not in serving.log()
        assert zoo.children("a") == []


def test_a_renewed_certificate_is_served_to_new_connections(zoo, tmp_path):
    """And the authority of clients with it. Files that do not belong together change nothing."""
    tls = [tmp_path / name for name in ("server.pem", "server.key", "clients.pem")]
    certificates = {}
    for name in ("first", "second"):
        authority(tmp_path, f"{name}-ca")
        certificates[name] = ssl.PEM_cert_to_DER_cert(certificate(tmp_path, name, f"{name}-ca")[1].decode())
    names = ("--tls-certificate", "--tls-key", "--tls-client-ca")
    options = [word for name, path in zip(names, tls, strict=True) for word in (name, str(path))]

    def install(certificate, key):
        sources = (f"{certificate}.pem", f"{key}.key", f"{certificate}-ca.pem")
        for source, target in zip(sources, tls, strict=True):
            shutil.copy(tmp_path / source, tmp_path / "new")
            (tmp_path / "new").replace(target)

    def served(client):
        context = ssl.create_default_context(cafile=str(tmp_path / f"{client}-ca.pem"))
        context.check_hostname = False
        context.load_cert_chain(tmp_path / f"{client}.pem", tmp_path / f"{client}.key")
        return _certificate_of(serving.port, context)

    install("first", "first")
    with Serving(zoo, *options) as serving:
        assert served("first") == certificates["first"]
        install("second", "first")
        serving.process.send_signal(signal.SIGHUP)
        eventually(lambda: "cannot be used" in serving.log())
        assert served("first") == certificates["first"]
        install("second", "second")
        serving.process.send_signal(signal.SIGHUP)
        eventually(lambda: served("second") == certificates["second"])
        assert served("first") is None
        assert serving.drain() == 0


def _certificate_of(port, context):
    """Return the certificate of a server; None if it is not valid, or the server does not take that of the client."""
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as tls:
            tls.recv(1)  # with TLS 1.3, the refusal of a certificate comes after the handshake
            return tls.getpeercert(binary_form=True)
    except (ssl.SSLError, ConnectionError):
        return None


def _never(lease_id):
    yield pb.KeepAliveRequest(lease_id=lease_id)
    threading.Event().wait()


def test_a_coordinator_tells_that_the_leases_of_its_predecessor_are_over(zoo):
    with Serving(zoo) as serving:
        with grpc.insecure_channel(serving.address) as channel:
            stub = pb_grpc.LockCoordinatorStub(channel)
            lease = stub.RecordLock(pb.RecordLockRequest(resource_path="a", client_id="x"), timeout=20)
        serving.kill()
        serving.start()
        with grpc.insecure_channel(serving.address) as channel:
            state = next(_keep(channel, lease.lease_id))
            assert state.state == pb.LeaseState.STATE_OVER
            assert "has ended" in state.detail
        zoo.wait_contenders("a", 0, timeout=30)


def _keep(channel, lease_id):
    stub = pb_grpc.LockCoordinatorStub(channel)
    states = stub.KeepAlive(iter([pb.KeepAliveRequest(lease_id=lease_id)]), timeout=20)
    return states


def _refuses(stub):
    try:
        stub.RecordLock(pb.RecordLockRequest(resource_path="b", client_id="x"), timeout=20)
    except grpc.RpcError as error:
        return "about to end" in str(error)
    return False


async def test_a_call_that_waits_costs_no_thread(zoo):
    with Serving(zoo, session_timeout=20) as serving, grpc.insecure_channel(serving.address) as channel:
        record_lock = pb_grpc.LockCoordinatorStub(channel).RecordLock
        async with zk_lock(KEY):
            await asyncio.to_thread(record_lock, pb.RecordLockRequest(resource_path=KEY, client_id="x"))
            before = _threads(serving)
            # The last one may get the lock before its end is seen. Then its lease runs out, which the drain waits for.
            waiting = pb.RecordLockRequest(
                resource_path=KEY, client_id="x", wait_blocking=True, wait_limit_ms=25_000, session_timeout_ms=1000
            )
            calls = [record_lock.future(waiting) for _ in range(100)]
            for call in calls:
                await asyncio.to_thread(call.initial_metadata)  # it waits in the queue
            assert _threads(serving) <= before + 5
            for call in calls:
                call.cancel()
        assert await asyncio.to_thread(serving.drain) == 0


def _threads(serving):
    status = Path(f"/proc/{serving.process.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])
