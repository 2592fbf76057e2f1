"""The HTTP interface of the coordinator, as an ASGI application. Errors are problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import dataclasses
import http
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from django_zklock.conf import url
from django_zklock.conf.leases import LeaseClient
from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import LEFT, Lease, LeaseRequest
from django_zklock.contrib.leases.refusal import Code, Refusal
from django_zklock.core.queue.untrusted import boolean, integer, json_object, text
from django_zklock.core.zk.options import Secret

LONGEST_WAIT: Final = 30.0
"""Seconds for which a request waits in the queue at most. Proxies cut connections that are silent for longer."""
LARGEST_BODY: Final = 16 * 1024  # bytes
_FIELDS: Final[Mapping[str, Any]] = {field.name: field.default for field in dataclasses.fields(LeaseRequest)}
_KINDS_OF_JSON: Final[Mapping[type, tuple[str, Callable[[object], object]]]] = {
    str: ("string without lone surrogates", lambda value: text(value, LARGEST_BODY)),
    int: ("whole number from 0", lambda value: integer(value, 0, 2**53 - 1)),
    bool: ("boolean", boolean),
}
_DESCRIPTION: Final = Path(__file__).with_name("openapi.json")

_Receive = Callable[[], Coroutine[Any, Any, Any]]
_Send = Callable[[Any], Awaitable[None]]


class _Response(NamedTuple):
    status: int
    content: object = None
    """The body becomes this in JSON. With None, there is no body."""
    headers: Mapping[str, str] = {}


class _HttpError(Exception):
    """An error that HTTP itself has a status for."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.response = _problem(status, "about:blank", http.HTTPStatus(status).phrase, detail, headers=headers)


class HttpApplication:
    """The application. It serves all at /locks/."""

    def __init__(self, coordinator: Coordinator, access: Access) -> None:
        self._coordinator = coordinator
        self._access = access

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Answer a request."""
        try:
            response = await self._answer(scope, receive)
        except Refusal as refusal:
            response = _refused(refusal)
        except _HttpError as error:
            response = error.response
        body = b"" if response.content is None else json.dumps(response.content).encode()
        headers = {"content-length": str(len(body)), "cache-control": "no-store"}
        if body:
            headers["content-type"] = "application/json"
        headers.update(response.headers)
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: _Receive) -> _Response:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        authorization = Secret(headers.pop(b"authorization", ""))
        # An error shows the locals of its frames, also of those of the server.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        if self._access.anybody:
            _check_host(headers.get(b"host", ""))
        method, name = scope["method"], _name_in(scope["path"])
        _check_method(method, name)
        if name == "openapi.json":
            return _Response(200, json.loads(_DESCRIPTION.read_bytes()))
        address = (scope.get("client") or ("unknown",))[0]
        names = scope["state"]["certificate_names"]
        client = await self._access.client(address, authorization, names)
        if method in ("POST", "GET"):
            await self._access.asking.wait(client)
        else:
            await self._access.keeping.wait(client, self._coordinator.cost_of_keeping(client, name))
        if method == "POST":
            return await self._acquire(client, headers.get(b"content-type", ""), receive)
        if method == "DELETE":
            await self._coordinator.release(client, name)
            return _Response(204)
        lease = self._coordinator.keep(client, name) if method == "PUT" else self._coordinator.find(client, name)
        await lease.recorded()
        return _Response(200, _description(lease))

    async def _acquire(self, client: LeaseClient, content_type: str, receive: _Receive) -> _Response:
        wanted = _lease_request(content_type, await _body(receive))
        lease = await _unless_left(self._coordinator.acquire(client, wanted), receive)
        return _Response(201, _description(lease, signed=wanted.signed_token), {"location": f"/locks/{lease.id}"})


def _name_in(path: str) -> str:
    """Return what a path names below /locks/: a lease id, nothing, or the description of this service."""
    folder, _, name = path.rpartition("/")
    if folder != "/locks":
        raise _HttpError(404, "There is nothing at this path. All is below /locks/; see /locks/openapi.json.")
    return name


def _check_method(method: str, name: str) -> None:
    allowed = {"": "POST", "openapi.json": "GET"}.get(name, "GET, PUT, DELETE")
    if method not in allowed.split(", "):
        raise _HttpError(405, f"The method {method} is not for this path, but {allowed}.", allow=allowed)


def _check_host(host: str) -> None:
    """
    Refuse a request to another name than one of this machine; it is for a coordinator that asks nobody for a token.

    A page on the internet can let its name point to 127.0.0.1, and then send requests from the browser of a developer.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not url.is_loopback(name.strip("[]")):
        raise Refusal(
            Code.INVALID,
            f"The host is {host[:60]!r}. Without clients in its settings, the coordinator serves localhost only.",
        )


def _problem(status: int, kind: str, title: str, detail: str, *, headers: Mapping[str, str], **more: str) -> _Response:
    content = {"type": kind, "title": title, "status": status, "detail": detail, **more}
    return _Response(status, content, {"content-type": "application/problem+json", **headers})


def _refused(refusal: Refusal) -> _Response:
    code, kind = refusal.code, f"urn:zklock:problem:{refusal.code.slug}"
    more = {"address": refusal.elsewhere.http} if refusal.elsewhere.http else {}
    return _problem(code.http, kind, code.title, str(refusal), headers=code.headers, **more)


def _description(lease: Lease, *, signed: bool = False) -> dict[str, Any]:
    answer = lease.describe(signed=signed)
    answer |= {
        "resource_path": lease.lock.key,
        "client_id": lease.client_id,
        "acquired_znode_path": lease.path,
        "release_requested": lease.release_requested or None,
        "fencing_token": str(answer["fencing_token"]),  # 64 bits; numbers in JavaScript have 53
    }
    return answer


async def _unless_left(acquiring: Coroutine[Any, Any, Lease], receive: _Receive) -> Lease:
    """Return the new lease. If the client closes the connection first, it leaves the queue: raise `Refusal`."""
    call, left = asyncio.ensure_future(acquiring), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((call, left), return_when=asyncio.FIRST_COMPLETED)
        if not left.done():
            return call.result()
        if call.done() and call.exception() is None:
            call.result().end_call()
        raise _left()
    finally:
        call.cancel()
        left.cancel()


def _left() -> Refusal:
    return Refusal(Code.INVALID, LEFT)  # the server sends nothing to a client that has left


async def _body(receive: _Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _left()
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise _HttpError(413, f"The body has more than {LARGEST_BODY} bytes.")
        if not message.get("more_body"):
            return body


def _lease_request(content_type: str, body: bytes) -> LeaseRequest:
    """Return the request in a body, checked. Raises `Refusal` and `_HttpError`."""
    if content_type.partition(";")[0].strip().lower() != "application/json":  # a form of another site cannot send this
        raise _HttpError(415, "The content type is not application/json.")
    given = json_object(body, LARGEST_BODY)
    if not given:
        raise Refusal(Code.INVALID, "The body is not JSON, or not a JSON object with fields.")
    for name, value in given.items():
        if name not in _FIELDS:
            raise Refusal(Code.INVALID, f"Unknown field {name[:60]!r}. Known fields: {', '.join(_FIELDS)}.")
        kind, check = _KINDS_OF_JSON[type(_FIELDS[name])]
        try:
            check(value)
        except ValueError as error:
            raise Refusal(Code.INVALID, f"{name} is not a {kind}.") from error
    given["wait_limit_ms"] = min(given.get("wait_limit_ms", 0), int(LONGEST_WAIT * 1000))
    return LeaseRequest(**given)
