"""The HTTP interface of `manage.py zklock serve`, by its own description."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import psutil
import pytest
from jsonschema import Draft202012Validator
from support.certificates import authority, certificate
from support.ensemble import Ensemble
from support.serving import Serving
from support.zoo import Zoo, eventually

from django_zklock.contrib import leases
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2_grpc as pb_grpc

pytestmark = pytest.mark.zookeeper

DESCRIPTION = json.loads(Path(leases.__file__).with_name("openapi.json").read_text())
WANTED = {"resource_path": "invoices/2026", "client_id": "curl"}


class Answer:
    """A response, with its body read."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def described(self, path: str, method: str) -> Any:
        """Return the content, which is as the description says."""
        about = DESCRIPTION["paths"][path][method]["responses"][str(self.status)]
        if "content" not in about:
            assert not self.body
            return None
        (content_type,) = about["content"]
        assert self.headers["Content-Type"] == content_type
        name = about["content"][content_type]["schema"]["$ref"].rpartition("/")[2]
        schema = {**DESCRIPTION["components"]["schemas"][name], "additionalProperties": False}
        answer = json.loads(self.body)
        Draft202012Validator(schema).validate(answer)
        return answer


class Web:
    """A client on one connection; a fixture closes all."""

    connections: ClassVar[list[http.client.HTTPConnection]] = []

    def __init__(self, port: int, context: ssl.SSLContext | None = None, **headers: str) -> None:
        self._connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            if context is None
            else http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
        )
        self.connections.append(self._connection)
        self._headers = {"Content-Type": "application/json", **headers}

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        self._connection.request(method, path, text, {**self._headers, **headers})
        return Answer(self._connection.getresponse())

    def post(self, **fields: Any) -> Answer:
        """Ask for a lease."""
        return self("POST", "/locks/", {**WANTED, **fields})


@pytest.fixture(autouse=True)
def _connections_closed() -> Iterator[None]:
    """Close all connections after each test."""
    yield
    while Web.connections:
        Web.connections.pop().close()


@pytest.fixture(scope="module")
def shared(single: Ensemble) -> Iterator[tuple[Zoo, Serving]]:
    """A namespace, and a coordinator in it that serves anybody."""
    zoo = Zoo(single.hosts, single)
    with Serving(zoo, session_timeout=10, http=True) as serving:
        yield zoo, serving
    zoo.close()


@pytest.fixture
def zoo(shared: tuple[Zoo, Serving]) -> Iterator[Zoo]:
    zoo, _ = shared
    with zoo.configured(session_timeout=10):
        yield zoo
        zoo.assert_empty()


@pytest.fixture
def web(shared: tuple[Zoo, Serving], zoo: Zoo) -> Web:
    return Web(shared[1].http_port)


def test_the_life_of_a_lease(web: Web, zoo: Zoo) -> None:
    answer = web.post(session_timeout_ms=20_000, signed_token=True)
    assert answer.status == 201
    lease = answer.described("/locks/", "post")
    path = answer.headers["Location"]
    assert path == f"/locks/{lease['lease_id']}"
    assert lease["resource_path"] == "invoices/2026"
    assert lease["signed_token"]
    assert int(lease["fencing_token"]) == zoo.client.exists(lease["acquired_znode_path"]).czxid
    for method in ("get", "put"):
        kept = web(method.upper(), path).described("/locks/{lease_id}", method)
        assert kept["fencing_token"] == lease["fencing_token"]
        assert 0 < kept["lease_duration_ms"] <= 4000
    ended = web("DELETE", path)
    assert (ended.status, ended.described("/locks/{lease_id}", "delete")) == (204, None)
    assert zoo.children("invoices/2026") == []
    for method in ("get", "put", "delete"):
        over = web(method.upper(), path)
        assert over.status == 404
        assert "over" in over.described("/locks/{lease_id}", method)["detail"]


def test_a_busy_lock_is_refused_over_http(web: Web, zoo: Zoo) -> None:
    with zoo.hold_elsewhere("invoices/2026"):
        answer = web.post(wait_limit_ms=200)
        assert (answer.status, answer.headers["Retry-After"]) == (409, "1")
        answer.described("/locks/", "post")


