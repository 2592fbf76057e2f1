"""
Knows how a view is closed to all but the newest holder of another service's lock: `@require_fence`.

A request without a token is answered 428, with one that cannot be trusted 403, and with one whose time is over, or
that a newer holder has outdone, 412. The body is JSON or plain text, as the client, which is a program, prefers.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_zklock import conf
from django_zklock.exceptions import ExpiredToken, ForgedToken, StaleToken, ZkLockError
from django_zklock.execution.binding import Name, Naming, async_view
from django_zklock.fencing.signing import LEEWAY, FenceVerifier, TokenStore, VerifiedToken
from django_zklock.fencing.stores import DatabaseTokens
from django_zklock.http import responses
from django_zklock.queue.names import Template

logger = logging.getLogger("django_zklock.fencing")

P = ParamSpec("P")
R = TypeVar("R")

HEADER: Final = "X-Fencing-Token"

MISSING, FORGED, STALE, EXPIRED = "fence_missing", "fence_forged", "fence_stale", "fence_expired"
"""The `code` in an answer in JSON. A holder whose token is expired may sign anew; if it is stale, his lock is gone."""

_ANSWERS: Final = {
    MISSING: (428, "This request needs the fencing token of a lock, in the header {header}."),
    FORGED: (403, "The fencing token is not one of this resource's lock, or was signed by somebody unknown here."),
    STALE: (412, "A newer holder of the lock was here: this fencing token is out of date."),
    EXPIRED: (412, "The lease behind this fencing token is over."),
}


class _MissingToken(ZkLockError):
    """The request has no fencing token."""


_REFUSALS: Final = (_MissingToken, ForgedToken, StaleToken, ExpiredToken)
_CODES: Final[dict[type, str]] = dict(zip(_REFUSALS, (MISSING, FORGED, STALE, EXPIRED), strict=True))


def require_fence(
    name: Name,
    *,
    store: TokenStore | None = None,
    header: str = HEADER,
    keys: Sequence[str] | None = None,
    leeway: float | timedelta = LEEWAY,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Let a view be called only with the newest fencing token of its lock, and set `request.fence` to what it says.

    `name` is what the senders lock: a name or a path template as of `@zk_locked`, filled from the view's arguments, or
    a callable that gets them and returns the key. `request.fence` fences rows as a `Hold` does.

    Put it below `@transaction.atomic`, or under `ATOMIC_REQUESTS`: then the default store keeps its row locked until
    the view's work is committed, and no newer holder comes between. A view that takes a lock of its own as well has
    this below `@zk_locked`, which may begin the transaction.

    Args:
        name: as above.
        store: what remembers the highest token; default `DatabaseTokens()`.
        header: the header that the token is in.
        keys: as of `FenceVerifier`.
        leeway: as of `FenceVerifier`, seconds.

    """
    verifier = FenceVerifier(DatabaseTokens() if store is None else store, keys=keys, leeway=leeway)
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"require_fence needs the name of a lock or a callable that returns its key, not {name!r}.")

    def decorate(view: Callable[P, R]) -> Callable[P, R]:
        _refuse_viewless(view)
        gate = _Gate(name, view, verifier, header)
        wrapper = _async_shell(gate) if iscoroutinefunction(view) else _sync_shell(gate)
        return cast("Callable[P, R]", functools.update_wrapper(wrapper, view))

    return decorate


def _sync_shell(gate: _Gate) -> Callable[..., Any]:
    later = _async_shell(gate)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if async_view(gate.view, args):
            return later(*args, **kwargs)
        arrival = gate.arrival(args, kwargs)
        try:
            arrival.admit(gate.verifier.verify(arrival.signed, key=arrival.key))
        except _REFUSALS as error:
            return arrival.refuse(error)
        return gate.view(*args, **kwargs)

    return wrapper


def _async_shell(gate: _Gate) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        arrival = gate.arrival(args, kwargs)
        try:
            arrival.admit(await gate.verifier.averify(arrival.signed, key=arrival.key))
        except _REFUSALS as error:
            return arrival.refuse(error)
        return await gate.view(*args, **kwargs)

    return wrapper


class _Gate:
    """A guarded view: from its arguments to the key of one call."""

    def __init__(self, name: Name, view: Callable[..., Any], verifier: FenceVerifier, header: str) -> None:
        self.view = view
        self.verifier = verifier
        self.header = header
        self._naming = Naming(name, view)
        if isinstance(name, str):
            self._naming.check_fields(conf.path_for(name))

    def __repr__(self) -> str:
        return f"{self.view.__module__}.{getattr(self.view, '__qualname__', self.view)}"

    def arrival(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arrival:
        """Return what one call is about."""
        request = responses.find_request(args)
        if request is None:
            raise TypeError(f"@require_fence guards views, and {self!r} was called without a request.")
        name, fields = self._naming.name_and_fields(args, kwargs)
        return _Arrival(self, request, Template.parse(conf.path_for(name)).render(fields))


class _Arrival:
    """One call of a guarded view."""

    def __init__(self, gate: _Gate, request: HttpRequest, key: str) -> None:
        self.key = key
        self._gate = gate
        self._request = request

    @property
    def signed(self) -> str:
        """What came as a token."""
        signed = self._request.headers.get(self._gate.header)
        if not signed:
            raise _MissingToken(lock=self.key)
        return signed

    def admit(self, fence: VerifiedToken) -> None:
        """Hand the token over to the view."""
        self._request.fence = fence  # type: ignore[attr-defined]

    def refuse(self, error: ZkLockError) -> HttpResponse:
        """Answer without having called the view."""
        logger.warning("view %r refused a request: %s", self._gate, error, extra={"lock": self.key})
        code = next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
        status, text = _ANSWERS[code]
        detail = text.format(header=self._gate.header)
        response: HttpResponse
        if self._request.get_preferred_type(["text/plain", "application/json"]) == "application/json":
            response = JsonResponse({"detail": detail, "code": code}, status=status)
        else:
            response = HttpResponse(detail, status=status, content_type="text/plain; charset=utf-8")
        response["Cache-Control"] = "no-store"  # as RFC 6585 has it for 428; the next token may be a better one
        return response


def _refuse_viewless(view: object) -> None:
    if isinstance(view, type):
        raise TypeError(
            f"@require_fence guards functions, not the class {view.__name__}; for a view, decorate its handlers "
            '("post", "put"), or use @method_decorator(require_fence(...), name="dispatch") on the class.'
        )
    if not callable(view):
        raise TypeError(f'@require_fence needs a name first, as in @require_fence("{{path}}"); it got {view!r}.')
    if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
        raise TypeError(f"{getattr(view, '__qualname__', view)} is a generator, and no view.")
