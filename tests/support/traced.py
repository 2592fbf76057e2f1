"""Spans of locks, as OpenTelemetry's SDK would export them: in memory, or of other processes in a file."""

import json
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_zklock.contrib.otel import connect, disconnect
from support.zoo import eventually

SPANS = "spans"  # the file in the folder of a worker to which its processes export
WAITING = "waiting"  # a file there; it exists when a task waits, and knows which one is ahead


class Traced:
    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self):
        return self.provider.get_tracer("project")

    def spans(self, name):
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait(self, name, count=1):
        eventually(lambda: len(self.spans(name)) >= count, message=f"not {count} spans {name}")
        assert len(self.spans(name)) == count
        return self.spans(name)


@contextmanager
def traced():
    traced = Traced()
    connect(traced.provider)
    try:
        yield traced
    finally:
        disconnect()


def to_file(path):
    provider = TracerProvider()
    out = path.open("a", buffering=1)
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def in_file(path, name):
    spans = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [span for span in spans if span["name"] == name]
