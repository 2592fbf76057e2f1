"""The protocol keeps the rules of `model.invariants` in each schedule; an exploration finds one that does not."""

import pytest

from model.explore import exhaust, explore
from model.mutants import MUTANTS
from model.patches import replaced
from model.scenario import OTHERS, PLAIN, READERS, drawn, drawn_moving, drawn_nested

SEED = 1000
BUDGET = 3000  # schedules to find a broken protocol in; by chance, each of them takes some hundreds at most


def assert_sound(report):
    assert not report.findings, report.findings[0].text()


def test_random_schedules_break_no_rule():
    report = explore(100, SEED)
    assert_sound(report)
    assert report.figures["grants"] > 100
    assert report.figures["losses"] > 3
    assert report.figures["faults"] > 100
    assert report.figures["handed_on"] > 10


def test_random_schedules_of_nested_locks_break_no_rule():
    report = explore(30, SEED, draw=drawn_nested)
    assert_sound(report)
    assert report.figures["victims"] > 15


def test_random_schedules_of_servers_that_grant_different_timeouts_break_no_rule():
    report = explore(60, SEED, draw=drawn_moving)
    assert_sound(report)
    assert report.figures["losses"] > 10


@pytest.mark.parametrize(("seed", "draw"), [(10016, drawn), (80398, drawn_nested)])
def test_a_schedule_with_a_late_reply_breaks_no_rule(seed, draw):
    """A reply that comes after the caller gave up, and a listing that an earlier connection has lost."""
    assert_sound(explore(1, seed, draw=draw))


@pytest.mark.parametrize(
    ("scenario", "limit"),
    [*zip((*PLAIN, READERS), (60, 60, 30, 30, 30), strict=True), *((scenario, 20) for scenario in OTHERS)],
)
def test_every_schedule_with_one_deviation_breaks_no_rule(scenario, limit):
    report = exhaust(scenario, limit=limit)
    assert_sound(report)
    assert report.schedules > limit / 2


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_more_schedules_break_no_rule():
    assert_sound(explore(3000, 10 * SEED))
    assert_sound(explore(1000, 10 * SEED, draw=drawn_nested))
    assert_sound(explore(1000, 10 * SEED, draw=drawn_moving))
    for scenario in PLAIN:
        assert_sound(exhaust(scenario, limit=900))
    for scenario in (READERS, *OTHERS):
        assert_sound(exhaust(scenario))


def test_every_mutant_replaces_what_the_protocol_has():
    for mutant in MUTANTS:
        with replaced(mutant.patches):
            pass


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_exploration_finds_each_mutant(mutant):
    report = mutant.search(BUDGET, SEED)
    assert report.findings, f"{report}"
    with replaced(mutant.patches):
        assert str(report.findings[0].violation) in report.findings[0].text()


def test_a_schedule_is_repeated_by_its_seed():
    first, second = explore(5, SEED), explore(5, SEED)
    assert (first.steps, first.figures) == (second.steps, second.figures)
