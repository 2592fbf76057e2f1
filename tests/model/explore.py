"""Search for a schedule that breaks an invariant: by chance, or through all with one deviation. It is told short."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import asdict, dataclass, field

from model.choices import Chance, Replay, described
from model.invariants import Violation
from model.patches import stage
from model.scenario import Scenario, drawn, rates
from model.schedule import play

SHRINKS = 400  # runs that may be spent on a shorter schedule


@dataclass(slots=True)
class Finding:
    violation: Violation
    scenario: Scenario
    deviations: dict
    seed: int | None = None

    def text(self):
        with stage() as here:
            played = play(here, self.scenario, Replay(self.deviations), diary=[])
        lines = [str(self.violation), f"seed {self.seed}" if self.seed is not None else "", str(self.scenario)]
        lines += ["deviations:", *(f"  {described(point, option)}" for point, option in self.deviations.items())]
        return "\n".join([*lines, "diary:", *played.diary[-120:]])


@dataclass(slots=True)
class Report:
    schedules: int = 0
    steps: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, played):
        self.schedules += 1
        self.steps += played.steps
        self.figures.update(asdict(played.figures))

    def __str__(self):
        counted = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in self.figures.items())
        return f"{self.schedules} schedules, {self.steps} steps; {counted}; {len(self.findings)} broke a rule"


def explore(
    schedules,
    seed,
    *,
    often=None,
    draw=drawn,
):
    """Play schedules by chance, up to the first that breaks a rule; each is made by its own number, from `seed` on."""
    report = Report()
    with stage() as here:
        for number in range(seed, seed + schedules):
            rng = random.Random(number)
            scenario = draw(rng)
            chooser = Chance(rng, often or rates(rng))
            played = play(here, scenario, chooser)
            report.add(played)
            if played.violation is not None:
                shrunk = _shrunk(here, scenario, dict(chooser.deviations), played.violation)
                report.findings.append(Finding(played.violation, scenario, shrunk, number))
                break
    return report


def exhaust(scenario, *, limit=None):
    """Play every schedule with one deviation from the default, by replay; at most `limit` of them, evenly chosen."""
    report = Report()
    with stage() as here:
        chooser = Replay({})
        play(here, scenario, chooser)
        single = [{point: option} for point, options in chooser.seen for option in range(1, options)]
        step = 1 if limit is None else max(1, math.ceil(len(single) / limit))
        for deviations in ({}, *single[::step]):
            played = play(here, scenario, Replay(deviations))
            report.add(played)
            if played.violation is not None:
                report.findings.append(Finding(played.violation, scenario, deviations))
                break
    return report


def _shrunk(here, scenario, deviations, violation):
    budget = [SHRINKS]

    def breaks(deviations):
        budget[0] -= 1
        chooser = Replay(deviations)
        broken_rule = play(here, scenario, chooser).violation
        return chooser.deviations if broken_rule is not None and broken_rule.rule == violation.rule else None

    size = max(1, len(deviations) // 2)
    while budget[0] > 0:
        items = list(deviations.items())
        shorter = None
        for start in range(0, len(items), size):
            shorter = breaks(dict(items[:start] + items[start + size :])) if budget[0] > 0 else None
            if shorter is not None:
                deviations = shorter
                break
        if shorter is None:
            if size == 1:
                break
            size = max(1, size // 2)
    return deviations
