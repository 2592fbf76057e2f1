"""The checker of histories finds each fault, and takes nothing else for one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from support.chaos.checker import Verdict, check_history
from support.chaos.lease_claims import Claim, violations

Event = dict[str, Any]


def written(text: str) -> list[Event]:
    """
    Read a history as a test writes it: a line for each event, `time owner kind field=value ...`.

    `op` is 1 and `key` is "k" unless they are given; an owner is a process, or a process and a thread, `A/two`.
    """
    events: list[Event] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        t, owner, kind, *fields = line.split()
        process = owner.partition("/")[0]
        about = {name: _value(value) for name, _, value in (field.partition("=") for field in fields)}
        event = {"t": float(t), "p": process, "o": owner if "/" in owner else f"{owner}/main", "e": kind}
        if owner == "nemesis":
            events.append({**event, "p": "driver", "e": "nemesis", "what": kind, **about})
        else:
            events.append({"op": 1, "key": "k", **event, **about})
    return events


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def rules(text: str, **about: object) -> set[str]:
    """Return the rules that a written history breaks."""
    return set(check_history(written(text), **about).rules)  # type: ignore[arg-type]


def one(verdict: Verdict) -> str:
    """Return the message of the only violation."""
    (violation,) = verdict.violations
    return violation.message


def held(owner: str, kind: str, token: int, start: float, end: float, called: float | None = None) -> str:
    """Write one hold with a lease that lasts to its end. `semaphore/2` is a permit with this limit in its code."""
    kind, _, limit = kind.partition("/")
    return f"""
        {called or start - 0.01} {owner} invoke op={token} timeout=60 kind={kind} limit={limit or 0}
        {start} {owner} granted op={token} token={token} until={end + 1}
        {end - 0.01} {owner} valid op={token} until={end + 1}
        {end} {owner} release op={token}
        {end + 0.01} {owner} released op={token}
    """


def turns(*grants: tuple[str, int, float, float], linger: int = 0) -> str:
    """Write holds of 0.5 s: owner, token, when it called, when it was granted the lock."""
    return "\n".join(
        f"""{called} {owner} invoke op={op} timeout=60 linger={linger}
        {granted} {owner} granted op={op} token={token} until={granted + 1}
        {granted + 0.5} {owner} release op={op}
        {granted + 0.6} {owner} released op={op}"""
        for op, (owner, token, called, granted) in enumerate(grants)
    )


def stay(*grants: tuple[str, int, float, float]) -> str:
    """Write the turns of a lock that lingers for 2 s."""
    return turns(*grants, linger=2)


def permits(limit: int) -> str:
    """Write three permits at once. The code of each contender has this limit."""
    return "".join(held(owner, f"semaphore/{limit}", 7 + n, 2 + n / 10, 4) for n, owner in enumerate("ABC"))


def change(limit: object, call: float, back: float | None, op: int = 99) -> str:
    """Write one change of the limit for all processes."""
    return f"{call} O set_limit op={op} limit={limit} \n" + (f"{back} O limit_set op={op} \n" if back else "")


# --- who may hold a key together --------------------------------------------------------------------------------------

A_RELEASES = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=9
    3.0 A release
    3.1 A released
"""
PAUSED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.2 A valid until=2.8
    1.3 nemesis pause target=A
    1.5 B invoke timeout=10
    {granted} B granted token=8 until=9
    8.0 nemesis resume target=A
