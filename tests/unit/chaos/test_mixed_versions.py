"""The judge of two versions finds each fault, and the older version is the last release."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.versions.judge import judge
from support.versions.states import old_commit

ROOTS = {"old": "/old", "new": "/new"}
WORKER, OTHER = "old-worker-1-12", "new-worker-2-34"


def event(process: str, kind: str, t: float = 1.0, /, **about: Any) -> dict[str, Any]:
    return {"t": t, "p": process, "o": f"{process}/main", "e": kind, **about}


IMPORTED = [
    event(process, "imported", file=f"{ROOTS[process[:3]]}/django_zklock/__init__.py") for process in (WORKER, OTHER)
]


def stay(process: str, token: int, begin: float, end: float) -> list[dict[str, Any]]:
    """Write one stay, and the increment of its counter to the number of the token."""
    about: dict[str, Any] = {"op": token, "key": "k"}
    return [
        event(process, "invoke", begin - 0.1, timeout=None, **about),
        event(process, "granted", begin, token=token, until=end + 4, **about),
        event(process, "writing", end - 0.2, token=token, value=token, **about),
        event(process, "fenced", end - 0.1, token=token, value=token, ok=True, **about),
        event(process, "release", end, **about),
        event(process, "released", end + 0.1, **about),
    ]


def problems(*events: dict[str, Any], balance: int | None = None, log: str = "") -> str:
    """Return what the judge finds, in one text."""
    balances = {} if balance is None else {"k": balance}
    verdict = judge([*IMPORTED, *events], roots=ROOTS, balances=balances, left={}, logs={"log": log})
    return "\n".join(verdict.problems)


def test_stays_that_follow_each_other_are_no_fault() -> None:
    assert problems(*stay(WORKER, 1, 1, 2), *stay(OTHER, 2, 3, 4), balance=2) == ""


def test_an_overlap_of_two_versions_is_found() -> None:
    assert "exclusion" in problems(*stay(WORKER, 1, 1, 3), *stay(OTHER, 2, 2, 4), balance=2)


def test_a_lost_increment_is_found() -> None:
    assert "the counter is 1 after 2" in problems(*stay(WORKER, 1, 1, 2), *stay(OTHER, 2, 3, 4), balance=1)


def test_a_stay_between_the_giver_and_the_adopter_of_a_lock_is_found() -> None:
    giver, adopter, third = stay(WORKER, 1, 1, 2), stay(OTHER, 2, 5, 6), stay(OTHER, 3, 3, 4)
    giver[1]["handed"] = adopter[1]["adopted"] = "a"
    assert "came between" not in problems(*giver, *adopter)
    assert "came between: 2" in problems(*giver, *third, *adopter)


SENT = event("driver", "sent", kind="wait", ref="a")


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([], "not done: 1: wait a"),
        ([{}], ""),
        ([{}, {}], "done twice: 1: wait a"),
        ([{}, {"copy": True}], ""),  # the broker brought the message back, and it came when the first was done
        ([{"copy": True}], ""),
        ([{"copy": True}, {}], "done twice: 1: wait a"),
    ],
)
def test_each_task_is_done_once(runs: list[dict[str, Any]], problem: str) -> None:
    done = [event(WORKER, "unit", 2.0 + number, kind="wait", ref="a", **about) for number, about in enumerate(runs)]
    assert problems(SENT, *done).startswith(problem)
    assert bool(problems(SENT, *done)) == bool(problem)


@pytest.mark.parametrize(
    ("ticks", "problem"),
    [
        ([(1, 7), (2, 7), (3, 9)], ""),
        ([(1, 7), (3, 7)], "3 follows 1"),
        ([(1, 7), (1, 7)], "1 follows 1"),
        ([(1, 9), (2, 7)], "2 is of an earlier leader than 1"),
    ],
)
def test_each_tick_is_sent_once_in_the_order_of_leaders(ticks: list[tuple[int, int]], problem: str) -> None:
    text = problems(*(event(WORKER, "tick", tick=tick, token=token) for tick, token in ticks))
    assert problem in text
    assert bool(text) == bool(problem)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([event("driver", "requested", token=7, reason="r", by="new")], "r was not heard"),
        ([event("driver", "break", token=7, by="new")], "the break of 7 was not felt"),
        (
            [event(WORKER, "kept", key="k", token=7), event("driver", "shown", lock="k", token=7, pid=13)],
            "k is shown with process 13",
        ),
    ],
)
def test_an_action_of_an_operator_that_misses_its_holder_is_found(events: list[dict[str, Any]], problem: str) -> None:
    assert problem in problems(*events)
    assert problems(*events, event(WORKER, "left", token=7)) == ("" if "shown" not in problem else problems(*events))


def test_an_error_in_a_log_is_found() -> None:
    assert problems(log="INFO zklock connected\nWARNING zklock slow") == ""
    assert "ERROR zklock" in problems(log="ERROR zklock a queue cannot be read")


def test_a_process_with_the_package_of_the_other_version_is_found() -> None:
    wrong = event("old-web-1-56", "imported", file="/new/django_zklock/__init__.py")
    assert "old-web-1-56 imported /new" in problems(wrong)


def test_the_older_version_is_the_last_tag_before_this_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    def commit(*tags: str) -> None:
        git("commit", "--allow-empty", "--message=a")
        for tag in tags:
            git("tag", tag)

    git("init")
    commit()
    assert old_commit(tmp_path) is None
    commit("0.1.0")
    assert old_commit(tmp_path) is None
    commit()
    assert old_commit(tmp_path) == "0.1.0"
    commit("0.2.0", "nightly")
    assert old_commit(tmp_path) == "0.1.0"
    commit()
    assert old_commit(tmp_path) == "0.2.0"
