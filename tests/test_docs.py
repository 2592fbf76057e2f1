"""The code in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.project import Project

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with the files that `how-to/test-your-code.md` shows; blocks of one file follow each other."""
    text = (DOCS / "how-to" / "test-your-code.md").read_text()
    assert text.count("```python\n") == len(BLOCK.findall(text)), "a block does not name its file"
    project = Project(tmp_path)
    files: dict[str, str] = {}
    for name, code in BLOCK.findall(text):
        files[name] = files.get(name, "") + code
    for name, code in files.items():
        project.write(name, code)
    return project


def test_the_examples_for_pytest_pass(project: Project) -> None:
    """What a reader would copy into a test module works."""
    done = project.run("-m", "pytest", "-q", "test_warehouse.py")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (project.directory / "test_warehouse.py").read_text().count("\ndef test_")
    assert shown > 5
    assert f"{shown} passed" in done.stdout, done.stdout


def test_the_examples_for_test_cases_pass(project: Project) -> None:
    """What a reader would copy into `tests.py` works."""
    done = project.run("manage.py", "test", "tests")
    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr


def test_the_example_without_a_test_runner_runs(project: Project) -> None:
    """A script can have a server, too."""
    done = project.run("script.py", DJANGO_SETTINGS_MODULE="project_settings")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^zk://127\.0\.0\.1:\d+/test-.*\nreport\n  holds  script\.py ", done.stdout), done.stdout
