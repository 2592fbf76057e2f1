"""
A pytest plugin for `make chaos`: its options, the figures that tests measure, and the trial of kazoo's lock.

With `--lock=kazoo` the harness itself is on trial. Only the tests marked `convicts_kazoo` run, and each of them passes
if kazoo's lock fails its assertions. A harness that acquits that lock would acquit any.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

_FIGURE = "figure"  # the property by which a figure travels with the report of its test, also from another process


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "locks under faults")
    group.addoption("--lock", choices=["zklock", "kazoo"], default="zklock", help="the lock under test")
    group.addoption("--soak-seconds", type=float, default=60.0, help="how long the soak lasts (60)")
    group.addoption("--beat-seconds", type=float, default=40.0, help="how long beats are struck in turn (40)")
    group.addoption("--mixed-seconds", type=float, default=75.0, help="how long two versions run together (75)")
    group.addoption("--nesting-seconds", type=float, default=40.0, help="how long locks are taken inside locks (40)")
    group.addoption("--soak-seed", type=int, help="the seed of the soak's faults (drawn and shown)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chaos: left to `make chaos`, or to `make browser`")
    config.addinivalue_line("markers", "convicts_kazoo: fails with kazoo's own Lock (`make chaos LOCK=kazoo`)")
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        config.option.soak_seed = config.workerinput["soak_seed"]
    elif config.option.soak_seed is None:
        config.option.soak_seed = random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all processes of a run the same seed."""
    node.workerinput["soak_seed"] = node.config.option.soak_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"lock under test: {config.option.lock}; --soak-seed={config.option.soak_seed}"


# --- the trial of kazoo's lock --------------------------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests that convict kazoo's lock, if it is on trial."""
    if config.option.lock == "kazoo":
        config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("convicts_kazoo")])
        items[:] = [item for item in items if item.get_closest_marker("convicts_kazoo")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """
    Turn the verdict round if kazoo's lock is on trial.

    Only an assertion of the test itself convicts. Any other error may be trouble of the harness, and a skipped test
    shows nothing. A bad lock may leave something behind that troubles the teardown.
    """
    report: Any = yield
    if item.config.option.lock == "kazoo" and not (call.when == "setup" and report.passed):
        convicted = call.excinfo is not None and call.excinfo.errisinstance(AssertionError)
        report.outcome = "passed" if call.when == "teardown" or (call.when == "call" and convicted) else "failed"
        report.longrepr = report.longrepr or "kazoo's lock kept the promise of this test"
    return report  # type: ignore[no-any-return]


# --- what a test measures -------------------------------------------------------------------------------------------


class Figures:
    """
    Note what a test measured, for the end of the run.

        figure("next holder after", 4.1, "s")
        figure.spread("work stopped after", seconds)
    """

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties

    def __call__(self, label: str, value: float | str, unit: str = "") -> None:
        """Note one figure."""
        self._properties.append((_FIGURE, f"{label} {_quantity(value, unit)}"))

    def spread(self, label: str, seconds: Iterable[float]) -> None:
        """Note the least, the median and the greatest of some durations."""
        values = sorted(seconds)
        if values:
            spread = (values[0], statistics.median(values), values[-1])
            shown = " / ".join(_quantity(value, "s") for value in spread)
            self(label, f"{shown} (min / median / max of {len(values)})")
        else:
            self(label, "none")


def _quantity(value: float | str, unit: str) -> str:
    if unit == "s" and isinstance(value, (int, float)):
        return f"{value * 1000:.1f} ms" if abs(value) < 0.1 else f"{value:.2f} s"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figures:
    """A call with a label, a value and a unit is shown at the end of the run; see `Figures`."""
    return Figures(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    lines = {  # without repetitions: the report of the teardown has the figures, too
        f"{report.nodeid.rpartition('/')[2]}: {figure}": None
        for report in reports
        for name, figure in report.user_properties
        if name == _FIGURE
    }
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
