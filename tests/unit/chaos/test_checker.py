"""The checker of histories finds each fault, and takes nothing else for one."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.chaos.checker import Verdict, check_history
from support.chaos.simulated import Event, Family, written

SEEDS = st.integers(0, 2**32)


def rules(text: str, **about: object) -> set[str]:
    """The rules that a written history breaks."""
    return set(check_history(written(text), **about).rules)  # type: ignore[arg-type]


def one(verdict: Verdict) -> str:
    """Return the message of the only violation."""
    (violation,) = verdict.violations
    return violation.message


# --- exclusion ------------------------------------------------------------------------------------------------------

A_RELEASES = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=9
    3.0 A release
    3.1 A released
"""


def test_threads_of_one_process_are_two_owners() -> None:
    assert rules(A_RELEASES + "1.5 A/two invoke op=2 timeout=5 \n 2.5 A/two granted op=2 token=8 until=9") == {
        "exclusion"
    }


PAUSED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.2 A valid until=2.8
    1.3 nemesis pause target=A
    1.5 B invoke timeout=10
    {granted} B granted token=8 until=9
    8.0 nemesis resume target=A
"""


def test_the_lease_of_a_paused_holder_is_a_claim() -> None:
    assert rules(PAUSED.format(granted=2.75)) == {"exclusion"}


def test_a_check_that_passes_after_another_grant_is_a_fault() -> None:
    """Though the lease that it tells of afterwards is over."""
    verdict = check_history(written(PAUSED.format(granted=5) + "8.1 A valid until=8.1"))
    assert "exclusion" in verdict.rules
    assert any("check() passed for A/main 3.100 s after B/main" in v.message for v in verdict.violations)


def test_a_lock_without_leases_is_a_claim_while_its_checks_pass() -> None:
    """And until its release, which its holder did under the lock; not beyond, as nobody says that it is held."""
    without = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=null \n 2.0 A valid until=null \n"
    next_one = "1.5 B invoke timeout=9 \n {} B granted token=8 until=null \n"
    assert rules(without + next_one.format(1.9)) == {"exclusion", "check"}
    assert not rules(without + next_one.format(2.1))
    assert not rules(without + next_one.format(2.1) + "3.0 A lost reason=gone")
    assert rules(without + next_one.format(2.1) + "3.0 A release \n 3.1 A released") == {"exclusion"}
    assert rules(without + next_one.format(2.1) + "3.0 A valid until=null") == {"exclusion", "check"}


def test_a_killed_holder_keeps_its_lease() -> None:
    """Nobody gives it back on its behalf, so an earlier grant would be one that the servers had no right to."""
    killed = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=2.7 \n 1.2 nemesis kill target=A \n"
    assert not rules(killed + "1.5 B invoke timeout=9 \n 4.5 B granted token=8 until=9")
    assert rules(killed + "1.5 B invoke timeout=9 \n 2.5 B granted token=8 until=9") == {"exclusion"}


def test_another_process_may_release_a_lock_of_a_killed_one() -> None:
    """So does the main process of a Celery worker. But what the dead one did before is still judged."""
    killed = "1.0 A invoke timeout=5 \n 1.1 A granted token=7 until=9 \n 1.2 nemesis kill target=A given_back=true \n"
    later = "1.5 B invoke timeout=9 \n 1.6 B granted token=8 until=9"
    assert not rules(killed + later)
    assert "exclusion" in rules(killed + "2.0 A valid until=9 \n" + later)


def test_reentrant_grants_are_one_hold_until_the_last_release() -> None:
    nested = """
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
    assert not rules(nested + "3.05 B granted token=8 until=9")
    assert rules(nested + "2.5 B granted token=8 until=9") == {"exclusion"}


# --- what is taken by force -------------------------------------------------------------------------------------------

ROBBED = """
    1.0 A invoke timeout=5
    1.1 A granted token=7 until=2.7
    1.5 B invoke timeout=9
    2.0 nemesis {force}
    2.1 B granted token=8 until=4
"""
FORCES = ["expire target=A", "delete key=k token=7"]


