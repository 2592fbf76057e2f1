"""The workflows of GitHub Actions run what tox and make know, on each version that the package declares."""

from __future__ import annotations

import configparser
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS: dict[str, Any] = {
    name: job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
COMMANDS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]


def config(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / name)
    return parser


def environments() -> set[str]:
    """Return the environments of tox, with their braces expanded."""
    names = set()
    for line in config("tox.ini")["tox"]["envlist"].split():
        parts = [part.split(",") for part in re.split(r"[{}]", line)]
        names |= {"".join(choice) for choice in product(*parts)}
    return names


def matrix() -> set[tuple[str, str]]:
    """Return the pairs of Python and Django that are tested."""
    rows = JOBS["versions"]["strategy"]["matrix"]
    excluded = {(row["python"], row["django"]) for row in rows["exclude"]}
    return set(product(rows["python"], rows["django"])) - excluded


def test_the_matrix_has_the_environments_of_tox() -> None:
    """Each pair of versions, and no other."""
    of_the_matrix = {f"py{python}-django{django}".replace(".", "") for python, django in matrix()}
    assert of_the_matrix == {name for name in environments() if re.fullmatch(r"py\d+-django\d+", name)}


@pytest.mark.parametrize("framework", ["Programming Language :: Python", "Framework :: Django"])
def test_each_declared_version_is_tested(framework: str) -> None:
    declared = set(re.findall(rf"^ +{framework} :: (\d+\.\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE))
    tested = {version for pair in matrix() for version in pair}
    assert len(declared) > 2
    assert declared <= tested


def test_each_command_is_known_to_tox_or_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    makes = {target for command in COMMANDS for target in re.findall(r"\bmake ([a-z-]+)", command)}
    toxes = {
        name
        for command in COMMANDS
        for names in re.findall(r"\btox -e ([a-z,]+)\b", command)
        for name in names.split(",")
    }
    assert {"test", "chaos", "docs", "release"} <= makes <= targets
    assert {"lint", "typing", "imports", "package", "actions"} <= toxes <= environments()


def test_only_the_job_that_publishes_may_do_more_than_read() -> None:
    """Code of a pull request runs in the others."""
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        assert {name for name, job in workflow["jobs"].items() if "permissions" in job} <= {"publish"}
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}
    assert JOBS["publish"]["needs"] == "build"
