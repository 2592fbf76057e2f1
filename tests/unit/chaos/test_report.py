"""The table of a run of the scenarios, and what counts as a conviction, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos.scenarios import KNOWN_BAD, SCENARIOS
from support.zoo import TESTS

Result = subprocess.CompletedProcess[str]

POOL = """
import pytest

@pytest.fixture
def pool():
    return "processes"
"""

GUILTY = POOL + "".join(
    f"""
@pytest.mark.scenario({scenario!r})
def test_{scenario.lower()}_holds(pool):
    assert pool == "ours", "two of them held the lock"
"""
    for scenario in KNOWN_BAD
)


class Runs:
    """Runs of pytest with the plugin, and nothing else of this project."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")

    def __call__(self, tests: str, *arguments: str) -> Result:
        (self.directory / "test_faults.py").write_text(tests)
        plugins = ["no:cacheprovider", "no:randomly", "no:django", "no:django_zklock", "support.chaos.report"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *(part for name in plugins for part in ("-p", name)), *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def table(result: Result) -> list[str]:
    """The lines of the table, from the one below its head."""
    lines = result.stdout.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith("-----")), None)
    assert begin is not None, result.stdout + result.stderr
    return lines[begin + 1 : lines.index("", begin)]


def below(result: Result) -> str:
    """What is said below the table."""
    lines = result.stdout.splitlines()
    begin = lines.index("", next(number for number, line in enumerate(lines) if line.startswith("-----")))
    return "\n".join(lines[begin:])


def test_the_table_says_what_held_what_did_not_and_what_was_measured(runs: Runs) -> None:
    """By number, in words, and at most 120 columns wide."""
    result = runs(
        """
import pytest

@pytest.mark.scenario("ABORT")
def test_work_is_stopped(figure):
    figure.spread("stopped after", [0.3, 0.002, 0.004])

@pytest.mark.scenario("F10")
def test_a_release_returns(figure):
    assert 1 + 1 == 3, "it took its time\\nand more"

@pytest.mark.scenario("F2")
def test_a_holder_is_told_before_the_next_one_is_granted_however_long_the_name_of_its_test_may_be(figure):
    figure("next holder after", 4.123, "s")
    figure("told after", 0.012, "s")
    figure("attempts", 7)

@pytest.mark.scenario("F32")
def test_needs_more():
    pytest.skip("no iptables here")

@pytest.mark.scenario("F4")
def test_breaks():
    raise OSError("no more processes")

@pytest.fixture
def broken():
    raise RuntimeError("no server")

@pytest.mark.scenario("F5")
def test_has_no_server(broken):
    pass

def test_shows_nothing():
    pass
""",
        "--chaos",
    )
    assert result.returncode == 1
    text = "\n".join(table(result))
    assert all(len(line) <= 120 and line.isascii() for line in table(result)), text
    words = [" ".join(line.split()) for line in table(result)]
    assert [line.split()[0] for line in words if line.startswith(("F", "ABORT"))] == [
        "F2",
        "F4",
        "F5",
        "F10",
        "F32",
        "ABORT",
    ]
    assert words[0].endswith("passed next holder after 4.12 s")
    assert words[1].endswith("told after 12.0 ms")
    assert "attempts 7" in text
    assert "F4 breaks FAILED OSError: no more processes" in words
    assert "F5 has no server FAILED in setup: RuntimeError: no server" in words
    assert "F10 a release returns FAILED it took its time" in words
    assert "F32 needs more skipped no iptables here" in words
    assert "ABORT work is stopped passed stopped after: min 2.0 ms, median 4.0 ms, max 0.30 s (3)" in " ".join(words)
    assert "shows nothing" not in text
    assert "not run: F1 F3 F6" in below(result)
    for scenario in SCENARIOS:
        told = f"{scenario.id} does not apply yet: it needs {scenario.waits_for}" in below(result)
        assert told == bool(scenario.waits_for)


def test_a_run_that_asks_for_no_table_has_none(runs: Runs) -> None:
    """The plugin is loaded in every run."""
    result = runs("import pytest\n\n@pytest.mark.scenario('F1')\ndef test_holds(figure):\n    figure('all', 1)\n")
    assert result.returncode == 0
    assert "scenarios" not in result.stdout


def test_cases_that_passed_share_a_line_and_others_do_not(runs: Runs) -> None:
    """A test of many cases does not drown the others; a failure and a figure keep their case."""
    result = runs(
        """
import pytest

@pytest.mark.scenario("F1", "F2")
@pytest.mark.parametrize("case", range(5))
def test_holds(case):
    assert case != 3

@pytest.mark.scenario("F3")
@pytest.mark.parametrize("way", ["task", "thread"])
def test_is_measured(way, figure):
    figure("took", 1.0, "s")
""",
        "--chaos",
    )
    words = [" ".join(line.split()) for line in table(result)]
    for scenario in ("F1", "F2"):
        assert f"{scenario} holds passed 4 cases" in words
        assert f"{scenario} holds (3) FAILED assert 3 != 3" in words
    assert "F3 is measured (task) passed took 1.00 s" in words
    assert "F3 is measured (thread) passed took 1.00 s" in words