@pytest.mark.parametrize("force", FORCES)
def test_a_forced_loss_is_no_fault_if_the_holder_is_told(force: str) -> None:
    robbed = ROBBED.format(force=force)
    assert not rules(robbed + "2.3 A valid until=3.9 \n 2.9 A lost reason=gone")
    assert not rules(robbed + "2.3 A valid until=3.9 \n 2.9 A release \n 2.95 A release_failed error=lost")
    verdict = check_history(written(robbed + "2.3 nemesis done of=" + force.split()[0] + " \n 3.4 A valid until=4"))
    assert one(verdict) == "check() passed for A/main 1.100 s after it had lost the lock by force"
    assert verdict.rules == {"told"}


def test_a_deletion_that_the_holder_does_not_notice_is_a_fault() -> None:
    """Somebody else was granted the lock, so the node was gone."""
    assert rules(ROBBED.format(force=FORCES[1]) + "5.0 A valid until=null") == {"told"}


def test_a_pause_of_the_holder_is_no_delay() -> None:
    robbed = ROBBED.format(force="delete key=k token=7")
    assert not rules(robbed + "2.2 nemesis pause target=A \n 6.0 nemesis resume target=A \n 6.1 A valid until=null")
    assert rules(robbed + "2.2 nemesis pause target=B \n 6.0 nemesis resume target=B \n 6.1 A valid until=null")
    assert not rules(robbed + "2.2 nemesis blackhole target=A \n 5.0 nemesis heal target=A \n 6.1 A valid until=null")


def test_only_the_victim_of_a_force_is_excused() -> None:
    assert rules(ROBBED.format(force="expire target=C")) == {"exclusion"}
    assert rules(ROBBED.format(force="delete key=k token=6")) == {"exclusion"}, "that was a waiter's node"
    assert rules(ROBBED.format(force="delete key=other token=7")) == {"exclusion"}
    assert not rules(ROBBED.format(force="wipe"))


def test_a_grant_of_an_ending_session_is_a_claim_only_if_it_is_used() -> None:
    """The force was written down before it was done, and the reply to acquire was on its way."""
    crossed = """
        1.0 A invoke timeout=5
        1.1 nemesis expire target=A
        1.2 A granted token=7 until=2.7
        1.5 B invoke timeout=9
        1.6 B granted token=8 until=9
        1.7 nemesis done of=expire target=A
    """
    assert not rules(crossed + "1.8 A lost reason=gone")
    assert rules(crossed + "3.0 A valid until=4.0") >= {"exclusion"}


# --- tokens and order -------------------------------------------------------------------------------------------------


def turns(*grants: tuple[str, int, float, float]) -> str:
    """Holds of 0.5 s: owner, token, when it called, when it was granted the lock."""
    return "\n".join(
        f"""{called} {owner} invoke op={op} timeout=60
        {granted} {owner} granted op={op} token={token} until={granted + 1}
        {granted + 0.5} {owner} release op={op}
        {granted + 0.6} {owner} released op={op}"""
        for op, (owner, token, called, granted) in enumerate(grants)
    )


def stay(*grants: tuple[str, int, float, float]) -> str:
    """Return the turns of a lock that lingers for 2 s."""
    return turns(*grants).replace("timeout=60", "timeout=60 linger=2")


def test_owners_of_one_lingering_lock_have_one_token() -> None:
    """In one process, if both keep the lock there."""
    assert not rules(stay(("A/one", 7, 1, 2), ("A/two", 7, 1, 3)))
    assert rules(stay(("A/one", 7, 1, 2), ("B/one", 7, 1, 3))) == {"tokens"}
    assert rules(turns(("A/one", 7, 1, 2), ("A/two", 7, 1, 3))) == {"tokens"}
    assert rules(stay(("A/one", 7, 1, 2), ("A/two", 6, 2.5, 3))) == {"tokens"}
    assert rules(stay(("A/one", 7, 1, 2), ("A/two", 7, 1, 2.4))) == {"exclusion"}


