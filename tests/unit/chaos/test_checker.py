"""The checker of histories and the judge of two versions find each kind of fault, and take nothing else for one."""

import itertools
import json
import subprocess

import pytest
from support.chaos.checker import check_history
from support.versions.judge import judge
from support.versions.states import old_commit


def written(text):
    """Read a history: a line for each event, `time owner kind field=value ...`; `A/two` is a thread of A."""
    events = []
    for line in filter(None, map(str.strip, text.splitlines())):
        t, owner, kind, *fields = line.split()
        about = {name: _value(value) for name, _, value in (field.partition("=") for field in fields)}
        event = {"t": float(t), "p": owner.partition("/")[0], "o": owner, "e": kind, "op": 1, "key": "k"}
        if owner == "nemesis":
            event = {"t": float(t), "p": "driver", "o": owner, "e": "nemesis", "what": kind}
        events.append({**event, **about})
    return events


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def held(owner, kind, token, start, end, called=None):
    """Write one hold with a lease that lasts to its end. `semaphore/2` is a permit with this limit."""
    kind, _, limit = kind.partition("/")
    return f"""
        {called or start - 0.01} {owner} invoke op={token} timeout=60 kind={kind} limit={limit or 0}
        {start} {owner} granted op={token} token={token} until={end + 1}
        {end - 0.01} {owner} valid op={token} until={end + 1}
        {end} {owner} release op={token}
    """


def stay(*grants, linger=2):
    """Write holds of 0.5 s of a lock that lingers: owner, token, when it was granted the lock."""
    return "\n".join(
        f"""{granted - 0.9} {owner} invoke op={op} timeout=60 linger={linger}
        {granted} {owner} granted op={op} token={token} until={granted + 1}
        {granted + 0.5} {owner} release op={op}"""
        for op, (owner, token, granted) in enumerate(grants)
    )


def permits(limit):
    return "".join(held(owner, f"semaphore/{limit}", 7 + n, 2 + n / 10, 4) for n, owner in enumerate("ABC"))


PAUSED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.2 A valid until=2.8
    1.3 nemesis pause target=A
    1.5 B invoke timeout=10
    {} B granted token=8 until=9
    8.0 nemesis resume target=A
"""
NO_LEASE = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=null
    2.0 A valid until=null
    1.5 B invoke timeout=9
    {} B granted token=8 until=null
"""
KILLED = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=2.7 \n 1.2 nemesis kill target=A {}\n"
B_LATER = "1.5 B invoke timeout=9 \n {} B granted token=8 until=9"
ROBBED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.5 B invoke timeout=9
    2.0 nemesis {}
    2.1 B granted token=8 until=4
