"""
The spans, and the receivers of signals that make them.

A caller only notes its trace, when it starts to acquire: `trace_items` runs there. The items are a part of the
description of its work. The spans are made later, on the thread for signals, with their
true times. So a span of a hold is never the current span: what happens under the lock has the caller's span as its
parent, and is a sibling of the hold.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_zklock import __version__, signals
from django_zklock.core import clock
from django_zklock.core.locks.block import Receipt
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.exceptions import LockBusy
from django_zklock.locks import trace
from django_zklock.locks.events import events
from django_zklock.locks.hold import Hold, held_of

logger = Logger("django_zklock.otel")

_FORMAT: Final = TraceContextTextMapPropagator()


def trace_items() -> dict[str, str]:
    """Return "trace" and "span" of the caller's current span; nothing if there is none."""
    try:
        current = api.get_current_span().get_span_context()
        if not current.is_valid:
            return {}
        span = f"{api.format_span_id(current.span_id)}-{current.trace_flags:02x}"
        return {"trace": api.format_trace_id(current.trace_id), "span": span}
    except Exception:  # other libraries have classes of their own for spans, and this runs in the caller of a lock
        logger.exception("the trace of the caller cannot be read")
        return {}


def _parent(about: Mapping[str, str]) -> Context:
    """Return the context of the span that these items name; an empty one if they name none."""
    remote = _FORMAT.extract({"traceparent": trace.header_of(about)}, context=Context())
    context = api.get_current_span(remote).get_span_context()
    if not context.is_valid:
        return Context()
    local = SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=context.trace_flags)
    return api.set_span_in_context(NonRecordingSpan(local), Context())


def _wall_time(moment: float) -> int:
    """Return a moment of `clock.now()` in the nanoseconds of `time.time_ns()`."""
    return time.time_ns() - round((clock.now() - moment) * 1e9)


class Spans:
    """The spans of this process, from now on. All methods run on the thread for signals."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = api.get_tracer("django_zklock", __version__, provider)
        self._holds: WeakKeyDictionary[Grant, Span] = WeakKeyDictionary()  # a grant may be dropped without a signal
        self._receivers = (
            (signals.lock_acquired, self._on_acquired),
            (signals.lock_failed, self._on_failed),
            (signals.lock_released, self._on_released),
            (signals.lock_release_refused, self._on_release_refused),
            (signals.lock_lost, self._on_lost),
        )
        for signal, receiver in self._receivers:
            signal.connect(receiver)

    def stop(self) -> None:
        """Make no more spans."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)

    def _on_acquired(self, *, hold: Hold, waited: float, **kwargs: object) -> None:
        grant = held_of(hold).grant
        attributes: dict[str, str | int] = {
            "zklock.key_template": hold.template,
            "zklock.kind": hold.kind,
            "zklock.token": hold.token,
        }
        parent = _parent(grant.about)
        since = _wall_time(grant.since)
        acquire = self._tracer.start_span(
            "zklock.acquire",
            parent,
            attributes={**attributes, "zklock.waited": waited},
            start_time=since - round(waited * 1e9),
        )
        acquire.end(since)
        if not api.get_current_span(parent).get_span_context().is_valid:
            parent = api.set_span_in_context(acquire, parent)  # so that both are in one trace
        self._holds[grant] = self._tracer.start_span("zklock.hold", parent, attributes=attributes, start_time=since)

    def _on_failed(
        self,
        *,
        error: type[BaseException],
        reason: str,
        waited: float,
        template: str,
        kind: str,
        about: Mapping[str, str],
        **kwargs: object,
    ) -> None:
        now = time.time_ns()
        span = self._tracer.start_span(
            "zklock.acquire",
            _parent(about),
            attributes={
                "zklock.key_template": template,
                "zklock.kind": kind,
                "zklock.waited": waited,
                "error.type": error.__qualname__,
            },
            start_time=now - round(waited * 1e9),
        )
        name = f"{error.__module__}.{error.__qualname__}"
        span.add_event("exception", {"exception.type": name, "exception.message": reason}, now)
        if not issubclass(error, LockBusy):  # a call that does not wait expects this
            span.set_status(Status(StatusCode.ERROR, reason))
        span.end(now)

    def _on_released(self, *, hold: Hold, held: float, **kwargs: object) -> None:
        grant = held_of(hold).grant
        span = self._holds.pop(grant, None)
        if span is not None:
            span.end(_wall_time(grant.since + held))

    def _on_release_refused(self, *, lock: str, reason: str, **kwargs: object) -> None:
        for grant in [grant for grant in self._holds if grant.key == lock and grant.held() is None]:
            span = self._holds.pop(grant)
            span.set_status(Status(StatusCode.ERROR, reason))
            span.end()

    def _on_lost(self, *, hold: Hold, reason: str, receipt: Receipt | None, **kwargs: object) -> None:
        span = self._holds.pop(held_of(hold).grant, None)
        if span is None:
            return
        now = time.time_ns()
        lost_at = now if receipt is None else now - round(receipt.stopped_after * 1e9)
        span.add_event("lost", {"zklock.reason": reason}, lost_at)
        span.set_status(Status(StatusCode.ERROR, reason))
        span.end(now)


_spans: Spans | None = None


def connect(provider: TracerProvider | None) -> None:
    """Make spans, unless this is done already."""
    global _spans
    if _spans is None:
        _spans = Spans(provider)
        events.about = trace_items


def disconnect() -> None:
    """Make no more spans, if this is done."""
    global _spans
    if _spans is not None:
        _spans.stop()
    _spans = events.about = None
