"""Tasks under the agent that the variable AGENT names. It reports a line of JSON for each run to a file."""

import json
import os
import time
from datetime import datetime
from pathlib import Path

from celery.signals import worker_process_init

from django_zklock import zk_locked
from support.celeryapp import app, do
from support.celeryfolder import HOME

AGENT = "AGENT"
RUNS = "agent-runs"  # the file in the folder of a worker that the agent reports to

__all__ = ["app"]


@app.task(name="agents.bound", bind=True)
@zk_locked("{key}")
def bound(self, key, verb="tell", argument=None):
    return do(verb, argument)


@app.task(name="agents.measured")
@zk_locked("{key}")
def measured(key):
    return do("brief", None)


@app.task(name="agents.unique", bind=True)
@zk_locked("{key}", unique="until_done")
def unique(self, key):
    return do("tell", None)


@app.task(name="agents.sends")
def sends(key):
    return str(unique.delay(key).id)


def report(name, seconds):
    with Path(os.environ[HOME], RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, seconds]) + "\n")


def newrelic():
    """It is started by `newrelic-admin run-program`."""
    from newrelic.api.application import application_instance
    from newrelic.core.application import Application

    def record_transaction(self, data):
        report(data.path.rpartition("/")[2], data.duration)

    Application.record_transaction = record_transaction

    @worker_process_init.connect(weak=False)
    def wait_until_registered(**kwargs):
        """Have all tasks reported. A thread of the agent registers each process, which reports nothing before that."""
        while not application_instance().active:
            time.sleep(0.01)


def ddtrace():
    """It is started by `ddtrace-run`."""
    from ddtrace.trace import TraceFilter, tracer

    class Report(TraceFilter):
        def process_trace(self, trace):
            for span in trace:
                if span.name == "celery.run":
                    report(span.resource, span.duration)

    tracer.configure(trace_processors=[Report()])


def sentry():
    import sentry_sdk
    from sentry_sdk.transport import Transport

    def before_send_transaction(event, hint):
        begun, ended = (datetime.fromisoformat(event[name]) for name in ("start_timestamp", "timestamp"))
        report(event["transaction"], (ended - begun).total_seconds())

    class Nowhere(Transport):
        def capture_envelope(self, envelope): ...

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=Nowhere,
        traces_sample_rate=1.0,
        before_send_transaction=before_send_transaction,
    )


def opentelemetry():
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Report(SpanProcessor):
        def on_end(self, span):
            assert span.end_time is not None
            assert span.start_time is not None
            report(span.name.removeprefix("run/"), (span.end_time - span.start_time) / 1e9)

    @worker_process_init.connect(weak=False)
    def instrument(**kwargs):
        provider = TracerProvider()
        provider.add_span_processor(Report())
        CeleryInstrumentor().instrument(tracer_provider=provider)


def elasticapm():
    from elasticapm import Client
    from elasticapm.contrib.celery import register_exception_tracking, register_instrumentation
    from elasticapm.transport.base import Transport

    pass_on = Transport.queue

    def queue(self, event_type, data, flush=False):
        if event_type == "transaction":
            report(data["name"], data["duration"] / 1000)
        elif event_type == "close":  # ends its thread
            pass_on(self, event_type, data, flush)

    Transport.queue = queue
    client = Client(
        service_name="tests",
        transport_class="elasticapm.transport.base.Transport",
        central_config=False,
        cloud_provider=False,
        metrics_interval="0s",
    )
    register_exception_tracking(client)
    register_instrumentation(client)


def django_structlog():
    import structlog
    from django_structlog.celery.steps import DjangoStructLogInitStep

    names = {}  # by id, of the tasks of this process

    def write(logger, method, event):
        if event["event"] == "task_started":
            names[event["task_id"]] = event["task"]
        if event["event"] == "task_succeeded":
            report(names[event["task_id"]], event["duration_ms"] / 1000)
        raise structlog.DropEvent

    app.steps["worker"].add(DjangoStructLogInitStep)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, write])


AGENTS = {
    "newrelic": newrelic,
    "ddtrace": ddtrace,
    "sentry_sdk": sentry,
    "opentelemetry": opentelemetry,
    "elasticapm": elasticapm,
    "django_structlog": django_structlog,
}

if AGENT in os.environ:
    AGENTS[os.environ[AGENT]]()
