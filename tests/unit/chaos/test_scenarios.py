"""Every scenario that applies is shown by a test, and no test claims to show one that does not."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos.scenarios import BY_ID, KNOWN_BAD, SCENARIOS, by_number
from support.zoo import TESTS


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """The ids that a file's `pytest.mark.scenario(...)` name, each with the place."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.scenario":
            continue
        place = f"{path.relative_to(TESTS)}:{node.lineno}"
        assert node.args, f"{place}: names no scenario"
        for argument in node.args:
            assert isinstance(argument, ast.Constant), f"{place}: the id is to be written out"
            yield str(argument.value), place


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """Where each scenario is shown."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for scenario, place in marks(path):
            found[scenario].append(place)
    return found


def test_every_scenario_that_applies_has_a_test(shown: dict[str, list[str]]) -> None:
    """What is promised under a fault is not left to belief."""
    missing = [scenario.id for scenario in SCENARIOS if not scenario.waits_for and scenario.id not in shown]
    assert not missing, f"no test shows {' '.join(missing)}"


def test_no_test_names_an_unknown_scenario(shown: dict[str, list[str]]) -> None:
    """A typing error in a marker would leave a scenario without its test."""
    assert {scenario: places for scenario, places in shown.items() if scenario not in BY_ID} == {}


def test_what_waits_for_something_has_no_test_yet(shown: dict[str, list[str]]) -> None:
    """Once it can be shown, it no longer waits: the reason is to go."""
    early = {scenario: shown[scenario] for scenario in shown if scenario in BY_ID and BY_ID[scenario].waits_for}
    assert early == {}


def test_ids_are_unique_and_sort_by_their_numbers() -> None:
    """F2 comes before F10, and what has no number comes last."""
    ids = [scenario.id for scenario in SCENARIOS]
    assert len(set(ids)) == len(ids)
    assert sorted(["F10", "ABORT", "F2"], key=by_number) == ["F2", "F10", "ABORT"]


def test_what_convicts_kazoo_applies() -> None:
    """The harness proves that it can tell good from bad by scenarios that it runs."""
    assert [scenario for scenario in KNOWN_BAD if BY_ID[scenario].waits_for] == []