"""
WIPED = "2 nemesis wipe \n 2.1 nemesis done of=wipe \n"
UNANSWERED = "1 A invoke timeout=2 \n"
PAUSED_CALL = "1 A invoke timeout=2 \n 2 nemesis pause target=A \n 7 nemesis resume target=A \n"

CASES = {
    "two threads of one process are two owners": [
        ("exclusion", held("A/one", "lock", 7, 1, 3) + held("A/two", "lock", 8, 2, 4))
    ],
    "the lease of a paused holder is a claim": [("exclusion", PAUSED.format(2.75)), ("", PAUSED.format(2.85))],
    "a check that passes is a claim": [("exclusion", PAUSED.format(5) + "8.1 A valid until=8.1")],
    "a lock without leases is a claim while its checks pass, and until its release": [
        ("exclusion", NO_LEASE.format(1.9)),
        ("", NO_LEASE.format(2.1)),
        ("", NO_LEASE.format(2.1) + "3.0 A lost"),
        ("exclusion", NO_LEASE.format(2.1) + "3.0 A release"),
    ],
    "a killed holder keeps its lease, unless another process releases its lock": [
        ("", KILLED.format("") + B_LATER.format(4.5)),
        ("exclusion", KILLED.format("") + B_LATER.format(1.6)),
        ("", KILLED.format("given_back=true") + B_LATER.format(1.6)),
        ("exclusion", KILLED.format("given_back=true") + "2.0 A valid until=9 \n" + B_LATER.format(1.6)),
    ],
    "more permits than the limit are a fault": [("permits", permits(2)), ("", permits(3))],
    "only the victim of a force is excused": [
        ("", ROBBED.format("expire target=A")),
        ("", ROBBED.format("delete key=k token=7")),
        ("", ROBBED.format("wipe")),
        ("exclusion", ROBBED.format("expire target=C")),
        ("exclusion", ROBBED.format("delete key=k token=6")),
        ("exclusion", ROBBED.format("delete key=other token=7")),
        ("exclusion", ROBBED.format("expire target=A") + held("C", "lock", 9, 3, 4)),
    ],
    "a token that does not rise is a fault": [
        ("", held("A", "lock", 7, 1, 2) + held("B", "lock", 8, 3, 4)),
        ("tokens", held("A", "lock", 7, 1, 2) + held("B", "lock", 6, 3, 4)),
        ("tokens", held("A", "lock", 7, 1, 2) + held("B", "lock", 7, 3, 4)),
        ("tokens", held("A", "read", 8, 1, 2) + held("B", "write", 7, 3, 4)),
        ("", held("A", "read", 8, 1, 3) + held("B", "read", 7, 2, 4)),
        ("", held("A", "lock", 7, 1, 2) + held("B", "lock", 0, 3, 4) + held("C", "lock", 8, 5, 6)),
        ("", held("A", "lock", 7, 1, 1.9) + WIPED + held("B", "lock", 3, 3, 4)),
    ],
    "owners of one lingering lock have one token": [
        ("", stay(("A/one", 7, 2), ("A/two", 7, 3))),
        ("tokens", stay(("A/one", 7, 2), ("B/one", 7, 3))),
        ("tokens", stay(("A/one", 7, 2), ("A/two", 7, 3), linger=0)),
        ("exclusion", stay(("A/one", 7, 2), ("A/two", 7, 2.4))),
    ],
    "a late reply to a call, or none, is a fault": [
        ("", UNANSWERED + "3.9 A refused error=LockTimeout"),
        ("deadline", UNANSWERED + "4.5 A refused error=LockTimeout"),
        ("deadline", UNANSWERED + "4.5 A granted token=7 until=9"),
        ("deadline", UNANSWERED + "9 B invoke timeout=5"),
        ("", UNANSWERED + "3.5 B invoke timeout=5"),  # the history ends before the deadline
        ("", "1 A invoke timeout=null \n 99 B invoke timeout=5"),
    ],
    "a process that is paused or killed need not reply": [
        ("", PAUSED_CALL + "8.9 A refused error=LockTimeout"),
        ("deadline", PAUSED_CALL + "9.1 A refused error=LockTimeout"),
        ("", UNANSWERED + "2 nemesis pause target=A \n 99 B invoke timeout=5"),
        ("", UNANSWERED + "2 nemesis kill target=A \n 9 B invoke timeout=5"),
        ("deadline", UNANSWERED + "2 nemesis kill target=B \n 9 B invoke timeout=5"),
        ("deadline", UNANSWERED + "8 nemesis kill target=A \n 9 B invoke timeout=5"),  # it lived long enough
    ],
}


@pytest.mark.parametrize("histories", CASES.values(), ids=CASES)
def test_a_history_breaks_only_the_rules_of_its_faults(histories):
    for broken, text in histories:
        assert check_history(written(text)).rules == set(broken.split()), text


KINDS = ("lock", "read", "write", "semaphore/2")


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_readers_share_permits_share_and_nobody_else_does(first, second):
    verdict = check_history(written(held("A", first, 7, 2, 4) + held("B", second, 8, 3, 5)))
    assert verdict.ok == (first == second and first not in ("lock", "write"))


def test_a_contender_that_no_process_knows_is_an_orphan():
    assert "nobody answers for n-1" in check_history([], left={"k": ["n-1"]}).short()
    assert check_history([], left={"k": []}).ok


@pytest.mark.parametrize("text", ["1 A granted token=7", "1 A invoke timeout=5 \n 2 A valid until=9"])
def test_an_impossible_history_is_refused(text):
    """It shows a fault of the harness, not of the lock."""
    with pytest.raises((KeyError, AssertionError)):
        check_history(written(text))


# --- two versions -----------------------------------------------------------------------------------------------------


ROOTS = {"old": "/old", "new": "/new"}
WORKER, OTHER = "old-worker-1-12", "new-worker-2-34"


def event(process, kind, t=1.0, /, **about):
    return {"t": t, "p": process, "o": f"{process}/main", "e": kind, **about}


def visit(process, token, begin, end):
    about = {"op": token, "key": "k"}
    return [
        event(process, "invoke", begin - 0.1, timeout=None, **about),
        event(process, "granted", begin, token=token, until=end + 4, **about),
        event(process, "fenced", end - 0.1, **about),
        event(process, "release", end, **about),
    ]


def done(**about):
    return event(WORKER, "unit", kind="wait", ref="a", **about)


def ticks(*sent):
    return [event(WORKER, "tick", tick=tick, token=token) for tick, token in sent]


SENT = event("driver", "sent", kind="wait", ref="a")
KEPT = event(WORKER, "kept", key="k", token=7)

HISTORIES = [
    ("", [*visit(WORKER, 1, 1, 2), *visit(OTHER, 2, 3, 4)]),
    ("exclusion", [*visit(WORKER, 1, 1, 3), *visit(OTHER, 2, 2, 4)]),
    ("k is 2 after 1 updates", visit(WORKER, 1, 1, 2)),
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
def test_a_history_has_only_the_problems_of_its_faults(problem, events):
    counts = {"k": 2} if any(event["e"] == "fenced" for event in events) else {}
    problems = judge(events, roots=ROOTS, balances=counts, left={}, logs={})
    assert problem in "\n".join(problems)
    assert bool(problems) == bool(problem)


def test_an_error_in_a_log_is_found():
    logs = {"log": "INFO zklock connected\nERROR zklock a queue cannot be read"}
    assert "ERROR zklock" in judge([], roots=ROOTS, balances={}, left={}, logs=logs)[0]


def test_the_older_version_is_the_last_tag_before_this_commit(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    def commit(*tags):
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