"""
NO_LEASE = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=null \n 2.0 A valid until=null \n"
NO_LEASE_NEXT = NO_LEASE + "1.5 B invoke timeout=9 \n {} B granted token=8 until=null \n"
KILLED = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=2.7 \n 1.2 nemesis kill target=A \n"
GIVEN_BACK = KILLED.replace("kill target=A", "kill target=A given_back=true").replace("until=2.7", "until=9")
B_LATER = "1.5 B invoke timeout=9 \n {} B granted token=8 until=9"
NESTED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=9
    1.2 A invoke op=2 timeout=5
    1.3 A granted op=2 token=7 until=9 again=true
    2.0 A release op=2
    2.1 A released op=2
    3.0 A release
    3.1 A released
    1.5 B invoke timeout=9
"""
READERS = held("A", "read", 7, 2, 4) + held("B", "read", 8, 2.5, 6)
LATE_CHECK = """
    1 A invoke timeout=5 kind=read
    2 A granted token=7 until=3
    1 B invoke timeout=9 kind={}
    4 B granted token=8 until=9
    5 A valid until=5
"""
DOWNGRADED = """
    1 A invoke timeout=5 kind=write
    2 A granted token=7 until=9
    3 A downgrade
    3.2 A downgraded
    5 A valid until=9
    6 A release
    6.1 A released
"""
NO_ANSWER = DOWNGRADED.replace("3.2 A downgraded", "3.2 A downgrade_failed")
WRITE_BLOCK_LEFT = """
    1 A invoke timeout=5 kind=write
    2 A granted token=7 until=9
    2.1 A invoke op=2 timeout=5 kind=read
    2.2 A granted op=2 token=7 until=9 again=true
    3 A release
    3.1 A released
    5 A release op=2
    5.1 A released op=2
"""
UPGRADED = """
    1 A invoke timeout=5 kind=read
    2 A granted token=7 until=9
    2.1 A invoke op=2 timeout=5 kind=write
    2.2 A {}
    3 A valid until=9
"""
LOWERED = change(3, 1, 1.1) + change(1, 3, 3.1, op=98) + permits(1)
NO_REPLY = "1 O set_limit op=99 limit=3 \n 1.1 O limit_failed op=99 definite={} \n" + permits(2)

# --- what is taken by force -------------------------------------------------------------------------------------------

ROBBED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.5 B invoke timeout=9
    2.0 nemesis {}
    2.1 B granted token=8 until=4
"""
EXPIRED, DELETED = ROBBED.format("expire target=A"), ROBBED.format("delete key=k token=7")
CROSSED = """
    1.0 A invoke timeout=5
    1.1 nemesis expire target=A
    1.2 A granted token=7 until=2.7
    1.5 B invoke timeout=9
    1.6 B granted token=8 until=9
    1.7 nemesis done of=expire target=A