def test_figures_come_from_other_processes_too(runs: Runs) -> None:
    """A run that is spread over processes has the same table, and one seed."""
    tests = """
import pytest

@pytest.mark.scenario("F1")
def test_holds(figure, request):
    figure("seed", request.config.getoption("--soak-seed"))

@pytest.mark.scenario("F2")
def test_does_not(figure):
    assert False, "what a pity"
"""
    result = runs(tests, "--chaos", "-n1", "--soak-seed=5")
    words = [" ".join(line.split()) for line in table(result)]
    assert "F1 holds passed seed 5" in words
    assert "F2 does not FAILED what a pity" in words


def test_the_soak_is_told_how_long_and_by_what_seed(runs: Runs) -> None:
    """A seed that is not given is drawn, and shown at the head, so that the run can be had once more."""
    tests = """
def test_soaks(request):
    assert request.config.getoption("--soak-seconds") == 2.5
    print("seed", request.config.getoption("--soak-seed"))
"""
    result = runs(tests, "--chaos", "--soak-seconds=2.5", "-s")
    assert result.returncode == 0, result.stdout
    (head,) = (line for line in result.stdout.splitlines() if "--soak-seed=" in line)
    assert f"seed {head.partition('--soak-seed=')[2]}\n" in result.stdout


# --- the harness on trial -------------------------------------------------------------------------------------------


def test_a_lock_that_fails_all_it_has_to_fail_is_convicted(runs: Runs) -> None:
    """Then the run has succeeded, though its tests failed; the table says by what they were convicted."""
    acquitted = "\n@pytest.mark.scenario('F1')\ndef test_is_replaced(pool):\n    pass\n"
    result = runs(GUILTY + acquitted, "--chaos", "--lock=kazoo")
    assert result.returncode == 0, result.stdout
    words = [" ".join(line.split()) for line in table(result)]
    assert "F3 f3 holds convicted two of them held the lock" in words
    assert "F1 is replaced acquitted" in words
    assert "kazoo was convicted of F3 F7 F8 F11 F15 F27 F57 F65" in below(result)
    assert "does not apply" not in below(result)


def test_only_what_uses_the_harness_is_on_trial(runs: Runs) -> None:
    """A test that takes our own lock says nothing about another."""
    result = runs(
        POOL + "\ndef test_ours():\n    raise AssertionError\n\ndef test_theirs(pool):\n    pass\n", "--lock=kazoo"
    )
    assert "1 passed, 1 deselected" in result.stdout


@pytest.mark.parametrize(
    ("instead", "what"),
    [
        ("pass", "acquitted"),
        ("raise RuntimeError('the process of the harness crashed')", "no verdict"),
        ("pytest.skip('not here')", "skipped"),
        ("pytest.fail('too late')", "no verdict"),
        (None, "not run"),
    ],
)
def test_a_harness_that_convicts_too_little_fails(runs: Runs, instead: str | None, what: str) -> None:
    """Only the test's own assertion convicts; trouble of the harness does not, and is named with the scenario."""
    if instead is None:
        tests = GUILTY.replace("def test_f15_holds", "def f15_holds")
    else:
        tests = GUILTY.replace("def test_f15_holds(pool):\n", f"def test_f15_holds(pool):\n    {instead}\n    return\n")
    result = runs(tests, "--lock=kazoo")
    assert result.returncode == 1
    assert f"NOT CONVICTED: F15 ({what})\n" in below(result) + "\n"


def test_an_assertion_outside_of_the_test_convicts_nobody(runs: Runs) -> None:
    """What fails in a fixture has nothing to do with the lock."""
    tests = GUILTY.replace("def test_f15_holds(pool)", "def test_f15_holds(pool, unready)")
    tests += "\n@pytest.fixture\ndef unready():\n    assert False, 'not ready'\n"
    result = runs(tests, "--lock=kazoo")
    assert result.returncode == 1
    assert "NOT CONVICTED: F15 (no verdict)" in below(result)
    assert any(
        line.endswith("no verdict in setup: not ready") for line in (" ".join(row.split()) for row in table(result))
    )


def test_one_conviction_is_enough_and_trouble_after_it_takes_nothing_back(runs: Runs) -> None:
    """A scenario may have several tests, and what a bad lock leaves behind may trouble the end of one."""
    tests = GUILTY.replace("def test_f15_holds(pool)", "def test_f15_holds(pool, untidy)")
    tests += """
@pytest.fixture
def untidy():
    yield
    raise RuntimeError("something is left")

@pytest.mark.scenario("F3")
def test_f3_once_more(pool):
    pass
"""
    result = runs(tests, "--lock=kazoo")
    assert result.returncode == 0, result.stdout


def test_a_run_that_was_broken_off_is_no_success(runs: Runs) -> None:
    """Whatever was convicted before."""
    result = runs(GUILTY + "\ndef test_z(pool):\n    raise KeyboardInterrupt\n", "--lock=kazoo")
    assert result.returncode == 2
