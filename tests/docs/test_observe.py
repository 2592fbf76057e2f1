"""The code in the how-to about metrics, traces and logs runs, and the reference has all metrics."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from support.docs import assert_passes, text_of, written

from django_zklock.contrib.metrics import connect, disconnect

SHOWN = """
from prometheus_client import REGISTRY
from counted import metrics
from django_zklock import zk_lock


def test_both_registries_count(zklock):
    with zk_lock("inventory/{sku}", fields={"sku": "red-shoe"}):
        pass
    labels = {"lock": "inventory/{sku}", "kind": "lock"}
    zklock.eventually(lambda: REGISTRY.get_sample_value("zklock_hold_seconds_count", labels) == 1)
    zklock.eventually(lambda: b'zklock_holds{kind="lock",lock="inventory/{sku}"} 0.0' in metrics())
    assert b"red-shoe" not in metrics()
"""


TRACED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from django_zklock import zk_lock


def test_the_global_provider_gets_the_spans(zklock):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with zk_lock("inventory/{sku}", fields={"sku": "4711"}):
        pass
    zklock.eventually(lambda: len(exporter.get_finished_spans()) == 2)
    assert [span.name for span in exporter.get_finished_spans()] == ["zklock.acquire", "zklock.hold"]
"""

LOGGED = """
import json
import structlog
import logs
from django_zklock import zk_lock


def test_a_line_under_a_lock_names_it(zklock, capsys):
    with zk_lock("a") as hold:
        structlog.get_logger().info("charged", amount=5)
    structlog.get_logger().info("done")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"event": "charged", "amount": 5, "lock": "a", "token": hold.token}
    assert second == {"event": "done"}
"""

REPORTED = """
import pytest
import sentry_sdk
from payments import pay


def test_an_error_is_reported_with_its_lock(zklock):
    events = []
    sentry_sdk.init("http://key@localhost/1", before_send=lambda event, hint: events.append(event))
    with sentry_sdk.isolation_scope(), pytest.raises(RuntimeError):
        try:
            pay("7")
        except RuntimeError:
            sentry_sdk.capture_exception()
            raise
    (event,) = events
    assert event["contexts"]["lock"]["key"] == "invoice/7"
    assert int(event["contexts"]["lock"]["token"]) > 0
"""


def run(directory: Path, test: str, settings: str = "project_settings") -> None:
    assert_passes(written("how-to/observe.md", directory), test, 1, "--ds", settings)


def test_the_app_for_traces_runs(tmp_path: Path) -> None:
    run(tmp_path, TRACED, "traced_settings")


def test_a_line_of_structlog_names_the_lock(tmp_path: Path) -> None:
    run(tmp_path, LOGGED)


def test_an_error_in_sentry_names_the_lock(tmp_path: Path) -> None:
    run(tmp_path, REPORTED)


def test_the_examples_run(tmp_path: Path) -> None:
    run(tmp_path, SHOWN, "metrics_settings")


def test_every_metric_is_in_the_table() -> None:
    """With its type."""
    registry = CollectorRegistry()
    connect(registry)
    made = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: metric.type
        for metric in registry.collect()
    }
    disconnect(registry)
    assert list(registry.collect()) == []
    text = text_of("reference/metrics.md")
    assert dict(re.findall(r"^\| `(zklock_\w+)` \| (\w+) \|", text, flags=re.MULTILINE)) == made
