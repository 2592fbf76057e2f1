"""The code in the how-to about metrics runs, and its table has them all."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from support.docs import DOCS, written

from django_zklock.contrib.metrics import connect, disconnect

SHOWN = """
from prometheus_client import REGISTRY
from counted import metrics
from django_zklock import zk_lock


def test_both_registries_count(zklock):
    with zk_lock("inventory/{sku}", fields={"sku": "4711"}):
        pass
    labels = {"lock": "inventory/{sku}", "kind": "lock"}
    zklock.eventually(lambda: REGISTRY.get_sample_value("zklock_hold_seconds_count", labels) == 1)
    zklock.eventually(lambda: b'zklock_holds{kind="lock",lock="inventory/{sku}"} 0.0' in metrics())
    assert b"4711" not in metrics()
"""


def test_the_examples_run(tmp_path: Path) -> None:
    """What a reader would copy does what the page says."""
    project = written("metrics.md", tmp_path)
    project.write("test_shown.py", SHOWN)
    done = project.run("-m", "pytest", "-q", "--ds", "metrics_settings", "test_shown.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_every_metric_is_in_the_table() -> None:
    """With its type."""
    registry = CollectorRegistry()
    connect(registry)
    made = {f"{each.name}_total" if each.type == "counter" else each.name: each.type for each in registry.collect()}
    disconnect(registry)
    assert list(registry.collect()) == []
    text = (DOCS / "how-to" / "metrics.md").read_text()
    assert dict(re.findall(r"^\| `(zklock_\w+)` \| (\w+) \|", text, flags=re.MULTILINE)) == made
