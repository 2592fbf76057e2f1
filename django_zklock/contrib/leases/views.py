"""The views of the HTTP interface. Errors are problem details (RFC 9457)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.encoding import escape_uri_path
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from django_zklock.conf.leases import LeaseClient
from django_zklock.contrib.leases import host as hosts
from django_zklock.contrib.leases.coordinator import Coordinator, LeaseRequest
from django_zklock.contrib.leases.lease import Lease
from django_zklock.contrib.leases.refusal import RETRY_AFTER, Code, Refusal, over

LONGEST_WAIT: Final = 30.0
"""Seconds for which a request waits in the queue at most. Proxies cut connections that are silent for longer."""
LARGEST_BODY: Final = 16 * 1024  # bytes
_FIELDS: Final[dict[str, tuple[type, Any]]] = {
    "resource_path": (str, ""),
    "client_id": (str, ""),
    "session_timeout_ms": (int, 0),
    "wait_limit_ms": (int, 0),
    "kind": (str, "lock"),
    "limit": (int, 0),
    "signed_token": (bool, False),
}
_DESCRIPTION: Final = Path(__file__).with_name("openapi.json")

_View = Callable[..., Coroutine[Any, Any, HttpResponse]]


def _answering(view: _View) -> _View:
    """Make a view of one that may raise `Refusal`. CSRF is no danger: it needs a header that no form can send."""

    @csrf_exempt
    @login_not_required  # `Access` knows the client
    @never_cache
    @functools.wraps(view)
    async def answer(request: HttpRequest, *args: Any, **fields: Any) -> HttpResponse:
        host = hosts.current()
        try:
            peer = request.META.get("REMOTE_ADDR", "")
            client = host.access.client(peer, request.headers.get("Authorization", ""))
            return await view(request, host, client, *args, **fields)
        except Refusal as refusal:
            return problem(refusal)

    return answer


def problem(refusal: Refusal) -> HttpResponse:
    """Return a refusal as problem details."""
    code = refusal.code
    body = {
        "type": f"urn:zklock:problem:{code.slug}",
        "title": code.title,
        "status": code.http,
        "detail": refusal.detail,
    }
    response = JsonResponse(body, status=code.http, content_type="application/problem+json")
    if code.may_succeed_later:
        response["Retry-After"] = RETRY_AFTER
    if code is Code.UNAUTHENTICATED:
        response["WWW-Authenticate"] = "Bearer"
    return response


@require_http_methods(["POST"])
@_answering
async def leases(request: HttpRequest, host: hosts.Host, client: LeaseClient) -> HttpResponse:
    """Acquire a lease: 201, or 409 if the lock was busy until the deadline."""
    wanted, signed = _lease_request(_fields(request))
    granted = await host.run(_acquire, host.coordinator, client, wanted, signed)
    response = JsonResponse(granted, status=201)
    response["Location"] = escape_uri_path(f"{request.path}{granted['lease_id']}")
    return response


@require_http_methods(["GET", "PUT", "DELETE"])
@_answering
async def lease(request: HttpRequest, host: hosts.Host, client: LeaseClient, lease_id: str) -> HttpResponse:
    """Describe a lease, keep it for another term, or end it."""
    if request.method == "DELETE":
        await host.run(host.coordinator.release, client, lease_id)
        return HttpResponse(status=204)
    call = _keep if request.method == "PUT" else _describe
    return JsonResponse(await host.run(call, host.coordinator, client, lease_id))


@login_not_required
@require_http_methods(["GET"])
async def openapi(request: HttpRequest) -> HttpResponse:
    """Return the description of this interface, in OpenAPI 3.1."""
    return HttpResponse(_DESCRIPTION.read_bytes(), content_type="application/json")


# --- on the coordinator's loop ------------------------------------------------------------------------------------


async def _acquire(coordinator: Coordinator, client: LeaseClient, wanted: LeaseRequest, signed: bool) -> dict[str, Any]:
    lease_id, lease = await coordinator.acquire(client, wanted)
    description = _description(lease_id, lease)
    if signed:
        description["signed_token"] = coordinator.sign(lease, description["lease_expires_at"])
    return description


async def _keep(coordinator: Coordinator, client: LeaseClient, lease_id: str) -> dict[str, object]:
    return _description(lease_id, coordinator.keep(client, lease_id))


async def _describe(coordinator: Coordinator, client: LeaseClient, lease_id: str) -> dict[str, object]:
    return _description(lease_id, coordinator.find(client, lease_id))


def _description(lease_id: str, lease: Lease) -> dict[str, Any]:
    if lease.hold is None or lease.end_reason:
        raise over(lease.end_reason)
    expires_at, duration = lease.tell()
    return {
        "lease_id": lease_id,
        "resource_path": lease.hold.key,
        "client_id": lease.client_id,
        "acquired_znode_path": lease.hold.path,
        "fencing_token": str(lease.hold.token),  # 64 bits; numbers in JavaScript have 53
        "lease_expires_at": expires_at,
        "lease_duration_ms": duration,
        "release_requested": lease.release_requested or None,
    }


# --- the request --------------------------------------------------------------------------------------------------


def _fields(request: HttpRequest) -> dict[str, Any]:
    """Return the fields of a request, checked. Raises `Refusal`."""
    if request.content_type != "application/json":  # a form of another site cannot send this
        raise Refusal(Code.INVALID, "The content type is not application/json.")
    body = request.body
    if len(body) > LARGEST_BODY:
        raise Refusal(Code.INVALID, f"The body has more than {LARGEST_BODY} bytes.")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(Code.INVALID, "The body is not JSON.") from error
    if not isinstance(given, dict):
        raise Refusal(Code.INVALID, "The body is not a JSON object.")
    for name in given:
        if name not in _FIELDS:
            raise Refusal(Code.INVALID, f"Unknown field {name[:60]!r}. Known fields: {', '.join(_FIELDS)}.")
    values: dict[str, Any] = {}
    for name, (kind, default) in _FIELDS.items():
        value: Any = given.get(name, default)
        if type(value) is not kind:  # True is no number here
            raise Refusal(Code.INVALID, f"{name} is not a {_KINDS_OF_JSON[kind]}.")
        if isinstance(value, int) and not 0 <= value < 2**53:
            raise Refusal(Code.INVALID, f"{name} is not a whole number from 0.")
        values[name] = value
    return values


_KINDS_OF_JSON: Final[dict[type, str]] = {str: "string", int: "whole number", bool: "boolean"}


def _lease_request(fields: dict[str, Any]) -> tuple[LeaseRequest, bool]:
    wanted = LeaseRequest(
        resource=fields["resource_path"],
        client_id=fields["client_id"],
        term=fields["session_timeout_ms"] / 1000,
        wait=min(fields["wait_limit_ms"] / 1000, LONGEST_WAIT),
        kind=fields["kind"],
        limit=fields["limit"],
    )
    return wanted, fields["signed_token"]
