"""Notices name queues that may become an incident; a stack folds the frames of libraries."""

from dataclasses import replace

import pytest
from support import lookinfo
from support.lookinfo import NOTHING

from django_zklock.dashboard.stacks import parts_of
from django_zklock.inspection import EnsembleReport, LockInfo
from django_zklock.report import notices, past, verdict
from django_zklock.report.facts import Facts
from django_zklock.report.holders import Hung

HOLDER = replace(lookinfo.HOLDER, age=4.0, what="", about={}, template="")
CONVOY = LockInfo(key="k", path="/zklock/k", holders=(HOLDER,), waiting=28, longest_wait=50.0)
CODE = "charge at /srv/shop/bank.py:42: return session.post(url)"
LIBRARIES = [
    "send at /venv/lib/python3.12/site-packages/requests/adapters.py:600: self.send(x)",
    "urlopen at /venv/lib/python3.12/site-packages/urllib3/connectionpool.py:700: y",
    "read at /usr/lib/python3.12/ssl.py:1103: z",
]


def facts_of(lock):
    return Facts(replace(NOTHING, locks=(lock,)), EnsembleReport((), ()))


def told(lock):
    return notices.found(facts_of(lock), [])


def test_a_queue_in_which_all_wait_long_for_short_holds_is_a_notice():
    (notice,) = told(CONVOY)
    assert notice.key == "k"
    assert notice.text == "28 callers wait, the first for 50 s; the present holder has it for 4.0 s: a convoy?"


@pytest.mark.parametrize(
    "lock",
    [
        pytest.param(replace(CONVOY, waiting=2), id="few wait"),
        pytest.param(replace(CONVOY, longest_wait=10.0), id="they wait for a moment"),
        pytest.param(replace(CONVOY, holders=(replace(HOLDER, age=49.0),)), id="the holder hangs"),
        pytest.param(replace(CONVOY, holders=(replace(HOLDER, lasts="leader"),)), id="candidates stand by"),
        pytest.param(replace(CONVOY, holders=()), id="it is handed over"),
    ],
)
def test_other_queues_are_no_notice(lock):
    assert told(lock) == []


def test_a_lock_with_a_card_is_no_notice():
    facts = facts_of(CONVOY)
    assert notices.found(facts, [Hung(keys=("k",))]) == []


def test_libraries_that_follow_each_other_are_one_part():
    first, second = parts_of([*LIBRARIES, CODE])
    assert first == (LIBRARIES, "requests, urllib3, ssl")
    assert second == ([CODE], "")


def test_frames_of_this_package_and_of_the_interpreter_are_libraries():
    lines = ["run at /src/django_zklock/locks/hold.py:5: x", "f at <frozen importlib._bootstrap>:241: "]
    assert [part.libraries for part in parts_of(lines)] == ["django_zklock, importlib._bootstrap"]


@pytest.mark.parametrize("path", ["<string>", "/srv/lib/orders.py", r"C:\shop\tasks.py", "/home/site-packages.py"])
def test_frames_of_the_project_are_not_folded(path):
    assert [part.libraries for part in parts_of([f"charge at {path}:42: pay()"])] == [""]


def test_libraries_on_windows_are_folded():
    lines = [r"send at C:\venv\Lib\site-packages\requests\adapters.py:600: x", r"read at C:\Python312\Lib\ssl.py:1: y"]
    assert [part.libraries for part in parts_of(lines)] == ["requests, ssl"]


def test_a_queue_that_cannot_be_read_is_one_card_however_many_wait(monkeypatch):
    monkeypatch.setattr(past, "source", None)
    lock = LockInfo(key="k", path="/zklock/k", problem="An unknown znode is in it.", waiting=80)
    facts = facts_of(lock)
    assert [incident.cause for incident in verdict.found(facts)] == ["unreadable"]
