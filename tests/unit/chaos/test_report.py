"""An assertion of a test convicts kazoo's lock, and a run prints its figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.zoo import TESTS

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a module of tests with the plugin, and nothing else of this project."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")

    def run(tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_faults.py").write_text(f"import pytest\n{tests}")
        plugins = ["no:cacheprovider", "no:randomly", "no:django", "no:django_zklock", "support.chaos.report"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *(part for name in plugins for part in ("-p", name)), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return run


FAILS = "assert 'two' == 'one'"


@pytest.mark.parametrize(
    ("body", "fixture", "convicted"),
    [
        (FAILS, "yield", True),
        (FAILS, "yield; raise RuntimeError('something is left')", True),
        ("pass", "yield", False),
        ("raise RuntimeError('the process of the harness crashed')", "yield", False),
        ("pytest.skip('not here')", "yield", False),
        ("pytest.fail('too late')", "yield", False),
        ("pass", "assert False; yield", False),
    ],
)
def test_only_an_assertion_of_the_test_convicts_kazoo(run: Run, body: str, fixture: str, convicted: bool) -> None:
    """The error of a harness or of a fixture does not. An error of the teardown takes no conviction back."""
    result = run(
        f"@pytest.fixture\ndef pool():\n    {fixture}\n"
        f"@pytest.mark.convicts_kazoo\ndef test_promise(pool):\n    {body}\n"
        "def test_of_our_own_lock():\n    assert False\n",
        "--lock=kazoo",
    )
    assert (result.returncode == 0) == convicted, result.stdout
    assert "1 deselected" in result.stdout


def test_figures_are_printed_at_the_end(run: Run) -> None:
    """Figures of other processes are printed, too, and all processes have the same seed."""
    tests = """
def test_took(figure, request):
    figure("next holder after", 4.123, "s")
    figure("seed", request.config.getoption("--soak-seed"))

@pytest.mark.parametrize("way", ["task"])
def test_stopped(figure, way):
    figure.spread("stopped after", [0.3, 0.002, 0.004])
    assert False
"""
    lines = run(tests, "-n1", "--soak-seed=5").stdout.splitlines()
    assert any("--soak-seed=5" in line for line in lines), "a run cannot be repeated without its seed"
    assert "test_faults.py::test_took: next holder after 4.12 s" in lines
    assert "test_faults.py::test_took: seed 5" in lines
    spread = "2.0 ms / 4.0 ms / 0.30 s (min / median / max of 3)"
    assert f"test_faults.py::test_stopped[task]: stopped after {spread}" in lines
