"""
`@require_fence`: call a view only with the newest fencing token of a lock that another service holds.

A request without a token is answered with 428, and one with an untrusted token with 403. If the lease of the token is
over, or a newer token was used, the answer is 412. The body is JSON, the project's page (such as `412.html`), or text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse

from django_zklock import conf
from django_zklock.contrib.tokens.keys import checked, hidden
from django_zklock.contrib.tokens.signing import LEEWAY, FenceVerifier, TokenStore
from django_zklock.contrib.tokens.stores import DatabaseTokens
from django_zklock.core.log import Logger
from django_zklock.exceptions import InvalidToken, StaleToken, ZkLockError
from django_zklock.http import requests
from django_zklock.http.responses import respond
from django_zklock.names.binding import KeyBinder, Name
from django_zklock.names.template import Template

logger = Logger("django_zklock.fencing")

P = ParamSpec("P")
R = TypeVar("R")

HEADER: Final = "X-Fencing-Token"


_ANSWERS: Final = {
    428: ("fence_missing", "This request needs the fencing token of a lock, in the header {header}."),
    403: ("fence_invalid", "The fencing token is not for this resource, or was not signed with a known key."),
    412: ("fence_stale", "The fencing token is out of date: its lease is over, or a newer one was used."),
}
"""The code in JSON and the text, by status."""


def require_fence(
    name: Name,
    *,
    store: TokenStore | None = None,
    header: str = HEADER,
    keys: Sequence[str] | None = None,
    leeway: float | timedelta = LEEWAY,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Call a view only with the newest fencing token of its lock, and set `request.fence` to the verified token.

    `name` is what the senders lock: a name or a path template as for `@zk_locked`, filled from the view's arguments, or
    a callable that gets these and returns the key. `request.fence` fences rows as a `Hold` does.

    It answers every caller, so it is for views only. Put it below `@transaction.atomic`, or use `ATOMIC_REQUESTS`:
    then the default store keeps its row locked until the view's work is committed, and no newer holder can come in
    between. A view that also acquires a lock itself has this decorator below `@zk_locked`, which may begin the
    transaction.

    Args:
        name: see above.
        store: stores the highest token of each key; default `DatabaseTokens()`.
        header: the request header with the token.
        keys: see `FenceVerifier`.
        leeway: see `FenceVerifier`, in seconds.

    """
    given = hidden(keys)
    del keys  # an error of this call shows its locals
    verifier = FenceVerifier(DatabaseTokens() if store is None else store, keys=checked(given), leeway=leeway)
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"require_fence needs the name of a lock or a callable that returns its key, not {name!r}.")

    def decorate(view: Callable[P, R]) -> Callable[P, R]:
        _check_view(view)
        guarded = GuardedView(name, view, header)

        def call(*args: Any, **kwargs: Any) -> Any:
            if requests.is_async_dispatch(view, args):
                return acall(*args, **kwargs)
            request, key, signed = guarded.bind(args, kwargs)
            try:
                request.fence = verifier.verify(signed, key=key)
            except (InvalidToken, StaleToken) as error:
                return guarded.refuse(request, key, error)
            return view(*args, **kwargs)

        async def acall(*args: Any, **kwargs: Any) -> Any:
            request, key, signed = guarded.bind(args, kwargs)
            try:
                request.fence = await verifier.averify(signed, key=key)
            except (InvalidToken, StaleToken) as error:
                return guarded.refuse(request, key, error)
            return await cast("Any", view)(*args, **kwargs)

        wrapper: Any = functools.wraps(view)(acall if iscoroutinefunction(view) else call)
        return cast("Callable[P, R]", wrapper)

    return decorate


class GuardedView:
    """A view behind `@require_fence`."""

    def __init__(self, name: Name, view: Callable[..., Any], header: str) -> None:
        self._view = view
        self._header = header
        self._binder = KeyBinder(name, view)
        if isinstance(name, str):
            self._binder.check_fields(conf.path_for(name))

    def __repr__(self) -> str:
        return f"{self._view.__module__}.{getattr(self._view, '__qualname__', self._view)}"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str, str]:
        """Return the request of a call, the key of its lock, and the signed token, which is empty if there is none."""
        request = requests.find_request(args)
        if request is None:
            raise TypeError(f"@require_fence is for views; {self!r} was called without a request.")
        name, fields = self._binder.bind_one(args, kwargs)
        key = Template.parse(conf.path_for(name)).render(fields)
        return request, key, request.headers.get(self._header, "")

    def refuse(self, request: HttpRequest, key: str, error: ZkLockError) -> HttpResponse:
        """Return the response to a request whose token is not accepted."""
        logger.warning("view %r refused a request for %r: %s", self, key, error, extra={"lock": key})
        status = 412 if isinstance(error, StaleToken) else 403 if request.headers.get(self._header) else 428
        code, text = _ANSWERS[status]
        return respond(request, status, {"detail": text.format(header=self._header), "code": code})


def _check_view(view: object) -> None:
    if isinstance(view, type):
        raise TypeError(
            f"@require_fence is for functions, not for the class {view.__name__}; for a view, decorate its handlers "
            '("post", "put"), or use @method_decorator(require_fence(...), name="dispatch") on the class.'
        )
    if not callable(view):
        raise TypeError(f'@require_fence needs a name first, as in @require_fence("{{path}}"); it got {view!r}.')
    if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
        raise TypeError(f"{getattr(view, '__qualname__', view)} is a generator, not a view.")
