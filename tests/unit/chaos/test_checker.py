"""The checker of histories finds each kind of fault, and takes nothing else for one."""

import json

import pytest
from support.chaos.checker import check_history


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
        ("exclusion", NO_LEASE.format(2.1) + "3.0 A release"),
    ],
    "a killed holder keeps its lease, unless another process releases its lock": [
        ("", KILLED.format("") + B_LATER.format(4.5)),
        ("exclusion", KILLED.format("") + B_LATER.format(1.6)),
        ("", KILLED.format("given_back=true") + B_LATER.format(1.6)),
    ],
    "more permits than the limit are a fault": [("permits", permits(2)), ("", permits(3))],
    "only the victim of a force is excused": [
        ("", ROBBED.format("expire target=A")),
        ("", ROBBED.format("delete key=k token=7")),
        ("", ROBBED.format("wipe")),
        ("exclusion", ROBBED.format("expire target=C")),
        ("exclusion", ROBBED.format("delete key=other token=7")),
    ],
    "a token that does not rise is a fault": [
        ("", held("A", "lock", 7, 1, 2) + held("B", "lock", 8, 3, 4)),
        ("tokens", held("A", "lock", 7, 1, 2) + held("B", "lock", 6, 3, 4)),
        ("tokens", held("A", "lock", 7, 1, 2) + held("B", "lock", 7, 3, 4)),
        ("tokens", held("A", "read", 8, 1, 2) + held("B", "write", 7, 3, 4)),
        ("", held("A", "lock", 7, 1, 1.9) + WIPED + held("B", "lock", 3, 3, 4)),
    ],
    "owners of one lingering lock have one token": [
        ("", stay(("A/one", 7, 2), ("A/two", 7, 3))),
        ("tokens", stay(("A/one", 7, 2), ("B/one", 7, 3))),
        ("exclusion", stay(("A/one", 7, 2), ("A/two", 7, 2.4))),
    ],
    "a late reply to a call, or none, is a fault": [
        ("", UNANSWERED + "3.9 A refused error=LockTimeout"),
        ("deadline", UNANSWERED + "4.5 A refused error=LockTimeout"),
        ("deadline", UNANSWERED + "9 B invoke timeout=5"),
        ("", UNANSWERED + "3.5 B invoke timeout=5"),  # the history ends before the deadline
    ],
    "a process that is paused or killed need not reply": [
        ("", PAUSED_CALL + "8.9 A refused error=LockTimeout"),
        ("deadline", PAUSED_CALL + "9.1 A refused error=LockTimeout"),
        ("", UNANSWERED + "2 nemesis pause target=A \n 99 B invoke timeout=5"),
        ("", UNANSWERED + "2 nemesis kill target=A \n 9 B invoke timeout=5"),
        ("deadline", UNANSWERED + "8 nemesis kill target=A \n 9 B invoke timeout=5"),  # it lived long enough
    ],
}


@pytest.mark.parametrize("histories", CASES.values(), ids=CASES)
def test_a_history_breaks_only_the_rules_of_its_faults(histories):
    for broken, text in histories:
        assert check_history(written(text)).rules == set(broken.split()), text


def test_a_contender_that_no_process_knows_is_an_orphan():
    assert "nobody answers for n-1" in check_history([], left={"k": ["n-1"]}).short()
    assert check_history([], left={"k": []}).ok
