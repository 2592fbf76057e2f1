"""Processes of Curator, of kazoo and of ours on one path under load, some killed: the history is that of one lock."""

import functools

import pytest
from support.chaos.checker import check_history
from support.neighbours.curator import curator
from support.neighbours.load import Load
from support.neighbours.ours import our_process
from support.neighbours.protocol import kazoo

pytestmark = pytest.mark.timeout(120)

SECONDS = 3.0  # between two kills

# Their client, their locks, and ours.
MIXTURES = [
    ("curator", ["mutex"], ["lock"]),
    ("curator", ["read", "read", "write"], ["read", "read", "write"]),
    ("kazoo", ["lock"], ["lock+kazoo"]),
    ("kazoo", ["lock+"], ["lock", "lock+kazoo"]),
    ("kazoo", ["read", "read", "write"], ["read+kazoo", "read+kazoo", "write+kazoo"]),
    ("kazoo", ["read+", "write+"], ["read", "write", "lock", "read+kazoo", "write+kazoo"]),
    ("curator", ["selector", "mutex"], ["leader", "lock"]),
    ("kazoo", ["election"], ["leader+kazoo"]),
    ("kazoo", ["election+"], ["leader", "leader+kazoo"]),
]


def starts(which, zoo):
    make = curator if which == "curator" else kazoo
    return functools.partial(make, zoo.hosts, session_timeout=2), functools.partial(our_process, zoo)


@pytest.mark.parametrize(("which", "theirs", "ours"), MIXTURES, ids=str)
def test_a_mixed_history_is_that_of_one_lock(zoo, tmp_path, which, theirs, ours):
    load = Load(tmp_path, f"{zoo.base}/k")
    start_theirs, start_ours = starts(which, zoo)
    for number in (1, 2):
        load.add(f"theirs-{number}", start_theirs, theirs)
        load.add(f"ours-{number}", start_ours, ours)
    load.run(SECONDS)
    load.kill("theirs-1")
    load.add("theirs-3", start_theirs, theirs)
    load.run(SECONDS)
    load.kill("ours-1")
    load.add("ours-3", start_ours, ours)
    load.run(SECONDS)
    before = load.grants.copy()
    load.run(SECONDS)
    events = load.end()
    verdict = check_history(events)
    assert verdict.ok, verdict.short()
    print(f"{which} {theirs} and ours {ours}: {dict(load.grants)}")
    gone_on = load.grants - before
    assert gone_on.keys() == {"theirs-2", "theirs-3", "ours-2", "ours-3"}, gone_on
