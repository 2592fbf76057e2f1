"""Unique tasks under random kills of publishers and workers: one at a time, none lost, no key stuck."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.chaos.uniqueness import KEYS, Turmoil, Verdict, deadline
from support.reserving import holder
from support.zoo import Zoo, eventually

pytestmark = pytest.mark.zookeeper

SESSION = 4  # seconds; of `Zoo.url`


def play(zoo: Zoo, home: Path, *, done: bool, late: bool, seconds: float, seed: int) -> Verdict:
    turmoil = Turmoil(zoo, home, done=done, late=late, seed=seed)
    with turmoil.running():
        eventually(
            lambda: (home / "history").exists() and Verdict(turmoil.events()).count("enter") > 3,
            60,
            "the five processes did not begin, as on a machine with too much load",
        )
        going = deadline(seconds)
        while going():
            time.sleep(turmoil.random.uniform(0.2, 1.0))
            turmoil.strike()
        turmoil.settle()
        # Of the dead, the sessions end by themselves; of the living, the work does.
        eventually(lambda: all(holder(key) is None for key in KEYS), 3 * SESSION, "a key is stuck")
    verdict = Verdict(turmoil.events())
    print({what: verdict.count(what) for what in ("sent", "taken", "enter", "leave", "killed", "error")}, "seed", seed)
    print("excused", len(verdict.excused))
    return verdict


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("done", [True, False], ids=["done", "start"])
@pytest.mark.timeout(180)
def test_unique_tasks_survive_kills(zoo: Zoo, tmp_path: Path, done: bool, late: bool) -> None:
    """Any of them may be killed at any moment."""
    check_history(
        play(zoo, tmp_path, done=done, late=late, seconds=20, seed=time.time_ns() % 1000), done=done, late=late
    )


@pytest.mark.timeout(120)
def test_unique_tasks_survive_a_few_kills(zoo: Zoo, tmp_path: Path) -> None:
    """A short run, with a fixed seed, kills each kind of process."""
    check_history(play(zoo, tmp_path, done=True, late=True, seconds=2, seed=7), done=True, late=True)


def check_history(verdict: Verdict, *, done: bool, late: bool) -> None:
    verdict.assert_told_the_truth()
    if done:
        verdict.assert_one_at_a_time(late=late)
    if late:
        verdict.assert_nothing_lost()
        if not done:
            verdict.assert_begun_after_each_call()
