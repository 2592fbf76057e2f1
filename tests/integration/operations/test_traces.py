"""Spans of locks, as OpenTelemetry's SDK exports them, on a real ZooKeeper."""

import asyncio
from functools import partial

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, use_span
from support.deadlock import give_way
from support.faults import BackgroundCall, CallOnDemand, acquire_once
from support.primitives import end_session
from support.traced import SPANS, WAITING, in_file, traced
from support.work import assert_refused
from support.worker import Worker
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost, LockTimeout

NAME = "inventory/{sku}"


@pytest.fixture
def spans(zoo):
    with traced() as recorded:
        yield recorded


def context_of(span):
    context = span.get_span_context()
    assert context is not None
    return context


def is_child(span, parent):
    ids = context_of(parent)
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (ids.trace_id, ids.span_id)


def test_a_lock_has_two_spans_below_that_of_its_caller(spans):
    with spans.tracer.start_as_current_span("request") as request, zk_lock(NAME, fields={"sku": "4711"}) as hold:
        token = hold.token
    (acquired,), (held,) = spans.wait("zklock.acquire"), spans.wait("zklock.hold")
    assert is_child(acquired, request)
    assert is_child(held, request)
    assert held.parent is not None
    assert not held.parent.is_remote
    waited = (acquired.attributes or {})["zklock.waited"]
    common = {"zklock.key_template": NAME, "zklock.kind": "lock", "zklock.token": token}
    assert acquired.attributes == {**common, "zklock.waited": waited}
    assert held.attributes == common


def test_the_span_of_a_hold_follows_that_of_its_wait_and_is_around_the_work(spans):
    tracer = spans.tracer
    with tracer.start_as_current_span("request") as request, zk_lock("k"), tracer.start_as_current_span("query"):
        pass
    names = ("request", "zklock.acquire", "zklock.hold", "query")
    outer, acquired, held, query = (spans.wait(name)[0] for name in names)
    begins = [span.start_time or 0 for span in (outer, acquired, held, query)]
    ends = [span.end_time or 0 for span in (acquired, query, held, outer)]
    assert begins == sorted(begins)
    assert ends == sorted(ends)
    assert held.start_time == acquired.end_time
    assert is_child(query, request), "the span of the hold is not the current one"


def test_each_asyncio_task_has_its_own_parent(spans):
    async def work(name):
        with spans.tracer.start_as_current_span("request") as request:
            async with zk_lock("{name}", fields={"name": name}, timeout=20):
                await asyncio.sleep(0)
        return name, context_of(request)

    async def both():
        return list(await asyncio.gather(work("same"), work("same"), work("other")))

    parents = {request.trace_id for _, request in asyncio.run(both())}
    assert len(parents) == 3
    assert {context_of(held).trace_id for held in spans.wait("zklock.hold", 3)} == parents
    assert {context_of(acquired).trace_id for acquired in spans.wait("zklock.acquire", 3)} == parents


def test_a_span_that_is_not_sampled_has_no_spans_of_locks(spans):
    ignored = SpanContext(1, 2, is_remote=False)
    with use_span(NonRecordingSpan(ignored)), zk_lock("ignored"):
        pass
    acquire_once("noted")
    (held,) = spans.wait("zklock.hold")
    assert (held.attributes or {})["zklock.key_template"] == "noted"


class BrokenSpan(NonRecordingSpan):
    def get_span_context(self):
        raise RuntimeError("no context")


def test_a_trace_that_fails_does_not_fail_the_lock(spans, caplog):
    with use_span(BrokenSpan(SpanContext(1, 2, is_remote=False))), zk_lock("k") as hold:
        hold.check()
    assert "the trace of the caller cannot be read" in caplog.text
    spans.wait("zklock.hold")


def test_the_span_of_a_wait_that_gives_way_has_the_deadlock(zoo, spans):
    error = give_way(zoo, "a", "b")
    (failed,) = [span for span in spans.wait("zklock.acquire", 4) if "error.type" in (span.attributes or {})]
    (event,) = failed.events
    assert (failed.attributes or {})["error.type"] == "LockDeadlock"
    assert (event.attributes or {})["exception.message"] == str(error)
    assert len(error.circle) == 2


@pytest.mark.parametrize(
    ("timeout", "error", "status"),
    [(0, LockBusy, StatusCode.UNSET), (1, LockTimeout, StatusCode.ERROR)],
    ids=["busy", "timeout"],
)
def test_an_acquisition_that_fails_says_why(zoo, spans, timeout, error, status):
    def acquire():
        assert_refused(zk_lock("k", timeout=timeout), error)

    with zk_lock("k"):
        BackgroundCall(acquire).result()
        _, failed = spans.wait("zklock.acquire", 2)
    assert_failed(failed, error, status)


def assert_failed(span, error, status):
    assert span.attributes is not None
    assert span.attributes["error.type"] == error.__name__
    assert "zklock.token" not in span.attributes
    assert span.status.status_code == status
    (event,) = span.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.type"] == f"django_zklock.exceptions.{error.__name__}"


def test_the_span_of_a_lost_hold_has_an_error(zoo, spans):
    thief = CallOnDemand(partial(end_session, zoo))
    with pytest.raises(LockLost), spans.tracer.start_as_current_span("request"), zk_lock("k") as hold:
        thief.begin(zoo.client.exists(hold.path).ephemeralOwner)
        eventually(lambda: False, 20)
    thief.result()
    (held,) = spans.wait("zklock.hold")
    assert held.status.status_code is StatusCode.ERROR
    (lost,) = held.events
    assert (lost.name, dict(lost.attributes or {})) == ("lost", {"zklock.reason": held.status.description})


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_waiting_task_belongs_to_the_trace_of_its_message(zoo, tmp_path, pool):
    first, second = ("1" * 32, "2" * 16), ("3" * 32, "4" * 16)
    with Worker(zoo, tmp_path, pool=pool, tasks="support.tracedtasks") as worker:
        gate = worker.gate()
        results = []
        for trace_id, span_id in (first, second):
            headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
            results.append(worker.send("waiting.wait", "k", "linger", str(gate), headers=headers))
            zoo.wait_contenders("k", len(results))
        gate.wait_at_work()
        eventually((tmp_path / WAITING).exists)
        about = [(payload.about["trace"], payload.about["span"]) for payload in zoo.payloads("k")]
        assert about == [(trace_id, f"{span_id}-01") for trace_id, span_id in (first, second)]
        gate.open()
        for result in results:
            worker.get(result)
        file = tmp_path / SPANS
        runs, acquired, held = (spans_of_two(file, name) for name in ("run", "zklock.acquire", "zklock.hold"))
    parents = {trace_id: span["context"]["span_id"] for trace_id, span in runs.items()}
    assert parents.keys() == {f"0x{first[0]}", f"0x{second[0]}"}
    for spans in (acquired, held):
        assert {trace_id: span["parent_id"] for trace_id, span in spans.items()} == parents


def spans_of_two(file, name):
    """Return the spans of this name in a file, by their traces, when there are two."""
    eventually(lambda: len(in_file(file, name)) == 2)
    return {span["context"]["trace_id"]: span for span in in_file(file, name)}
