"""
Knows how a lock goes from the call of a view to the body of its response, if that comes later, and when it ends there.

The body is streamed, or a template rendered after the view has returned. It has the lock until it is done, fails or is
closed. Nobody may ask for the rest of it, nor close it: so its lock ends with the request, too, and at the latest with
the response, when that is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.execution import abort

if TYPE_CHECKING:
    from django_zklock.http.transfer import AnyShare
    from django_zklock.locks.hold import Hold, MultiHold
    from django_zklock.locks.multi import Locks

logger = logging.getLogger("django_zklock.responses")

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Of requests that may be repeated without harm (RFC 9110, 9.2.1)."""

_Result = TypeVar("_Result")


class Work(Protocol):
    """What is left to be done for a response, under the lock."""

    def close(self) -> None:
        """Do no more of it, and end its share in the lock; from any thread. Doing it again changes nothing."""


class Handover:
    """Hands the lock of a call over to the response that it returns; `with` round the lock's block."""

    def __init__(self, lock: Locks, request: HttpRequest | None, lost: Callable[[LockLost], Any]) -> None:
        self._lock = lock
        self._request = request
        self._lost = lost
        self._share: AnyShare | None = None

    def __enter__(self) -> Handover:
        return self

    def keep(self, hold: Hold | MultiHold, result: _Result) -> _Result:
        """Return the result of the call; if its body is still to come, with a share in the hold."""
        from django_zklock.http.transfer import share_of  # noqa: PLC0415 - Django's start does not import kazoo

        if isinstance(result, StreamingHttpResponse):
            self._share = share = share_of(self._lock, hold)
            self._close_in_time(_keep_while_streaming(result, share))
        elif isinstance(result, SimpleTemplateResponse) and not result.is_rendered:
            self._share = share = share_of(self._lock, hold)
            self._close_in_time(_keep_until_rendered(result, share, self._lost_unrendered))
        return result

    def _lost_unrendered(self, error: LockLost) -> Any:
        """Return what to answer, or None to render it all the same."""
        if self._request is not None and self._request.method not in SAFE_METHODS:
            # The view has done its work, and COMMIT, under the lock. Who is told to try again would have it done twice.
            logger.warning("an answer to %s is rendered without its lock: %s", self._request.method, error)
            return None
        return self._lost(error)

    def _close_in_time(self, work: Work) -> None:
        """Have the work closed at the end of the request, or as soon as that is answered by an error."""
        reference = weakref.ref(work)
        bodies = _bodies.get()
        if bodies is not None:
            bodies.append(reference)
        if self._request is not None:
            _of_requests.setdefault(self._request, []).append(reference)

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        share, self._share = self._share, None
        if share is not None and error is not None:
            share.end()  # the call failed after all, and its response is none


# --- streamed responses -----------------------------------------------------------------------------------------


def _keep_while_streaming(response: StreamingHttpResponse, share: AnyShare) -> Work:
    # As it was given: what `streaming_content` returns does not close it.
    parts: Any = response._iterator  # type: ignore[attr-defined]
    streamed = AsyncParts(parts, share) if response.is_async else Parts(parts, share)
    body = AsyncBody(streamed) if isinstance(streamed, AsyncParts) else Body(streamed)
    _close_when_dropped(body, streamed, share)
    # The generator's own end is work under the lock. The response's other resources, such as files, are closed after
    # it as before, and the lock ends last, as the setter appends the body to them.
    closers: list[Callable[[], object]] = response._resource_closers  # type: ignore[attr-defined]
    own = getattr(parts, "close", None)
    closers[:] = [streamed.close_parts if closer == own else closer for closer in closers]
    response.streaming_content = body
    return streamed


