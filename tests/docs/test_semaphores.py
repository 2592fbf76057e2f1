"""The code in the how-to about semaphores runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, assert_settings, files_of
from support.project import Project

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
    limit = slow_down("monthly", "anna")
    assert (limit.limit, limit.by, limit.reason) == (1, "anna", "the replica lags")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 1)
    assert full_speed("monthly", "anna")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 3)
    assert in_use("reports/monthly") == (0, None)
"""


def test_the_examples_of_semaphores_run(tmp_path: Path) -> None:
    files = files_of("how-to/semaphores.md")
    assert_settings(files.pop("settings.py"))
    project = Project(tmp_path)
    for name, code in files.items():
        project.write(name, code)
    assert_passes(project, TEST, 2)