def test_an_owner_of_a_lingering_lock_that_is_overtaken_is_a_fault() -> None:
    """An owner that came more than a second after another one is behind it."""
    assert not rules(stay(("A/one", 7, 1, 4), ("A/two", 7, 1.9, 5), ("A/three", 7, 1, 6)))
    overtaken = stay(("A/one", 7, 1, 4), ("A/two", 7, 2.1, 5), ("A/three", 7, 1, 6))
    assert rules(overtaken) == {"overtaken"}
    assert not rules(overtaken + "\n 1.1 nemesis pause target=A \n 1.9 nemesis resume target=A")


def test_a_lingering_lock_that_is_kept_too_long_is_a_fault() -> None:
    """With the first release after its time that another process has waited for."""
    kept = [("A/one", 7, 1, 2), ("A/two", 7, 1, 3), ("A/one", 7, 3, 4.9), ("A/two", 7, 4, 6)]
    assert rules(stay(*kept, ("B/one", 8, 4, 7))) == {"kept"}
    assert not rules(stay(*kept, ("B/one", 8, 4.5, 7)))
    assert not rules(stay(*kept[:2], ("A/one", 7, 3, 4), ("A/two", 7, 4, 4.7), ("B/one", 8, 1, 7)))
    assert not rules(stay(*kept, ("A/three", 8, 4, 7)))
    assert not rules(stay(*kept, ("B/one", 8, 4, 7)) + "\n 1 nemesis cut")


def test_a_grant_without_a_token_is_no_fault() -> None:
    assert not rules(turns(("A", 7, 1, 2), ("B", 0, 3, 4), ("A", 8, 5, 6)))
    assert rules(turns(("A", 7, 1, 2), ("B", 0, 3, 4), ("A", 6, 5, 6))) == {"tokens"}


def test_a_reentrant_grant_shows_the_same_token() -> None:
    nested = "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A invoke op=2 timeout=5 \n"
    assert not rules(nested + "4 A granted op=2 token=7 until=9 again=true")
    assert not rules(nested + "4 A granted op=2 token=0 until=9 again=true")
    assert rules(nested + "4 A granted op=2 token=8 until=9 again=true") == {"tokens"}


def test_a_grant_out_of_order_is_a_fault() -> None:
    """A jump in the queue makes the tokens fall as well."""
    assert not rules(turns(("A", 7, 1.0, 5), ("B", 8, 1.1, 6)))
    assert rules(turns(("B", 8, 1.1, 5), ("A", 7, 1.0, 6))) == {"order", "tokens"}


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_late_reply_to_a_call_is_a_fault() -> None:
    assert not rules("1 A invoke timeout=2 \n 3.9 A refused error=LockTimeout definite=true")
    verdict = check_history(written("1 A invoke timeout=2 \n 4.5 A refused error=LockTimeout definite=true"))
    assert one(verdict) == "A/main was answered 1.500 s after its deadline of 2 s"
    assert rules("1 A invoke timeout=2 \n 4.5 A granted token=7 until=9") == {"deadline"}


def test_a_call_without_a_reply_is_a_fault() -> None:
    unanswered = "1 A invoke timeout=2 \n"
    assert rules(unanswered + "9 B invoke timeout=5") == {"deadline"}
    assert not rules(unanswered + "3.5 B invoke timeout=5"), "the history ends before the deadline"
    assert not rules("1 A invoke timeout=null \n 99 B invoke timeout=5"), "it said that it would wait for ever"
    assert not rules(unanswered + "2 nemesis kill target=A \n 9 B invoke timeout=5")
    assert rules(unanswered + "2 nemesis kill target=B \n 9 B invoke timeout=5") == {"deadline"}
    assert rules(unanswered + "8 nemesis kill target=A \n 9 B invoke timeout=5") == {"deadline"}, "it lived long enough"


