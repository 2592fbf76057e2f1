"""The dashboard for Grafana and the alerts for Prometheus in `examples/monitoring` fit the metrics."""

import json
import re
import subprocess
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry
from support import promtool

from django_zklock.contrib.metrics import connect, disconnect

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]

SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def metrics():
    registry = CollectorRegistry()
    connect(registry)
    endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    labels_by_name = {}
    for metric in registry._collector_to_names:
        for family in metric.describe():
            named = metric if hasattr(metric, "_labelnames") else family
            labels = {*named._labelnames} | SCRAPED
            for ending in endings[family.type]:
                labels_by_name[family.name + ending] = labels | ({"le"} if ending == "_bucket" else set())
    disconnect(registry)
    return labels_by_name


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    """Return all expressions, with a value for each of Grafana's variables."""
    variables = [
        expression["query"]["query"] for expression in DASHBOARD["templating"]["list"] if expression["type"] == "query"
    ]
    selectors = [re.fullmatch(r"label_values\((.*), \w+\)", expression) for expression in variables]
    expressions_of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    expressions_of_panels += [expression[1] for expression in selectors if expression is not None]
    assert len(expressions_of_panels) > len(variables) == len(selectors) == 2
    return [
        re.sub(r"\$__(rate_interval|range)", "5m", expression)
        for expression in [*expressions_of_panels, *(rule["expr"] for rule in RULES)]
    ]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_use_existing_series(expression, metrics):
    parsed = promql.parse(expression)
    selectors = []
    promql.walk(parsed, lambda node: selectors.append(node) if isinstance(node, promql.VectorSelector) else None)
    assert selectors
    for selector in selectors:
        assert selector.name in metrics
        assert {node.name for node in selector.matchers.matchers} <= metrics[str(selector.name)]
    grouped = {label for labels in re.findall(r"\bby \((.*?)\)", expression) for label in labels.split(", ")}
    assert grouped <= set.union(*(metrics[str(selector.name)] for selector in selectors))


def test_every_alert_says_what_to_do_and_is_tested():
    tested = (FOLDER / "alerts-test.yml").read_text()
    assert len(RULES) > 10
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) - {"runbook_url"} == {"summary", "description"}
        assert f'"{rule["alert"]}"' in tested


def test_each_alert_leads_to_what_to_do():
    page = (FOLDER.parents[1] / "docs/reference/incidents.md").read_text()
    rules = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
    assert [name for name in rules if f"## {name}\n" not in page] == []
    links = {name: rule["annotations"]["runbook_url"].partition("/incidents/#")[2] for name, rule in rules.items()}
    assert links == {name: name.lower() for name in rules}


def test_the_alerts_fire_in_trouble_and_at_no_other_time():
    program = promtool.find()
    if program is None:
        pytest.skip("no promtool of Prometheus, which tests the alerts")
    command = [program, "test", "rules", "alerts-test.yml"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