class Parts:
    """The parts of a body, as its view made them, and the share they are computed under."""

    def __init__(self, parts: Iterator[Any], share: AnyShare) -> None:
        self._parts = parts
        self._share = share
        self._close: Callable[[], object] | None = getattr(parts, "close", None)  # until it was called

    def next(self) -> Any:
        """Return the next part, computed by the caller under the lock. Raises `LockLost`: it may not be sent."""
        try:
            with self._share:
                part = next(self._parts)
                if self._share.ended:
                    self._close_once()  # who ended it could not, as this was running
                return part
        except BaseException as error:
            self._share.break_off()
            _report(error)
            raise

    def close_parts(self) -> None:
        """Have a generator run its end, under the lock; the lock stays."""
        if self._close is None or self._share.running:
            return
        try:
            if not self._share.ended:
                with self._share:
                    self._close_once()
        except BaseException:
            self._share.break_off()
            raise
        finally:
            self._close_once()  # it has to clean up, lock or none

    def _close_once(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()

    def close(self) -> None:
        """Compute no more, and end the share."""
        try:
            self.close_parts()
        finally:
            self._share.end()


class Body:
    """What a response iterates over instead of its parts; the lock is let go of when it is dropped."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __iter__(self) -> Body:
        return self

    def __next__(self) -> Any:
        return self._parts.next()

    def close(self) -> None:
        """Compute no more; Django's response calls it when it is closed itself."""
        self._parts.close()


class AsyncParts:
    """The parts of an asynchronous body, and the share they are computed under."""

    def __init__(self, parts: AsyncIterator[Any], share: AnyShare) -> None:
        self._parts = parts
        self._share = share
        self._loop: asyncio.AbstractEventLoop | None = None  # in which parts were computed, if any were
        self._closing: asyncio.Task[None] | None = None  # kept, as the loop does not

    async def next(self) -> Any:
        """Return the next part, computed by the calling task under the lock."""
        self._loop = asyncio.get_running_loop()
        try:
            with self._share:
                return await self._parts.__anext__()
        except BaseException as error:
            self._share.break_off()
            _report(error)
            raise

    async def aclose(self) -> None:
        """Have a generator run its end, under the lock, and end the share."""
        close = getattr(self._parts, "aclose", None)
        try:
            if close is not None and not self._share.ended:
                with self._share:
                    await close()
        except BaseException:
            self._share.break_off()
            raise
        finally:
            self._share.end()

    def close_parts(self) -> None:
        """Leave it to `close`: it takes a loop."""

    def close(self) -> None:
        """Have the parts closed in their loop, and the share ended after that; at once if there is nothing to close."""
        begun = self._loop is not None and hasattr(self._parts, "aclose")
        if begun and self._loop is not None and not self._share.running and not self._share.ended:
            try:
                self._loop.call_soon_threadsafe(self._close_soon)
            except RuntimeError:
                pass  # the loop is closed
            else:
                return
        self._share.end()

    def _close_soon(self) -> None:
        if self._loop is not None and self._closing is None:
            self._closing = self._loop.create_task(self._close_here())

    async def _close_here(self) -> None:
        try:
            await self.aclose()
        except Exception:
            logger.exception("closing a body of a response under lock %s failed", ", ".join(self._share.keys))


class AsyncBody:
    """What a response iterates over instead of its asynchronous parts."""

    def __init__(self, parts: AsyncParts) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncBody:
        return self

    async def __anext__(self) -> Any:
        return await self._parts.next()

    async def aclose(self) -> None:
        """Compute no more, in the calling task."""
        await self._parts.aclose()

    def close(self) -> None:
        """Compute no more; Django's response calls it in a thread of its own when it is closed itself."""
        self._parts.close()


def _report(error: BaseException) -> None:
    if isinstance(error, LockLost):
        # In words, as the error itself would keep the request, by its traceback, for as long as the record is kept.
        logger.error("a response was cut off in its body: %s", str(error), extra={"lock": error.lock})


# --- rendered responses -----------------------------------------------------------------------------------------


def _keep_until_rendered(response: SimpleTemplateResponse, share: AnyShare, lost: Callable[[LockLost], Any]) -> Work:
    rendering = Rendering(response, share, lost)
    _close_when_dropped(rendering, rendering, share)
    response._resource_closers.append(share.end)  # type: ignore[attr-defined]
    response.render = rendering  # type: ignore[method-assign]
    return rendering


class Rendering:
    """
    Takes the place of a response's `render` for one call, which runs under the lock.

    If the lock is lost by then, `lost` says what to answer; None is to render it without.
    """

    def __init__(self, response: SimpleTemplateResponse, share: AnyShare, lost: Callable[[LockLost], Any]) -> None:
        self._response = weakref.ref(response)  # which has this one
        self._inner = vars(response).get("render")  # of a lock inside this one
        self._share = share
        self._lost = lost

    def __call__(self) -> Any:
        response = self._response()
        if response is None:
            raise LockNotHeld("The response is gone, and its lock with it.", lock=self._share.key)
        if self._inner is None:
            vars(response).pop("render", None)  # one that is rendered can be rendered again, cached, pickled
        else:
            response.render = self._inner  # type: ignore[method-assign]
        closers: list[Callable[[], object]] = response._resource_closers  # type: ignore[attr-defined]
        if self._share.end in closers:
            closers.remove(self._share.end)  # or a cache, which is a callback of the rendering, could not pickle it
        try:
            with self._share:
                return response.render()
        except LockLost as error:
            self._share.break_off()
            if error.lock not in self._share.keys:
                raise
            answer = self._lost(error)
            return response.render() if answer is None else answer
        finally:
            self._share.break_off()

    def close(self) -> None:
        """End the share: the response will not be rendered."""
        self._share.end()


# --- the end of the request -------------------------------------------------------------------------------------

_bodies: ContextVar[list[weakref.ref[Work]] | None] = ContextVar("zklock_bodies", default=None)
"""What the current request's responses have to do under locks, as far as they are alive; None outside of a request."""

_of_requests: weakref.WeakKeyDictionary[HttpRequest, list[weakref.ref[Work]]] = weakref.WeakKeyDictionary()
"""The same by request, each written by who serves it; the test client's, too, who does not say when one is over."""


def _close_when_dropped(body: Body | AsyncBody | Rendering, work: Work, share: AnyShare) -> None:
    """Close the work when what the response has of it is dropped."""
    # The work may refer to the response, and so to the body. While that is dropped, it is alive; unless both are found
    # in a cycle, by the collector: then nothing is left but to end the share.
    share.when_dropped(body, _on_dropped, weakref.ref(work))


def _on_dropped(share: AnyShare, reference: weakref.ref[Work]) -> None:
    work = reference()
    if work is None:
        share.end()
    else:
        _close_quietly(work)


def _close_quietly(work: Work) -> None:
    try:
        work.close()
    except Exception:
        logger.exception("closing the body of a response failed")


def on_started(**kwargs: Any) -> None:
    """Keep a list of the request that begins, in this thread or task."""
    _bodies.set([])


def on_started_async(**kwargs: Any) -> Any:
    """
    Do the same for a request of ASGI.

    Django runs a sync receiver in another thread, and what a coroutine sets in a task of its own; both have a copy of
    the context. So it is no coroutine, but a plain function that sets the list in the request's own task when it is
    called, and returns something to await.
    """
    _bodies.set([])
    return asyncio.sleep(0)


markcoroutinefunction(on_started_async)


def on_finished(**kwargs: Any) -> None:
    """
    Close what is left of the request that ends.

    `response.close()` has done so before, where it is called. It is not when a client goes away in the middle of a
    middleware under ASGI, nor for a response that another one took the place of, and that somebody keeps.
    """
    _close_all(_bodies.get())


def on_failed(request: object = None, **kwargs: Any) -> None:
    """
    Close what a response was to do in whose place an error is answered.

    Nobody else does, while the error is kept: by its traceback, it has the response.
    """
    if isinstance(request, HttpRequest):
        _close_all(_of_requests.get(request))


def _close_all(bodies: list[weakref.ref[Work]] | None) -> None:
    while bodies:
        work = bodies.pop()()
        if work is not None:
            _close_quietly(work)