def test_a_call_without_a_reply_of_a_paused_process_is_no_fault() -> None:
    paused = "1 A invoke timeout=2 \n 2 nemesis pause target=A \n 7 nemesis resume target=A \n"
    assert not rules(paused + "8.9 A refused error=LockTimeout definite=true")
    assert rules(paused + "9.1 A refused error=LockTimeout definite=true") == {"deadline"}
    assert not rules("1 A invoke timeout=2 \n 2 nemesis pause target=A \n 99 B invoke timeout=5")


# --- what is left, and what was written -------------------------------------------------------------------------------


def test_a_contender_that_no_process_knows_is_an_orphan() -> None:
    left = {"k": ["_c_def-lock-0000000002"]}
    assert one(check_history([], left=left)) == "nobody answers for _c_def-lock-0000000002"
    assert check_history([], left={"k": []}).ok


def writes(*written: tuple[str, int, int, str]) -> str:
    """Writes of a fenced counter: owner, token, value, what the store said."""
    return "\n".join(
        f"{t} {owner} writing token={token} value={value} \n {t}.5 {owner} fenced token={token} value={value} ok={ok}"
        for t, (owner, token, value, ok) in enumerate(written)
    )


def test_a_lost_update_of_a_fenced_counter_is_a_fault() -> None:
    assert not rules(writes(("A", 1, 1, "true"), ("B", 2, 2, "true")), final={"k": 2})
    verdict = check_history(written(writes(("A", 1, 1, "true"), ("B", 2, 1, "true"))))
    assert one(verdict) == "an update was lost: 1 was written twice"


def test_a_fenced_counter_that_falls_is_a_fault() -> None:
    """By the order of the tokens, as that is the store's."""
    assert rules(writes(("A", 1, 5, "true"), ("B", 2, 3, "true"))) == {"fenced"}
    assert not rules(writes(("B", 2, 5, "true"), ("A", 1, 3, "true")))


@pytest.mark.parametrize(("final", "fine"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
def test_the_final_counter_fits_the_acknowledged_writes(final: int, fine: bool) -> None:
    text = writes(("A", 1, 1, "true"), ("B", 2, 2, "null")) + "\n 7 C writing token=3 value=3"
    assert (not rules(text, final={"k": final})) == fine
    assert rules("", final={"k": 1}) == {"fenced"}


def test_a_stale_write_must_not_be_accepted() -> None:
    raised = "1 B claimed token=8 ok=true \n"
    assert rules(raised + "2 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=true") == {"fenced"}
    assert not rules(raised + "2 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=false")
    crossed = "0 A writing token=7 value=1 \n 3 A fenced token=7 value=1 ok=true"
    assert not rules(raised + crossed), "it may have been written before the fence was raised"


# --- histories that make no sense -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1 A granted token=7 until=9",
        "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A refused error=x definite=true",
        "1 A invoke timeout=5 \n 2 A refused error=x definite=true \n 3 A release",
        "1 A invoke timeout=5 \n 2 A valid until=9 \n 3 A granted token=7 until=9",
        "1 A invoke timeout=5 \n 2 A invoke timeout=5",
        "1 A invoke timeout=5 \n 2 A granted token=7 until=9 again=true",
        "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A released",
        "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A release \n 4 A released \n 5 A release",
        "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n 3 A release \n 4 A released \n 5 A valid until=9",
        "1 A invoke",
        "1 A invoke timeout=5 \n 2 A granted token=x until=9",
        "1 A fenced token=1 ok=true",
        "1 A set_limit limit=x",
        "1 A limit_set",
        "1 A invoke timeout=5 kind=write \n 2 A downgrade",
        "1 A invoke timeout=5 kind=write \n 2 A granted token=7 until=9 \n 3 A downgraded",
        "1 A invoke timeout=5 kind=read \n 2 A observed value=1",
        "1 A invoke timeout=5 kind=semaphore limit=x",
        "1 A invoke timeout=5 kind=shared",
    ],
)
def test_an_impossible_history_is_malformed(text: str) -> None:
    """Which says that the harness is wrong, not the lock."""
    assert check_history(written(text)).rules == {"malformed"}


