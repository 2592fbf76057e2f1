"""The judge of two versions finds each kind of fault, and the older version is the last release."""

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


def stay(process: str, token: int, begin: float, end: float) -> list[dict[str, Any]]:
    about: dict[str, Any] = {"op": token, "key": "k"}
    return [
        event(process, "invoke", begin - 0.1, timeout=None, **about),
        event(process, "granted", begin, token=token, until=end + 4, **about),
        event(process, "fenced", end - 0.1, **about),
        event(process, "release", end, **about),
    ]


def done(**about: Any) -> dict[str, Any]:
    return event(WORKER, "unit", kind="wait", ref="a", **about)


def ticks(*sent: tuple[int, int]) -> list[dict[str, Any]]:
    return [event(WORKER, "tick", tick=tick, token=token) for tick, token in sent]


SENT = event("driver", "sent", kind="wait", ref="a")
KEPT = event(WORKER, "kept", key="k", token=7)

HISTORIES: list[tuple[str, list[dict[str, Any]]]] = [
    ("", [*stay(WORKER, 1, 1, 2), *stay(OTHER, 2, 3, 4)]),
    ("exclusion", [*stay(WORKER, 1, 1, 3), *stay(OTHER, 2, 2, 4)]),
    ("k is 2 after 1 updates", stay(WORKER, 1, 1, 2)),
    ("wait a is missing", [SENT]),
    ("", [SENT, done()]),
    ("", [SENT, done(), done(copy=True)]),  # the broker brought the message back, and it came when the first was done
    ("wait a was done twice", [SENT, done(), done()]),
    ("", ticks((1, 7), (2, 7), (3, 9))),
    ("3 follows 1", ticks((1, 7), (3, 7))),
    ("1 follows 1", ticks((1, 7), (1, 7))),
    ("2 is of an earlier leader than 1", ticks((1, 9), (2, 7))),
    ("r was not noticed", [event("driver", "requested", token=7, reason="r")]),
    ("the break of 7 was not noticed", [event("driver", "break", token=7)]),
    ("", [event("driver", "break", token=7), event(WORKER, "left", token=7)]),
    ("k is shown with process 13", [KEPT, event("driver", "shown", lock="k", token=7, pid=13)]),
    ("old-web-1-56 imported /new", [event("old-web-1-56", "imported", file="/new/django_zklock/__init__.py")]),
]


@pytest.mark.parametrize(("problem", "events"), HISTORIES)
def test_a_history_has_only_the_problems_of_its_faults(problem: str, events: list[dict[str, Any]]) -> None:
    counts = {"k": 2} if any(event["e"] == "fenced" for event in events) else {}
    problems = judge(events, roots=ROOTS, balances=counts, left={}, logs={})
    assert problem in "\n".join(problems)
    assert bool(problems) == bool(problem)


def test_an_error_in_a_log_is_found() -> None:
    logs = {"log": "INFO zklock connected\nERROR zklock a queue cannot be read"}
    assert "ERROR zklock" in judge([], roots=ROOTS, balances={}, left={}, logs=logs)[0]


def test_the_older_version_is_the_last_tag_before_this_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    def commit(*tags: str) -> None:
        git("commit", "--allow-empty", "--message=a")
        for tag in tags:
            git("tag", tag)

    git("init")
    commit("0.1.0")
    assert old_commit(tmp_path) is None
    commit("0.2.0", "nightly")
    assert old_commit(tmp_path) == "0.1.0"
    commit()
    assert old_commit(tmp_path) == "0.2.0"
