"""
Keep the lock of a view until the body of its response is complete: streamed, or rendered after the view has returned.

The lock is released when the body is complete, fails or is closed. A server may never ask for the rest of a body, nor
close it. So the lock is released at the end of the request, too, and at the latest when the response is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.execution import abort

if TYPE_CHECKING:
    from django_zklock.http.transfer import TransferredHold
    from django_zklock.locks.hold import Hold, MultiHold
    from django_zklock.locks.multi import Locks

logger = logging.getLogger("django_zklock.responses")

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods of requests that can be repeated without harm (RFC 9110, 9.2.1)."""

_Result = TypeVar("_Result")


class ResponseLock:
    """Transfers the lock of one call to the response that the call returns; `with` surrounds the lock's block."""

    def __init__(self, lock: Locks, request: HttpRequest | None, on_lost: Callable[[LockLost], Any]) -> None:
        self._lock = lock
        self._request = request
        self._on_lost = on_lost
        self._transferred: TransferredHold | None = None

    def __enter__(self) -> ResponseLock:
        return self

    def keep(self, hold: Hold | MultiHold, result: _Result) -> _Result:
        """Return `result`, the result of the call. If its body is still to come, that keeps the lock."""
        from django_zklock.http.transfer import TransferredHold  # noqa: PLC0415 - Django's start does not import kazoo

        if isinstance(result, StreamingHttpResponse):
            self._transferred = TransferredHold(self._lock, hold)
            self._close_with_request(_lock_stream(result, self._transferred))
        elif isinstance(result, SimpleTemplateResponse) and not result.is_rendered:
            self._transferred = TransferredHold(self._lock, hold)
            self._close_with_request(_lock_render(result, self._transferred, self._on_lost_before_render))
        return result

    def _on_lost_before_render(self, error: LockLost) -> Any:
        """Return the response to send instead, or None to render without the lock."""
        if self._request is not None and self._request.method not in SAFE_METHODS:
            # The view has committed its work under the lock. If the client was told to try again, it would repeat that.
            logger.warning("the response to %s is rendered without its lock: %s", self._request.method, error)
            return None
        return self._on_lost(error)

    def _close_with_request(self, body: LockedBody) -> None:
        """Close the body at the end of the request, or as soon as an error is answered in its place."""
        reference = weakref.ref(body)
        bodies = _bodies.get()
        if bodies is not None:
            bodies.append(reference)
        if self._request is not None:
            _bodies_by_request.setdefault(self._request, []).append(reference)

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transferred, self._transferred = self._transferred, None
        if transferred is not None and error is not None:
            transferred.end()  # the call failed in the end, so its response is not sent


class LockedBody:
    """A body that is still to come, and has the lock until it is closed or deleted."""

    def __init__(self, hold: TransferredHold) -> None:
        self._hold = hold
        _kept_alive.add(hold)

    def close(self) -> None:
        """Release the lock: nothing more is computed. Any thread may call this, any number of times."""
        self._hold.end()

    def __del__(self) -> None:
        hold: TransferredHold | None = vars(self).get("_hold")  # None if an exception interrupted `__init__`
        if hold is not None and not sys.is_finalizing():  # the session ends with the process
            _kept_alive.discard(hold)
            _close_and_log(self)


_kept_alive: set[TransferredHold] = set()
"""
The holds of all bodies.

If a body is garbage in a reference cycle, its hold must not be garbage with it: Python would clean the hold up before
`__del__` closes the body under the lock.
"""


# --- streamed responses -----------------------------------------------------------------------------------------


def _lock_stream(response: StreamingHttpResponse, hold: TransferredHold) -> LockedStream:
    # `streaming_content` returns a wrapper, which does not close what it wraps.
    parts: Any = response._iterator  # type: ignore[attr-defined]
    stream = LockedStream(parts, hold, is_async=response.is_async)
    # Files and other resources of the response are closed before the lock is released: the setter appends
    # `stream.close`. That closes the parts themselves, under the lock.
    closers: list[Callable[[], object]] = response._resource_closers  # type: ignore[attr-defined]
    own = getattr(parts, "close", None)
    closers[:] = [closer for closer in closers if closer != own]
    response.streaming_content = stream
    return stream


