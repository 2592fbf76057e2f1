"""The code in the how-to about semaphores runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import written
from support.project import Project

from django_zklock import conf

TEST = """
from reports import build, print_label
from slowing import full_speed, slow_down
from watching import in_use

import pytest
from django_zklock import zk_lock


def test_permits_are_taken(zklock):
    printed = []
    print_label("fragile", printed)
    assert printed[0][1] == "fragile" and printed[0][0] > 0
    assert build("monthly") == "monthly is built"


def test_a_limit_counts_until_it_is_cleared(zklock):
    found = slow_down("monthly", "anna")
    assert (found.limit, found.by, found.reason) == (1, "anna", "the replica lags")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 1)
    assert full_speed("monthly", "anna")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 3)
    assert in_use("reports/monthly") == (0, None)
"""


def test_the_examples_of_semaphores_run(tmp_path: Path) -> None:
    """What a reader would copy does what the page says; the settings are sound."""
    shown: Project = written("semaphores.md", tmp_path / "shown")
    names: dict[str, object] = {}
    exec((shown.directory / "settings.py").read_text(), names)
    assert conf.problems(names["ZKLOCK"]) == []
    fresh = Project(tmp_path / "fresh")
    for name in ("reports.py", "slowing.py", "watching.py"):
        fresh.write(name, (shown.directory / name).read_text())
    fresh.write("test_semaphores.py", TEST)
    done = fresh.run("-m", "pytest", "-q", "test_semaphores.py")
    assert done.returncode == 0, done.stdout + done.stderr
