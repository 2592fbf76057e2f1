"""
The lock protocol keeps its promises in every schedule that is tried, and an exploration finds one that does not.

The rules are in `model.invariants` and at the end of `model.schedule`. For longer runs: `python -m model --help`.
"""

from __future__ import annotations

import inspect

import pytest

from model.explore import Report, exhaust, explore
from model.mutants import MUTANTS, Mutant
from model.patches import replaced
from model.scenario import (
    CROWD,
    HANDING,
    HANDING_PERMITS,
    IDLE,
    IMPATIENT,
    LINGERING,
    NESTED,
    PERMITS,
    READERS,
    SMALL,
    Scenario,
    drawn_nested,
)

SEED = 1000
BUDGET = 3000  # schedules to find a broken protocol in; by chance, each of them takes some hundreds at most


def assert_sound(report: Report) -> None:
    assert not report.findings, report.findings[0].text()


def test_random_schedules_break_no_rule() -> None:
    """Each lock has one holder and nothing is left, whatever happens to requests, servers, processes and nodes."""
    report = explore(140, SEED)
    assert_sound(report)
    assert report.figures["grants"] > 150
    assert report.figures["losses"] > 5
    assert report.figures["faults"] > 150
    assert report.figures["handed_on"] > 20
    assert report.figures["adopted"] > 5


def test_random_schedules_of_nested_locks_break_no_rule() -> None:
    """Each circle of waits ends by one victim, the youngest if it can, and no other wait ends so."""
    report = explore(60, SEED, draw=drawn_nested)
    assert_sound(report)
    assert report.figures["victims"] > 30


@pytest.mark.parametrize(
    ("scenario", "limit"),
    [
        (SMALL, 300),
        (IMPATIENT, 300),
        (CROWD, 100),
        (IDLE, 100),
        (READERS, 100),
        (PERMITS, 75),
        (LINGERING, 40),
        (HANDING, 60),
        (HANDING_PERMITS, 60),
        *((scenario, 80) for scenario in NESTED.values()),
    ],
)
def test_every_schedule_with_one_deviation_breaks_no_rule(scenario: Scenario, limit: int) -> None:
    """One late or lost message, fault or slow thread, at any point of a small setting, does no harm."""
    report = exhaust(scenario, 1, limit=limit)
    assert_sound(report)
    assert report.schedules == limit


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_many_more_schedules_break_no_rule() -> None:
    """Thousands of schedules by chance, and every single deviation with readers, permits and lingering, do no harm."""
    assert_sound(explore(3000, 10 * SEED))
    assert_sound(explore(1000, 10 * SEED, draw=drawn_nested))
    for scenario in (SMALL, IMPATIENT, CROWD, IDLE):
        assert_sound(exhaust(scenario, 1, limit=900))
    for scenario in (READERS, PERMITS, LINGERING, HANDING, HANDING_PERMITS, *NESTED.values()):
        assert_sound(exhaust(scenario, 1))


def test_every_mutant_replaces_an_existing_function() -> None:
    """Each one replaces something that the protocol still has, and takes the arguments that this needs."""
    for mutant in MUTANTS:
        with replaced(mutant.patches):
            pass
        for owner, name, value in mutant.patches:
            function = inspect.getattr_static(owner, name)
            if inspect.isfunction(function):
                parameters = inspect.signature(function).parameters.values()
                needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
                named = {parameter.name: None for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY}
                inspect.signature(value).bind(*[None] * (len(needed) - len(named)), **named)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_exploration_finds_each_mutant(mutant: Mutant) -> None:
    """A protocol with one mistake in it breaks a rule soon."""
    report = mutant.search(BUDGET, SEED)
    assert report.findings, f"{report}"


def test_a_schedule_is_repeated_by_its_seed() -> None:
    """Its seed gives the same schedule again, whatever was played before."""
    first, second = explore(10, SEED), explore(10, SEED)
    assert (first.steps, first.figures) == (second.steps, second.figures)


def test_a_finding_is_reduced_to_a_short_schedule() -> None:
    """A schedule that breaks a rule is stripped of what does not matter, and told as it went."""
    mutant = MUTANTS[0]
    (finding,) = mutant.search(BUDGET, SEED).findings
    with replaced(mutant.patches):
        text = finding.text()
    assert len(finding.deviations) <= 4
    assert f"seed {finding.seed}" in text
    assert str(finding.violation) in text