class LockedStream(LockedBody):
    """
    The body of a streamed response: an iterator, or an async iterator, that computes each part under the lock.

    It iterates in the same way as `parts`, which the view made. A generator among them runs its `finally` under the
    lock, too. The lock is released when the stream is complete, fails, is closed or is deleted.
    """

    def __init__(self, parts: Any, hold: TransferredHold, *, is_async: bool) -> None:
        self._parts = parts
        self._is_async = is_async
        self._close_parts: Callable[[], Any] | None = getattr(parts, "aclose" if is_async else "close", None)
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the parts are computed
        self._closing: asyncio.Task[None] | None = None  # kept here, as the loop does not
        super().__init__(hold)  # last: from now on `__del__` closes this

    def __iter__(self) -> LockedStream:
        if self._is_async:
            raise TypeError("This response body is asynchronous.")  # Django finds out this way, and uses `aiter()`
        return self

    def __next__(self) -> Any:
        try:
            with self._hold:
                part = next(self._parts)
                if self._hold.ended:
                    self._close_parts_once()  # the thread that ended the hold could not, as this was running
                return part
        except BaseException as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """
        Close the parts under the lock, then release it.

        The parts of an async body are closed in their event loop, soon after this returns.
        """
        if self._is_async:
            self._close_in_loop()
            return
        try:
            if not self._hold.running:  # else the step that runs closes them
                self._close_parts_locked()
        finally:
            self._hold.end()

    def _close_parts_locked(self) -> None:
        try:
            if self._close_parts is not None and not self._hold.ended:
                with self._hold:
                    self._close_parts_once()
        except BaseException:
            self._hold.abort()
            raise
        finally:
            self._close_parts_once()  # they have to clean up, even without the lock

    def _close_parts_once(self) -> None:
        close, self._close_parts = self._close_parts, None
        if close is not None:
            close()

    def __aiter__(self) -> LockedStream:
        return self

    async def __anext__(self) -> Any:
        self._loop = asyncio.get_running_loop()
        try:
            with self._hold:
                return await self._parts.__anext__()
        except BaseException as error:
            self._fail(error)
            raise

    async def aclose(self) -> None:
        """Close async parts in the calling task under the lock, then release it."""
        try:
            if self._close_parts is not None and not self._hold.ended:
                with self._hold:
                    await self._close_parts()
        except BaseException:
            self._hold.abort()
            raise
        finally:
            self._hold.end()

    def _close_in_loop(self) -> None:
        loop = self._loop
        if loop is not None and self._close_parts is not None and not self._hold.running and not self._hold.ended:
            try:
                loop.call_soon_threadsafe(self._begin_closing, loop)
            except RuntimeError:
                pass  # the loop is closed
            else:
                return
        self._hold.end()

    def _begin_closing(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closing is None:
            self._closing = loop.create_task(self._close_and_log())

    async def _close_and_log(self) -> None:
        try:
            await self.aclose()
        except Exception:
            logger.exception(
                "closing the body of a response under lock %s failed", ", ".join(map(repr, self._hold.keys))
            )

    def _fail(self, error: BaseException) -> None:
        self._hold.abort()
        if isinstance(error, LockLost):
            # As text: the traceback of the error would keep the request alive for as long as the log record.
            logger.error("a response was cut off in its body: %s", str(error), extra={"lock": error.lock})


# --- rendered responses -----------------------------------------------------------------------------------------


def _lock_render(
    response: SimpleTemplateResponse, hold: TransferredHold, on_lost: Callable[[LockLost], Any]
) -> LockedRender:
    render = LockedRender(response, hold, on_lost)
    response._resource_closers.append(hold.end)  # type: ignore[attr-defined]
    response.render = render  # type: ignore[method-assign]
    return render


class LockedRender(LockedBody):
    """
    Replaces the method `render` of a template response for one call, which runs under the lock.

    `on_lost` decides what happens if the lock is lost by then: it returns another response, or None to render without
    the lock. (Django's post-render callbacks would come too late: the rendering itself has to own the lock.)
    """

    def __init__(
        self, response: SimpleTemplateResponse, hold: TransferredHold, on_lost: Callable[[LockLost], Any]
    ) -> None:
        self._response = weakref.ref(response)  # which refers to this object
        self._inner = vars(response).get("render")  # of a lock inside this one
        self._on_lost = on_lost
        super().__init__(hold)

    def __call__(self) -> Any:
        response = self._response()
        if response is None:
            raise LockNotHeld("The response was deleted, and its lock released.", lock=self._hold.keys[0])
        self._restore(response)
        try:
            with self._hold:
                return response.render()
        except LockLost as error:
            self._hold.abort()
            if error.lock not in self._hold.keys:
                raise
            answer = self._on_lost(error)
            return response.render() if answer is None else answer
        finally:
            self._hold.abort()

    def _restore(self, response: SimpleTemplateResponse) -> None:
        """Leave nothing of this in the response, so that it can be rendered again, cached and pickled."""
        if self._inner is None:
            vars(response).pop("render", None)
        else:
            response.render = self._inner  # type: ignore[method-assign]
        closers: list[Callable[[], object]] = response._resource_closers  # type: ignore[attr-defined]
        if self._hold.end in closers:
            closers.remove(self._hold.end)


# --- the end of the request -------------------------------------------------------------------------------------

_bodies: ContextVar[list[weakref.ref[LockedBody]] | None] = ContextVar("zklock_bodies", default=None)
"""The locked bodies of the current request; None outside of a request."""

_bodies_by_request: weakref.WeakKeyDictionary[HttpRequest, list[weakref.ref[LockedBody]]] = weakref.WeakKeyDictionary()
"""The same by request; also those of the test client, which does not report the end of a request."""


def on_started(**kwargs: Any) -> None:
    """Start the list of locked bodies for a new request in this thread or task."""
    _bodies.set([])


def on_started_async(**kwargs: Any) -> Any:
    """
    Do the same for an ASGI request.

    Django runs a sync receiver in another thread, and a coroutine in a task of its own. Both have a copy of the
    context, so what they set is lost. This is a plain function that sets the list in the request's own task when it is
    called, and returns something to await.
    """
    _bodies.set([])
    return asyncio.sleep(0)


markcoroutinefunction(on_started_async)


def on_finished(**kwargs: Any) -> None:
    """
    Close the bodies that are left at the end of a request.

    Normally `response.close()` has done that before. Django does not call it when an ASGI client disconnects while a
    middleware runs, nor for a response that a middleware replaces by another one and keeps.
    """
    _close_all(_bodies.get())


def on_failed(request: object = None, **kwargs: Any) -> None:
    """
    Close the bodies of a request that is answered by an error.

    Nothing else closes them while the exception is kept: its traceback refers to the response.
    """
    if isinstance(request, HttpRequest):
        _close_all(_bodies_by_request.get(request))


def _close_all(bodies: list[weakref.ref[LockedBody]] | None) -> None:
    while bodies:
        body = bodies.pop()()
        if body is not None:
            _close_and_log(body)


def _close_and_log(body: LockedBody) -> None:
    try:
        body.close()
    except Exception:
        logger.exception("closing the body of a response failed")
