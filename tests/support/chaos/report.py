"""
A pytest plugin: the options of a run of the scenarios, and the table of its results.

Tests say by the marker `scenario` what they show, and by the fixture `figure` what they measured. A run with `--chaos`
ends with a table of both. With `--lock=kazoo` the harness itself is on trial: it has to convict a lock that is known
to be bad, by the assertion of a test, and a run that convicts too little fails.
"""

from __future__ import annotations

import random
import statistics
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from support.chaos.scenarios import KNOWN_BAD, SCENARIOS, by_number

Verdict = Literal["passed", "FAILED", "skipped", "convicted", "acquitted", "no verdict"]

WIDTHS = (11, 50, 10, 43)  # columns: with two blanks between them, 120 characters
LONGEST_REASON = 130

_PROPERTY = "chaos"  # under which what is known of a test travels with its reports, also from another process
_FIGURES = pytest.StashKey[list[dict[str, Any]]]()


# --- what a run is told ---------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "locks under faults")
    group.addoption("--chaos", action="store_true", help="end with a table of the scenarios and what they measured")
    group.addoption(
        "--lock",
        choices=["zklock", "kazoo"],
        default="zklock",
        help="the lock under test; for kazoo's, only what the harness's processes do is run, and has to fail",
    )
    group.addoption("--soak-seconds", type=float, default=60.0, help="how long the soak lasts (60)")
    group.addoption("--beat-seconds", type=float, default=40.0, help="how long beats are struck in turn (40)")
    group.addoption("--soak-seed", type=int, help="what the soak draws its faults by (drawn and shown)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(*ids): shows what holds under a fault, see support.chaos.scenarios")
    config.addinivalue_line("markers", "chaos: left to `make chaos`, or to `make browser`")
    told = getattr(config, "workerinput", None)  # which the processes of pytest-xdist have
    if told is not None:
        config.option.soak_seed = told["soak_seed"]
        return
    if config.option.soak_seed is None:
        config.option.soak_seed = random.SystemRandom().randrange(2**32)
    config.pluginmanager.register(Trial(config))


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.option.chaos:
        return []
    return [f"lock under test: {config.option.lock}; --soak-seed={config.option.soak_seed}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not use the harness's processes, where those take another lock than ours."""
    if config.option.lock == "zklock":
        return
    kept = [item for item in items if "pool" in getattr(item, "fixturenames", ())]
    if left_out := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept


# --- what a test measures -------------------------------------------------------------------------------------------


class Figures:
    """
    Notes what a test measured, for the table.

        figure("next holder after", 4.1, "s")
        figure.spread("work stopped after", seconds)
    """

    def __init__(self, noted: list[dict[str, Any]]) -> None:
        self._noted = noted

    def __call__(self, label: str, value: float | str, unit: str = "") -> None:
        """Note one figure; seconds are shown in a unit that suits them."""
        self._noted.append({"label": label, "value": value, "unit": unit})

    def spread(self, label: str, seconds: Iterable[float]) -> None:
        """Note the least, the median and the greatest of some durations."""
        values = sorted(seconds)
        if values:
            spread = {"min": values[0], "median": statistics.median(values), "max": values[-1], "count": len(values)}
        else:
            spread = {"count": 0}
        self._noted.append({"label": label, "value": spread, "unit": "s"})


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figures:
    """What is called with a label, a value and a unit shows in the table; see `Figures`."""
    return Figures(request.node.stash.setdefault(_FIGURES, []))


def shown(figure: dict[str, Any]) -> str:
    """Return a figure as the table has it."""
    label, value, unit = figure["label"], figure["value"], figure["unit"]
    if isinstance(value, dict):
        if not value["count"]:
            return f"{label}: none"
        parts = ", ".join(f"{name} {_quantity(value[name], unit)}" for name in ("min", "median", "max"))
        return f"{label}: {parts} ({value['count']})"
    return f"{label} {_quantity(value, unit)}"


def _quantity(value: float | str, unit: str) -> str:
    if unit == "s" and isinstance(value, (int, float)):
        return f"{value * 1000:.1f} ms" if abs(value) < 0.1 else f"{value:.2f} s"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


# --- what became of a test ------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add what the table needs to the report of a test that shows a scenario."""
    report: Any = yield
    if ids := [str(name) for mark in item.iter_markers("scenario") for name in mark.args]:
        known = {
            "ids": list(dict.fromkeys(ids)),
            "name": getattr(item, "originalname", None) or item.name,
            "case": item.callspec.id if hasattr(item, "callspec") else "",
            "figures": list(item.stash.get(_FIGURES, None) or ()),
            # Only this is the test's own word. Anything else may as well be trouble of the harness.
            "asserted": call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(AssertionError),
            "why": _why(report, call),
        }
        report.user_properties.append((_PROPERTY, known))
    return report  # type: ignore[no-any-return]


def _why(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return _short(report.longrepr[2].removeprefix("Skipped: "))
    if report.passed or call.excinfo is None:
        return ""
    said = next(iter(str(call.excinfo.value).splitlines()), "")
    kind = "" if call.excinfo.errisinstance(AssertionError) and said else f"{call.excinfo.typename}: "
    place = "" if call.when == "call" else f"in {call.when}: "
    return _short(f"{place}{kind}{said}")


def _short(text: str) -> str:
    return textwrap.shorten(text.encode("ascii", "backslashreplace").decode(), LONGEST_REASON, placeholder=" ...")


@dataclass(slots=True)
class Result:
    """One test that shows scenarios, as its reports tell of it."""

    ids: list[str]
    name: str
    case: str
    verdict: Verdict = "passed"
    why: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, report: pytest.TestReport, known: dict[str, Any], lock: str) -> None:
        """Take in the report of one phase: setup, call or teardown."""
        self.figures = known["figures"]
        on_trial = lock != "zklock"
        if report.when == "call" and report.passed and on_trial:
            self.verdict = "acquitted"
        elif report.skipped:
            self.verdict, self.why = "skipped", known["why"]
        elif report.failed and known["asserted"] and on_trial:
            self.verdict, self.why = "convicted", known["why"]
        elif report.failed and self.verdict != "convicted":  # which an error of the teardown does not undo
            self.verdict, self.why = "no verdict" if on_trial else "FAILED", self.why or known["why"]


# --- what a run reports ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a test under one of the scenarios that it shows, or several cases of one that passed."""

    scenario: str
    holds: str
    verdict: Verdict
    notes: tuple[str, ...]
    figures: tuple[dict[str, Any], ...]


class Trial:
    """What became of all the tests of a run that show scenarios."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.lock: str = config.option.lock
        self.results: dict[str, Result] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["soak_seed"] = self._config.option.soak_seed  # one for the whole run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, known in report.user_properties:
            if name == _PROPERTY and isinstance(known, dict):
                if report.when == "setup":  # once more, if the test is run once more
                    self.results[report.nodeid] = Result(known["ids"], known["name"], known["case"])
                self.results[report.nodeid].add(report, known, self.lock)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        judged = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.lock != "zklock" and session.exitstatus in judged and not self._config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if self.not_convicted() else pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.option.chaos or (self.lock != "zklock" and not self._config.option.collectonly):
            terminalreporter.section("scenarios")
            for line in self.lines():
                terminalreporter.write_line(line)

    def not_convicted(self) -> dict[str, str]:
        """Return which of the scenarios that have to fail did not, and what came of them instead."""
        found: dict[str, str] = dict.fromkeys(KNOWN_BAD, "not run")
        convicted = set()
        for result in self.results.values():
            for scenario in result.ids:
                found[scenario] = result.verdict
                convicted |= {scenario} if result.verdict == "convicted" else set()
        return {scenario: found[scenario] for scenario in KNOWN_BAD if scenario not in convicted}

    def rows(self) -> list[Row]:
        """Return the table, by number; cases of a test that passed without a figure share a line."""
        together: dict[tuple[str, str, str], list[Result]] = {}
        for nodeid, result in self.results.items():
            alike = result.verdict in ("passed", "acquitted") and not result.figures
            # A test is told from another by its place, so that two of one name do not share a line.
            place = nodeid.rpartition(f"::{result.name}")[0]
            for scenario in result.ids:
                together.setdefault((scenario, f"{place}::{result.name}", "" if alike else result.case), []).append(
                    result
                )
        rows = []
        for (scenario, _, _), results in sorted(together.items(), key=lambda each: (by_number(each[0][0]), each[0])):
            first = results[0]
            case = f" ({first.case})" if first.case and len(results) == 1 else ""
            notes = [first.why] if first.why else []
            notes += [f"{len(results)} cases"] if len(results) > 1 else []
            holds = first.name.removeprefix("test_").replace("_", " ") + case
            rows.append(Row(scenario, _short(holds), first.verdict, tuple(notes), tuple(first.figures)))
        return rows

    def lines(self) -> list[str]:
        """Return the table, and what is to be said below it."""
        yielded = list(_cells("", "what holds", "", "figures"))
        yielded.append("-" * (sum(WIDTHS) + 2 * (len(WIDTHS) - 1)))
        for row in self.rows():
            yielded += _cells(row.scenario, row.holds, row.verdict, *row.notes, *map(shown, row.figures))
        yielded += ["", *self._below()]
        return yielded

    def _below(self) -> Iterator[str]:
        if self.lock != "zklock":
            missing = self.not_convicted()
            if missing:
                named = ", ".join(f"{scenario} ({what})" for scenario, what in missing.items())
                yield from textwrap.wrap(f"NOT CONVICTED: {named}", 120)
            else:
                yield f"{self.lock} was convicted of {' '.join(KNOWN_BAD)}, as it had to be"
            return
        ran = {scenario for result in self.results.values() for scenario in result.ids}
        if not_run := [each.id for each in SCENARIOS if not each.waits_for and each.id not in ran]:
            yield from textwrap.wrap(f"not run: {' '.join(not_run)}", 120)
        for each in SCENARIOS:
            if each.waits_for:
                yield f"{each.id} does not apply yet: it needs {each.waits_for}"


def _cells(scenario: str, holds: str, verdict: str, *last: str) -> Iterator[str]:
    """Lay out one row of the table, over as many lines as its longest cell takes."""
    wrapped = [textwrap.wrap(text, width) for text, width in zip((scenario, holds, verdict), WIDTHS, strict=False)]
    wrapped.append([line for text in last for line in textwrap.wrap(text, WIDTHS[-1])])
    for number in range(max(len(lines) for lines in wrapped)):
        cells = [lines[number] if number < len(lines) else "" for lines in wrapped]
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()