"""

# --- order, deadlines and writes --------------------------------------------------------------------------------------

AGAIN = "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A invoke op=2 timeout=5 \n"
AHEAD = held("A", "read", 7, 2, 4) + held("B", "write", 8, 5.1, 6, called=2.1)
TOLD_LATE = (
    held("A", "semaphore/{0}", 7, 2, 9)
    + held("B", "semaphore/{0}", 8, 4, 9, called=1)
    + held("C", "semaphore/{0}", 9, 3, 3.5)
)
KEPT = [("A/one", 7, 1, 2), ("A/two", 7, 1, 3), ("A/one", 7, 3, 4.9), ("A/two", 7, 4, 6)]
OVERTAKEN = stay(("A/one", 7, 1, 4), ("A/two", 7, 2.1, 5), ("A/three", 7, 1, 6))
REFUSED = "refused error=LockTimeout definite=true"
UNANSWERED = "1 A invoke timeout=2 \n"
PAUSED_CALL = "1 A invoke timeout=2 \n 2 nemesis pause target=A \n 7 nemesis resume target=A \n"
RAISED = "1 B claimed token=8 ok=true \n"
SEEN = "1 A invoke timeout=5 kind=read \n 2 A granted token=7 until=5 \n 3 A observed value=4 \n {} A observed value={}"

CASES: dict[str, list[tuple[str, str]]] = {
    "two threads of one process are two owners": [
        ("exclusion", A_RELEASES + "1.5 A/two invoke op=2 timeout=5 \n 2.5 A/two granted op=2 token=8 until=9"),
    ],
    "the lease of a paused holder is a claim": [
        ("exclusion", PAUSED.format(granted=2.75)),
        ("", PAUSED.format(granted=2.85)),
        ("check exclusion", PAUSED.format(granted=5) + "8.1 A valid until=8.1"),
    ],
    "a lock without leases is a claim while its checks pass, and until its release": [
        ("check exclusion", NO_LEASE_NEXT.format(1.9)),
        ("", NO_LEASE_NEXT.format(2.1)),
        ("", NO_LEASE_NEXT.format(2.1) + "3.0 A lost reason=gone"),
        ("exclusion", NO_LEASE_NEXT.format(2.1) + "3.0 A release \n 3.1 A released"),
    ],
    "a killed holder keeps its lease": [
        ("", KILLED + B_LATER.format(4.5)),
        ("exclusion", KILLED + B_LATER.format(2.5)),
    ],
    "another process may release a lock of a killed one": [
        ("", GIVEN_BACK + B_LATER.format(1.6)),
        ("check exclusion", GIVEN_BACK + "2.0 A valid until=9 \n" + B_LATER.format(1.6)),
    ],
    "reentrant grants are one hold until the last release": [
        ("", NESTED + "3.05 B granted token=8 until=9"),
        ("exclusion", NESTED + "2.5 B granted token=8 until=9"),
    ],
    "readers keep a writer out until the last has gone": [
        ("", READERS + held("C", "write", 9, 6.02, 7, called=3)),
        ("check exclusion", READERS + held("C", "write", 9, 5, 7, called=3)),
    ],
    "a check of a reader that passes during a write is a fault": [
        ("check exclusion", LATE_CHECK.format("write")),
        ("", LATE_CHECK.format("read")),
    ],
    "a reader may be granted as soon as a downgrade begins, and a writer may not": [
        ("check exclusion", DOWNGRADED + held("B", "read", 8, 2.99, 8, called=2.1)),
        ("", DOWNGRADED + held("B", "read", 8, 3.0, 8, called=2.1)),
        *(("check exclusion", DOWNGRADED + held("B", kind, 8, 4, 8, called=1.5)) for kind in ("write", "semaphore/2")),
        ("", DOWNGRADED + held("B", "write", 8, 6.02, 8, called=1.5)),  # CURATOR-621
    ],
    "a downgrade without a reply may have been executed or not": [
        ("", NO_ANSWER + held("B", "read", 8, 4, 5, called=2.5)),
        ("check exclusion", NO_ANSWER + held("B", "write", 8, 4, 5, called=2.5)),
    ],
    "a writer that releases its write block first still reads": [
        ("exclusion", WRITE_BLOCK_LEFT + held("B", "read", 8, 2.9, 8, called=1.5)),
        ("", WRITE_BLOCK_LEFT + held("B", "read", 8, 3.05, 8, called=1.5)),
        ("exclusion", WRITE_BLOCK_LEFT + held("B", "write", 8, 4, 8, called=1.5)),
        ("", WRITE_BLOCK_LEFT + held("B", "write", 8, 5.05, 8, called=1.5)),
    ],
    "a reader that is granted a write lock is a fault": [
        ("upgrade", UPGRADED.format("granted op=2 token=7 until=9 again=true")),
        ("", UPGRADED.format("refused op=2 error=LockUpgradeRefused definite=true")),
    ],
    "more permits than the limit are a fault": [
        ("permits", permits(2)),
        ("", permits(3)),
    ],
    "a limit that is set overrides the limit in code": [
        ("", change(3, 1, 1.1) + permits(2)),
        ("permits", change(2, 1, 1.1) + permits(3)),
        ("", change(2, 1, 1.1) + change("null", 1.2, 1.3, op=98) + permits(3)),
        ("permits", change(3, 1, 1.1) + change("null", 1.2, 1.3, op=98) + permits(2)),
    ],
    "a changed limit counts from its call, and those who have a permit keep it": [
        ("", change(3, 1.5, 2.5) + permits(2)),
        ("", change(3, 1.5, None) + permits(2)),
        ("permits", change(3, 2.21, 2.3) + permits(2)),
        ("", LOWERED + held("D", "semaphore/1", 11, 4.02, 5, called=3.2)),
        ("permits", LOWERED + held("D", "semaphore/1", 11, 3.9, 5, called=3.2)),
    ],
    "a limit without a reply may count": [
        ("permits", NO_REPLY.format("true")),
        ("", NO_REPLY.format("false")),
    ],
    "a forced loss is no fault if the holder is told": [
        *(
            ("", robbed + "2.3 A valid until=3.9 \n" + end)
            for robbed in (EXPIRED, DELETED)
            for end in ("2.9 A lost reason=gone", "2.9 A release \n 2.95 A release_failed error=lost")
        ),
        ("told", EXPIRED + "2.3 nemesis done of=expire \n 3.4 A valid until=4"),
        ("told", DELETED + "2.3 nemesis done of=delete \n 3.4 A valid until=4"),
        ("told", DELETED + "5.0 A valid until=null"),  # another owner was granted the lock, so the node was gone
    ],
    "a pause or a cut of the holder is no delay": [
        ("", DELETED + "2.2 nemesis pause target=A \n 6.0 nemesis resume target=A \n 6.1 A valid until=null"),
        ("told", DELETED + "2.2 nemesis pause target=B \n 6.0 nemesis resume target=B \n 6.1 A valid until=null"),
        ("", DELETED + "2.2 nemesis blackhole target=A \n 5.0 nemesis heal target=A \n 6.1 A valid until=null"),
    ],
    "only the victim of a force is excused": [
        ("exclusion", ROBBED.format("expire target=C")),
        ("exclusion", ROBBED.format("delete key=k token=6")),
        ("exclusion", ROBBED.format("delete key=other token=7")),
        ("", ROBBED.format("wipe")),
    ],
    "a grant of an ending session is a claim only if it is used": [
        ("", CROSSED + "1.8 A lost reason=gone"),
        ("check exclusion", CROSSED + "3.0 A valid until=4.0"),
    ],
    "a grant out of order is a fault": [
        ("", turns(("A", 7, 1.0, 5), ("B", 8, 1.1, 6))),
        ("order tokens", turns(("B", 8, 1.1, 5), ("A", 7, 1.0, 6))),
        ("order tokens", AHEAD + held("C", "read", 9, 3, 5, called=2.5)),
        ("", AHEAD + held("C", "read", 9, 6.1, 7, called=2.5)),
        ("", TOLD_LATE.format(3)),
        ("order", TOLD_LATE.format(2)),
    ],
    "a grant without a token is no fault": [
        ("", turns(("A", 7, 1, 2), ("B", 0, 3, 4), ("A", 8, 5, 6))),
        ("tokens", turns(("A", 7, 1, 2), ("B", 0, 3, 4), ("A", 6, 5, 6))),
    ],
    "two holds with one token are a fault": [
        ("tokens", held("A", "read", 8, 2, 5) + held("B", "read", 8, 2.1, 5, called=1).replace("op=8", "op=9")),
    ],
    "a reentrant grant shows the same token": [
        ("", AGAIN + "4 A granted op=2 token=7 until=9 again=true"),
        ("", AGAIN + "4 A granted op=2 token=0 until=9 again=true"),
        ("tokens", AGAIN + "4 A granted op=2 token=8 until=9 again=true"),
    ],
    "owners of one lingering lock have one token": [
        ("", stay(("A/one", 7, 1, 2), ("A/two", 7, 1, 3))),
        ("tokens", stay(("A/one", 7, 1, 2), ("B/one", 7, 1, 3))),
        ("tokens", turns(("A/one", 7, 1, 2), ("A/two", 7, 1, 3))),
        ("tokens", stay(("A/one", 7, 1, 2), ("A/two", 6, 2.5, 3))),
        ("exclusion", stay(("A/one", 7, 1, 2), ("A/two", 7, 1, 2.4))),
    ],
    "an owner of a lingering lock that is overtaken is a fault": [
        ("", stay(("A/one", 7, 1, 4), ("A/two", 7, 1.9, 5), ("A/three", 7, 1, 6))),
        ("overtaken", OVERTAKEN),
        ("", OVERTAKEN + "\n 1.1 nemesis pause target=A \n 1.9 nemesis resume target=A"),
    ],
    "a lingering lock that is kept too long is a fault": [
        ("kept", stay(*KEPT, ("B/one", 8, 4, 7))),
        ("", stay(*KEPT, ("B/one", 8, 4.5, 7))),
        ("", stay(*KEPT[:2], ("A/one", 7, 3, 4), ("A/two", 7, 4, 4.7), ("B/one", 8, 1, 7))),
        ("", stay(*KEPT, ("A/three", 8, 4, 7))),
        ("", stay(*KEPT, ("B/one", 8, 4, 7)) + "\n 1 nemesis cut"),
    ],
    "a late reply to a call is a fault": [
        ("", UNANSWERED + f"3.9 A {REFUSED}"),
        ("deadline", UNANSWERED + f"4.5 A {REFUSED}"),
        ("deadline", UNANSWERED + "4.5 A granted token=7 until=9"),
        ("", PAUSED_CALL + f"8.9 A {REFUSED}"),
        ("deadline", PAUSED_CALL + f"9.1 A {REFUSED}"),
    ],
    "a call without a reply is a fault": [
        ("deadline", UNANSWERED + "9 B invoke timeout=5"),
        ("", UNANSWERED + "3.5 B invoke timeout=5"),  # the history ends before the deadline
        ("", "1 A invoke timeout=null \n 99 B invoke timeout=5"),
        ("", UNANSWERED + "2 nemesis kill target=A \n 9 B invoke timeout=5"),
        ("deadline", UNANSWERED + "2 nemesis kill target=B \n 9 B invoke timeout=5"),
        ("deadline", UNANSWERED + "8 nemesis kill target=A \n 9 B invoke timeout=5"),  # it lived long enough
        ("", UNANSWERED + "2 nemesis pause target=A \n 99 B invoke timeout=5"),
    ],
    "a value that changes during a read hold is a fault, as long as the lease lasts": [
        ("", SEEN.format(4, 4)),
        ("unsettled", SEEN.format(4, 5)),
        ("", SEEN.format(5.5, 5)),
    ],
    "a stale write must not be accepted": [
        ("fenced", RAISED + "2 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=true"),
        ("", RAISED + "2 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=false"),
        # It may have been written before the fence was raised.
        ("", RAISED + "0 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=true"),
    ],
}


@pytest.mark.parametrize("histories", CASES.values(), ids=CASES)
def test_a_history_breaks_only_the_rules_of_its_faults(histories: list[tuple[str, str]]) -> None:
    for broken, text in histories:
        assert rules(text) == set(broken.split()), text


KINDS = ("lock", "read", "write", "semaphore/2")


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_readers_share_permits_share_and_nobody_else_does(first: str, second: str) -> None:
    """Each kind excludes the others: readers exclude permits, too."""
    text = held("A", first, 7, 2, 4) + held("B", second, 8, 3, 5)
    assert (not rules(text)) == (first == second and first not in ("lock", "write"))


def test_a_contender_that_no_process_knows_is_an_orphan() -> None:
    left = {"k": ["_c_def-lock-0000000002"]}
    assert one(check_history([], left=left)) == "nobody answers for _c_def-lock-0000000002"
    assert check_history([], left={"k": []}).ok


# --- what was written -------------------------------------------------------------------------------------------------


def writes(*written: tuple[str, int, int, str]) -> str:
    """Write updates of a fenced counter: owner, token, value, what the store said."""
    return "\n".join(
        f"{t} {owner} writing token={token} value={value} \n {t}.5 {owner} fenced token={token} value={value} ok={ok}"
        for t, (owner, token, value, ok) in enumerate(written)
    )


def test_a_lost_update_of_a_fenced_counter_is_a_fault() -> None:
    """A counter that falls is one, too, in the order of the tokens: that is the order of the store."""
    assert not rules(writes(("A", 1, 1, "true"), ("B", 2, 2, "true")), final={"k": 2})
    verdict = check_history(written(writes(("A", 1, 1, "true"), ("B", 2, 1, "true"))))
    assert one(verdict) == "an update was lost: 1 was written twice"
    assert rules(writes(("A", 1, 5, "true"), ("B", 2, 3, "true"))) == {"fenced"}
    assert not rules(writes(("B", 2, 5, "true"), ("A", 1, 3, "true")))


@pytest.mark.parametrize(("final", "fine"), [(0, False), (1, True), (3, True), (4, False)])
def test_the_final_counter_fits_the_acknowledged_writes(final: int, fine: bool) -> None:
    text = writes(("A", 1, 1, "true"), ("B", 2, 2, "null")) + "\n 7 C writing token=3 value=3"
    assert (not rules(text, final={"k": final})) == fine
    assert rules("", final={"k": 1}) == {"fenced"}


# --- histories that make no sense -------------------------------------------------------------------------------------

INVOKED = "1 A invoke timeout=5 \n"
GRANTED = INVOKED + "2 A granted token=7 until=9 \n"
RELEASED = GRANTED + "3 A release \n 4 A released \n"


@pytest.mark.parametrize(
    "text",
    [
        "1 A granted token=7 until=9",
        GRANTED + "3 A refused error=x definite=true",
        INVOKED + "2 A refused error=x definite=true \n 3 A release",
        INVOKED + "2 A valid until=9 \n 3 A granted token=7 until=9",
        INVOKED + "2 A invoke timeout=5",
        INVOKED + "2 A granted token=7 until=9 again=true",
        GRANTED + "3 A released",
        RELEASED + "5 A release",
        RELEASED + "5 A valid until=9",
        "1 A invoke",
        INVOKED + "2 A granted token=x until=9",
        "1 A fenced token=1 ok=true",
        "1 A set_limit limit=x",
        "1 A limit_set",
        INVOKED + "2 A downgrade",
        GRANTED + "3 A downgraded",
        INVOKED + "2 A observed value=1",
        "1 A invoke timeout=5 kind=semaphore limit=x",
        "1 A invoke timeout=5 kind=shared",
    ],
)
def test_an_impossible_history_is_malformed(text: str) -> None:
    """It shows a fault of the harness, not of the lock."""
    assert rules(text) == {"malformed"}


def test_events_without_required_fields_are_malformed() -> None:
    events: list[Event] = [{"t": 1.0}, {"t": "soon", "p": "A", "e": "invoke"}, {"t": 1, "p": "A", "e": "nemesis"}]
    assert check_history(events).rules == {"malformed"}


# --- what is measured and shown ---------------------------------------------------------------------------------------


def test_the_checker_measures_figures() -> None:
    """A soak fails if it tried little, or if no lock had two holders at a time."""
    more = """
        1.5 B invoke timeout=5
        3.4 B granted token=8 until=9
        5.0 nemesis delete key=k token=8
        5.2 C invoke timeout=1
        5.3 C granted token=9 until=9
        5.7 B lost reason=gone
        5.9 D invoke timeout=0
        6.0 D refused error=Struck definite=false
        6.1 D invoke op=2 timeout=0
        6.2 D refused op=2 error=LockBusy definite=true
    """
    figures = check_history(written(A_RELEASES + more)).figures
    assert (figures.grants, figures.refusals, figures.losses) == (3, 1, 1)
    assert figures.handoffs == pytest.approx((0.4,))
    assert check_history(written(READERS)).figures.together == {"read": 2}
    assert check_history(written(permits(3))).figures.together == {"semaphore": 3}
    downgraded = check_history(written(DOWNGRADED + held("B", "read", 8, 4, 8))).figures
    assert (downgraded.together, downgraded.downgrades) == ({"write": 1, "read": 2}, 1)
    assert check_history(written(stay(("A/one", 7, 1, 2), ("A/two", 7, 1, 3)))).figures.handed_on == 1


def test_a_verdict_is_printed_with_its_events() -> None:
    history = PAUSED.format(granted=2.0) + "9 A valid until=10 \n 10 A release \n 11 A released"
    text = check_history(written(history)).short()
    assert "[exclusion] k: B/main was granted the lock" in text
    assert "[check] k: check() passed for A/main 7.000 s after B/main was granted the lock" in text
    assert "      +1.000  B/main         granted token=8 until=8.0" in text
    assert len(text.splitlines()) <= 40


def claim(since: float, until: float, token: int, key: str = "k") -> Claim:
    return Claim(key, f"client-{token}", 0, token, since, until)


def test_claims_one_after_another_are_fine() -> None:
    assert violations([claim(2.0, 3.0, 7), claim(0.0, 2.0, 5), claim(0.0, 9.0, 1, key="other")]) == []


@pytest.mark.parametrize(
    ("claims", "match"),
    [
        ([claim(0.0, 2.0, 5), claim(1.9, 3.0, 7)], "0.100 s before the end"),
        ([claim(0.0, 9.0, 5), claim(9.0, 9.1, 6), claim(8.0, 8.5, 7)], "before the end"),
        ([claim(0.0, 2.0, 5), claim(2.0, 3.0, 5)], "not above"),
        ([claim(0.0, 2.0, 5), claim(2.0, 3.0, 4)], "not above"),
    ],
)
def test_overlapping_claims_are_violations(claims: list[Claim], match: str) -> None:
    assert any(match in violation for violation in violations(claims))