def test_calls_that_wait_cost_no_thread(shared: tuple[Zoo, Serving], zoo: Zoo) -> None:
    """A client that closes its connection leaves the queue."""
    _, serving = shared
    process, body = psutil.Process(serving.process.pid), json.dumps({**WANTED, "wait_limit_ms": 20_000})
    request = (
        f"POST /locks/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with zoo.hold_elsewhere("invoices/2026"):
        before = process.num_threads()
        waiting = [socket.create_connection(("127.0.0.1", serving.http_port)) for _ in range(20)]
        for connection in waiting:
            connection.sendall(f"{request}\r\n\r\n{body}".encode())
        zoo.wait_contenders("invoices/2026", 21)
        assert process.num_threads() <= before + 2
        for connection in waiting:
            connection.close()
        zoo.wait_contenders("invoices/2026", 1)


def test_a_request_on_a_kept_connection_is_about_as_quick_as_by_grpc(shared: tuple[Zoo, Serving], web: Web) -> None:
    """With Nagle's algorithm it would take 40 ms."""
    path = web.post(session_timeout_ms=60_000).headers["Location"]
    with grpc.insecure_channel(shared[1].address) as channel:
        stub: Any = pb_grpc.LockCoordinatorStub(channel)  # type: ignore[no-untyped-call]
        by_grpc, by_http = [], []
        for _ in range(30):
            began = time.perf_counter()
            stub.ReleaseLock(pb.ReleaseLockRequest(lease_id="unknown"))
            by_grpc.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert web("PUT", path).status == 200
            by_http.append(time.perf_counter() - began)
    web("DELETE", path)
    assert statistics.median(by_http) < 10 * statistics.median(by_grpc) + 0.02


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ("{", 400, "not JSON"),
        ("[]", 400, "not a JSON object"),
        ("[" * 10_000, 400, "not JSON"),
        ('{"resource_path": 7, "client_id": "x"}', 400, "resource_path is not a string"),
        ('{"resource_path": "a", "client_id": "x", "limit": true}', 400, "limit is not a whole number"),
        ('{"resource_path": "a", "client_id": "x", "wait_limit_ms": null}', 400, "wait_limit_ms is not a whole number"),
        ('{"resource_path": "a", "client_id": "x", "session_timeout_ms": -1}', 400, "whole number from 0"),
        ('{"resource_path": "a", "client_id": "x", "session_timeout_ms": 1e3}', 400, "whole number"),
        ('{"resource_path": "a", "client_id": "x", "ttl": 5}', 400, "Unknown field 'ttl'"),
        ('{"resource_path": "\\ud800", "client_id": "x"}', 400, "surrogate"),
        ('{"resource_path": "a", "client_id": "%s"}' % ("x" * 20_000), 413, "more than 16384 bytes"),
    ],
)
def test_an_invalid_body_is_refused(web: Web, body: str, status: int, detail: str) -> None:
    answer = web("POST", "/locks/", body)
    assert answer.status == status
    assert detail in answer.described("/locks/", "post")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("POST", "/locks", {}, 404),
        ("GET", "/locks/", {}, 405),
        ("PATCH", "/locks/some.lease.id", {}, 405),
        ("POST", "/locks/", {"Content-Type": "text/plain"}, 415),
        ("POST", "/locks/", {"Host": "evil.example:8080"}, 400),
        ("PUT", "/locks/00000000.1.abc", {}, 421),
    ],
)
def test_errors_are_problem_details(web: Web, method: str, path: str, headers: dict[str, str], status: int) -> None:
    """Also those that HTTP has a status for. A page of another site cannot reach a coordinator that serves anybody."""
    answer = web(method, path, WANTED, **headers)
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert json.loads(answer.body)["status"] == status
    assert (answer.headers["Allow"] is not None) == (status == 405)


def test_the_openapi_description_is_served(web: Web) -> None:
    assert json.loads(web("GET", "/locks/openapi.json").body) == DESCRIPTION