def test_events_without_required_fields_are_malformed() -> None:
    events: list[Event] = [{"t": 1.0}, {"t": "soon", "p": "A", "e": "invoke"}, {"t": 1, "p": "A", "e": "nemesis"}]
    assert check_history(events).rules == {"malformed"}


# --- what is measured and shown ---------------------------------------------------------------------------------------


def test_the_checker_measures_figures() -> None:
    figures = check_history(
        written(
            A_RELEASES
            + """
            1.5 B invoke timeout=5
            3.4 B granted token=8 until=9
            5.0 nemesis delete key=k token=8
            5.2 C invoke timeout=1
            5.3 C granted token=9 until=9
            5.7 B lost reason=gone
            5.8 B release
            5.9 B release_failed error=x
            5.8 D invoke timeout=0
            5.9 D refused error=LockBusy definite=true
            5.9 E invoke timeout=0
            6.0 E refused error=Struck definite=false
            6.0 F invoke timeout=5
            """
        )
    ).figures
    assert (figures.grants, figures.refusals, figures.losses) == (3, 1, 1)
    assert figures.handoffs == pytest.approx((0.4,))
    assert str(figures) == "3 grants, 1 refusals, 1 losses; handoffs: 1, median 0.400 s"


def test_a_verdict_is_printed_with_its_events() -> None:
    text = check_history(
        written(PAUSED.format(granted=2.0) + "9 A valid until=10 \n 10 A release \n 11 A released")
    ).short()
    assert "[exclusion] k: B/main was granted the lock" in text
    assert "[check] k: check() passed for A/main 7.000 s after B/main was granted the lock" in text
    assert "      +1.000  B/main         granted token=8 until=8.0" in text
    assert len(text.splitlines()) <= 40


# --- all at once ------------------------------------------------------------------------------------------------------


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_an_overlap_is_always_found(seed: int, chance: random.Random) -> None:
    """One release is made later, or one grant earlier, in a history that is right apart from that."""
    events = Family(seed, kinds=["lock"], holds=15).events
    holds = by_grant(events)
    index = chance.randrange(len(holds) - 1)
    holder, follower = holds[index], holds[index + 1]
    assume(holder["granted"]["p"] != follower["granted"]["p"])
    if chance.random() < 0.5:
        late = follower["granted"]["t"] + chance.uniform(1e-6, 1.0)
        holder["granted"]["until"] = late + 1
        holder["released"]["t"] += late - holder["release"]["t"]
        holder["release"]["t"] = late
    else:
        early = chance.uniform(holder["granted"]["t"], holder["release"]["t"])
        assume(holder["granted"]["t"] < early < holder["release"]["t"])
        follower["invoke"]["t"] = min(early, follower["invoke"]["t"])
        follower["granted"]["t"] = early
    assert "exclusion" in check_history(events).rules


def by_grant(events: list[Event]) -> list[dict[str, Event]]:
    """The events of each hold by their kinds, in the order of the grants."""
    holds: dict[tuple[str, int], dict[str, Event]] = {}
    for event in events:
        holds.setdefault((event["p"], event["op"]), {})[event["e"]] = event
    granted = [hold for hold in holds.values() if "granted" in hold]
    return sorted(granted, key=lambda hold: float(hold["granted"]["t"]))


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_a_token_that_falls_is_always_found(seed: int, chance: random.Random) -> None:
    events = Family(seed, kinds=["lock"], holds=10).events
    grants = [event for event in events if event["e"] == "granted" and event["token"]]
    assume(len(grants) > 1)
    index = chance.randrange(1, len(grants))
    grants[index]["token"] = chance.randint(1, grants[index - 1]["token"])
    assert "tokens" in check_history(events).rules