def test_only_known_clients_are_served(shared: tuple[Zoo, Serving], zoo: Zoo) -> None:
    """Each refusal is as the description says. With clients, the name of the host does not matter."""
    clients = {
        "billing": {"TOKENS": [hash_of("secret")], "PREFIXES": ["invoices"]},
        "none": {"TOKENS": [hash_of("none")], "MAX_LEASES": 0},
    }
    with Serving(zoo, http=True, leases={"CLIENTS": clients}) as serving:
        answers = [Web(serving.http_port).post()]
        known = Web(serving.http_port, Authorization="Bearer secret", Host="locks.example")
        answers += [known.post(resource_path="orders/1"), known.post()]
        answers.append(Web(serving.http_port, Authorization="Bearer none").post())
        for answer in answers:
            answer.described("/locks/", "post")
        assert [answer.status for answer in answers] == [401, 403, 201, 429]
        assert (answers[0].headers["WWW-Authenticate"], answers[3].headers["Retry-After"]) == ("Bearer", "1")
        known("DELETE", answers[2].headers["Location"])


def test_the_client_certificate_is_checked_for_http_too(zoo: Zoo, tmp_path: Path) -> None:
    """Its name says who the client is. A client without one is not let in."""
    authority(tmp_path, "ca")
    certificate(tmp_path, "server", "ca")
    certificate(tmp_path, "billing.internal", "ca")
    tls = [f"--tls-{name}={tmp_path / file}" for name, file in (("certificate", "server.pem"), ("key", "server.key"))]
    clients = {"billing": {"CERTIFICATES": ["billing.internal"]}}
    more = (*tls, f"--tls-client-ca={tmp_path / 'ca.pem'}")
    with Serving(zoo, *more, http=True, leases={"CLIENTS": clients}) as serving:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            Web(serving.http_port, context).post()
        context.load_cert_chain(tmp_path / "billing.internal.pem", tmp_path / "billing.internal.key")
        web = Web(serving.http_port, context)
        answer = web.post()
        assert answer.status == 201, answer.body
        assert web("DELETE", answer.headers["Location"]).status == 204


@pytest.mark.chaos
def test_a_connection_that_sends_no_whole_request_is_closed(shared: tuple[Zoo, Serving], zoo: Zoo) -> None:
    """Neither silence nor a slow trickle keeps it open."""
    _, serving = shared
    half = b"POST /locks/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    connections = []
    for sent in (b"", b"POST /lo", half):
        connections.append(socket.create_connection(("127.0.0.1", serving.http_port)))
        connections[-1].sendall(sent)
        connections[-1].settimeout(0.1)

    def all_closed() -> bool:
        for connection in list(connections):
            try:
                if not connection.recv(1):
                    connections.remove(connection)
            except TimeoutError:
                pass
            except ConnectionError:
                connections.remove(connection)
        return not connections

    eventually(all_closed, 40)


def test_a_coordinator_names_the_address_of_the_one_that_gave_the_lease(shared: tuple[Zoo, Serving], web: Web) -> None:
    """Both HTTP and gRPC do. An address that no coordinator has written is not repeated."""
    zoo, serving = shared
    with Serving(zoo, http=True) as other:
        answer = web.post()
        lease_id = json.loads(answer.body)["lease_id"]
        elsewhere = Web(other.http_port)("PUT", f"/locks/{lease_id}")
        assert elsewhere.status == 421
        problem = elsewhere.described("/locks/{lease_id}", "put")
        assert problem["address"] == f"http://127.0.0.1:{serving.http_port}"
        forged = Web(other.http_port)("PUT", f"/locks/{lease_id[:-2]}xx")
        assert "address" not in forged.described("/locks/{lease_id}", "put")
        with grpc.insecure_channel(other.address) as channel:
            stub: Any = pb_grpc.LockCoordinatorStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as caught:
                stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease_id), timeout=20)
            error: Any = caught.value
            metadata = dict(error.trailing_metadata())
            assert (metadata["zklock-code"], metadata["zklock-address"]) == ("lease-elsewhere", serving.address)
        assert web("DELETE", answer.headers["Location"]).status == 204
