"""The models of a lock, and the search for an order in which a history could have been one of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.chaos.brute_force import brute_force
from support.chaos.models import (
    FencedMutex,
    Mutex,
    OwnerAwareMutex,
    ReentrantFencedMutex,
    ReentrantMutex,
)
from support.chaos.operations import Kind, Op, operations
from support.chaos.search import Model, linearizable
from support.chaos.shared_model import SharedLockModel
from support.chaos.simulated import Simulation, written

SEEDS = st.integers(0, 2**32)
AWARE: list[Model] = [OwnerAwareMutex(), FencedMutex()]
PLAIN: list[Model] = [Mutex(), *AWARE]
REENTRANT: list[Model] = [ReentrantMutex(), ReentrantFencedMutex(), SharedLockModel()]


def run(model: Model, *steps: str) -> bool:
    """Tell whether a model allows these steps: `A+5` takes with fence 5, `A-` releases, `A!` loses."""
    state: Model | None = model
    for step in steps:
        if state is None:
            break
        kinds: dict[str, Kind] = {"+": "acquire", "-": "release", "!": "lose"}
        state = state.step(Op(kinds[step[1]], step[0], 0.0, fence=int(step[2:] or 0), hold=ord(step[0])))
    return state is not None


# --- the models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [*PLAIN, *REENTRANT])
def test_nobody_takes_what_another_has(model: Model) -> None:
    assert run(model, "A+", "A-", "B+", "B!", "A+")
    assert not run(model, "A+", "B+")
    assert not run(model, "A-")
    assert not run(model, "A+", "A-", "A-")


@pytest.mark.parametrize("model", [*AWARE, *REENTRANT])
def test_only_the_owner_releases(model: Model) -> None:
    assert not run(model, "A+", "B-")
    assert not run(model, "A+", "B!")
    assert run(Mutex(), "A+", "B-")


@pytest.mark.parametrize("model", REENTRANT)
def test_an_owner_releases_as_often_as_it_took(model: Model) -> None:
    assert run(model, "A+", "A+", "A-", "A-", "B+")
    assert not run(model, "A+", "A+", "A-", "B+")
    assert run(model, "A+", "A+", "A!", "B+"), "a loss ends all levels"


@pytest.mark.parametrize("model", PLAIN)
def test_a_plain_lock_is_not_taken_twice_by_its_owner(model: Model) -> None:
    assert not run(model, "A+", "A+")


@pytest.mark.parametrize("model", [FencedMutex(), ReentrantFencedMutex()])
def test_fences_rise_from_holder_to_holder(model: Model) -> None:
    assert run(model, "A+3", "A-", "B+5", "B-", "A+6")
    assert not run(model, "A+3", "A-", "B+3")
    assert not run(model, "A+3", "A-", "B+2")
    assert run(model, "A+3", "A-", "B+0", "B-", "A+4"), "0 is unknown"
    assert not run(model, "A+3", "A-", "B+0", "B-", "A+3")


def test_all_levels_of_a_hold_show_one_fence() -> None:
    assert run(ReentrantFencedMutex(), "A+3", "A+3", "A-", "A+3")
    assert not run(ReentrantFencedMutex(), "A+3", "A+4")
    assert run(ReentrantFencedMutex(), "A+0", "A+4", "A+4"), "unknown at first"
    assert run(ReentrantFencedMutex(), "A+3", "A+0", "A+3")
    assert not run(ReentrantFencedMutex(), "A+0", "A+4", "A+5")
    assert not run(ReentrantFencedMutex(), "B+5", "B-", "A+0", "A+4"), "less than what another had"


# --- from a history to operations -------------------------------------------------------------------------------------


def shown(text: str) -> list[str]:
    """The operations of a written history, with their spans."""
    return [f"{op} {op.call:g}..{'' if op.back == math.inf else f'{op.back:g}'}" for op in operations(written(text))]


GRANTED = "1 A invoke timeout=5 \n 2 A granted token=7 until=9 \n"
ACQUIRED = "A/main acquire fence=7 1..2"


@pytest.mark.parametrize(
    ("then", "last"),
    [
        ("3 A release \n 4 A released", "A/main release 3..4"),
        ("3 A valid until=9 \n 4 A lost reason=x", "A/main lose 3..4"),
        ("3 A valid until=9 \n 4 A lost reason=x \n 5 A release \n 6 A release_failed", "A/main lose 3..4"),
        ("3 A valid until=9", "A/main lose (perhaps) 3.."),
        ("3 nemesis kill target=A", "A/main lose (perhaps) 2.."),
        ("3 A release", "A/main lose (perhaps) 2.."),
        ("3 A valid until=9 \n 4 A release \n 5 A release_failed", "A/main lose (perhaps) 3.."),
        ("12 A release \n 13 A released", "A/main lose 9..13"),
        ("3 nemesis delete key=k token=7 \n 3.5 A valid until=9 \n 4 A lost reason=x", "A/main lose 3..4"),
        ("3 nemesis delete key=k token=7", "A/main lose (perhaps) 3.."),
        ("3 nemesis dismiss target=A", "A/main lose (perhaps) 2.."),
    ],
)
def test_a_hold_ends_as_early_and_as_late_as_it_may_have(then: str, last: str) -> None:
    assert shown(GRANTED + then) == [ACQUIRED, last]


def test_a_hold_without_lease_ends_with_its_release_however_late() -> None:
    assert shown("1 A invoke timeout=5 \n 2 A granted token=7 until=null \n 99 A release \n 99 A released") == [
        ACQUIRED,
        "A/main release 99..99",
    ]


def test_a_hold_had_ended_when_its_owner_was_granted_the_lock_again() -> None:
    next_grant = (
        "1 A/main invoke op=3 timeout=5 \n 20 A/main invoke op=2 timeout=5 \n 21 A/main granted op=2 token=9 until=30"
    )
    assert "A/main lose 2..21" in shown(GRANTED + next_grant)


def test_a_refusal_did_not_happen_unless_nobody_knows() -> None:
    assert shown("1 A invoke timeout=5 \n 2 A refused error=x definite=true") == []
    perhaps = ["A/main acquire (perhaps) 1..", "A/main lose (perhaps) 1.."]
    assert shown("1 A invoke timeout=5 \n 2 A refused error=x definite=false") == perhaps
    assert shown("1 A invoke timeout=5") == perhaps


NESTED = "3 A invoke op=2 timeout=5 \n 4 A granted op=2 token=7 until=9 again=true \n"


def test_inner_levels_are_operations_too() -> None:
    text = GRANTED + NESTED + "5 A release op=2 \n 6 A released op=2 \n 7 A release \n 8 A released"
    inner = ["A/main acquire fence=7 3..4", "A/main release 5..6"]
    assert shown(text) == [ACQUIRED, *inner, "A/main release 7..8"]
    plain = operations(written(text), reentrant=False)
    assert [(op.kind, op.call, op.back) for op in plain] == [("acquire", 1, 2), ("lose", 7, 8)]


def test_what_happens_to_inner_levels_near_a_loss_is_left_out() -> None:
    """The release came when nothing was held any more, perhaps; the loss ends both levels."""
    text = GRANTED + NESTED + "5 A release op=2 \n 6 A released op=2 \n 7 A lost reason=x"
    assert shown(text) == [ACQUIRED, "A/main lose 3..7"]


# --- the search -------------------------------------------------------------------------------------------------------


def agreed(text: str) -> set[bool]:
    """What all models that mind the owner say of a written history; they should agree."""
    plain, deep = operations(written(text), reentrant=False), operations(written(text))
    return {linearizable(plain, model).ok for model in AWARE} | {linearizable(deep, model).ok for model in REENTRANT}


def test_two_holders_are_no_lock() -> None:
    assert agreed(GRANTED + "2.5 B invoke timeout=5 \n 3 B granted token=8 until=9 \n 4 A valid until=9") == {False}
    assert agreed(GRANTED + "2.5 B invoke timeout=5 \n 3 B granted token=8 until=9 \n 4 A release \n 5 A released") == {
        False
    }


def test_the_plain_mutex_sees_two_grants_without_a_release() -> None:
    two = [Op("acquire", "A", 1.0, 2.0), Op("acquire", "B", 3.0, 4.0), Op("release", "A", 5.0, 6.0)]
    assert not linearizable(two, Mutex()).ok
    assert linearizable([*two[:1], Op("release", "A", 1.0, 3.5), two[1]], Mutex()).ok


def test_a_holder_that_lost_the_lock_unseen_is_no_second_holder() -> None:
    """It was killed, or paused until its lease was over, or the node was deleted."""
    taken = "2.5 B invoke timeout=20 \n {} B granted token=8 until=30 \n"
    assert agreed(GRANTED + taken.format(3)) == {True}
    assert agreed(GRANTED + taken.format(9.5) + "12 A release \n 13 A released") == {True}
    assert agreed(GRANTED + taken.format(8.5) + "12 A release \n 13 A released") == {False}, "the lease was not over"
    assert agreed(GRANTED + "2.9 nemesis delete key=k token=7 \n" + taken.format(3) + "3.5 A valid until=9") == {True}


def test_a_grant_that_was_written_down_late_has_its_place_before_the_next() -> None:
    late = """
        1.0 A invoke timeout=5
        1.5 B invoke timeout=9
        5.0 B granted token=8 until=9
        6.0 A granted token=7 until=3
    """
    assert agreed(late + "6.1 A lost reason=over") == {True}
    assert agreed(late + "6.1 B valid until=9 \n 6.1 A valid until=7") == {False}


def test_an_interrupted_acquire_may_have_been_and_hinders_nobody() -> None:
    text = "1 A invoke timeout=5 \n 2 A refused error=Struck definite=false \n 3 B invoke timeout=5 \n"
    assert agreed(text + "4 B granted token=8 until=9 \n 5 B release \n 6 B released") == {True}


def test_an_interrupted_acquire_that_did_take_the_lock_explains_a_release() -> None:
    """The search puts in place what may have been where it is needed."""
    perhaps = Op("acquire", "A", 1.0, certain=False, hold=-1)
    release = Op("release", "A", 3.0, 4.0, hold=7)
    assert not linearizable([release], OwnerAwareMutex()).ok
    assert linearizable([perhaps, release], OwnerAwareMutex()).ok
    assert not linearizable([Op("acquire", "A", 5.0, certain=False), release], OwnerAwareMutex()).ok


def test_keys_are_locks_of_their_own() -> None:
    other = "1 B invoke key=other timeout=5 \n 3 B granted key=other token=5 until=9"
    assert agreed(GRANTED + "4 A valid until=9 \n" + other) == {True}


def test_falling_fences_are_found_where_the_plain_models_see_nothing() -> None:
    text = GRANTED + "3 A release \n 4 A released \n 5 B invoke timeout=5 \n 6 B granted token=6 until=9"
    assert linearizable(operations(written(text)), OwnerAwareMutex()).ok
    assert not linearizable(operations(written(text)), FencedMutex()).ok


def test_the_shortest_beginning_that_fails_is_shown() -> None:
    """It ends with the first operation that returned and has no place; what was called later does not matter."""
    ops = operations(
        written(
            GRANTED
            + """
            3 A release
            4 A released
            5 B invoke timeout=5
            6 B granted token=8 until=20
            6.2 B valid until=20
            7 C invoke timeout=5
            8 C granted token=9 until=20
            9 B valid until=20
            9 D invoke timeout=5
            """
        )
    )
    result = linearizable(ops, OwnerAwareMutex())
    assert not result.ok
    assert str(result.stuck) == "C/main acquire fence=9"
    assert [op.owner for op in result.prefix] == ["A/main", "A/main", "B/main", "C/main"]
    text = result.short()
    assert "the lock was OwnerAwareMutex(owner='B/main')" in text
    assert ">     +6.000     +7.000  C/main acquire fence=9" in text
    assert linearizable(result.prefix, OwnerAwareMutex()).ok is False
    assert linearizable([op for op in result.prefix if op is not result.stuck], OwnerAwareMutex()).ok


OPS = st.lists(
    st.builds(
        lambda kind, owner, call, length, certain, fence: Op(
            kind, owner, call, call + length if certain else math.inf, certain, fence
        ),
        st.sampled_from(["acquire", "release", "lose", "acquire", "release"]),
        st.sampled_from("AB"),
        st.integers(0, 6),
        st.integers(0, 4),
        st.sampled_from([True, True, True, False]),
        st.integers(0, 3),
    ),
    max_size=6,
)


@given(OPS, st.sampled_from([*PLAIN, *REENTRANT]))
@settings(max_examples=400)
def test_the_search_finds_what_trying_all_orders_finds(ops: list[Op], model: Model) -> None:
    numbered = [Op(op.kind, op.owner, op.call, op.back, op.certain, op.fence, hold=n) for n, op in enumerate(ops)]
    assert linearizable(numbered, model).ok == brute_force(numbered, model)


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=60)
def test_a_lock_that_keeps_its_promises_is_linearizable(seed: int, owners: int) -> None:
    events = Simulation(seed, holds=25, owners=owners).events
    plain, deep = operations(events, reentrant=False), operations(events)
    for model in PLAIN:
        assert (result := linearizable(plain, model)).ok, result.short()
    for model in REENTRANT:
        assert (result := linearizable(deep, model)).ok, result.short()


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_hold_in_the_middle_of_another_is_always_found(seed: int, chance: random.Random) -> None:
    events = Simulation(seed, holds=15, fates=["release"]).events
    ops = operations(events)
    held = chance.choice(sorted((op for op in ops if op.kind == "acquire" and op.certain), key=lambda op: op.back))
    release = next(op for op in ops if op.hold == held.hold and op.kind == "release")
    start, end = sorted(chance.uniform(held.back, release.call) for _ in range(2))
    intruder = Op("acquire", "X", start, end, key=held.key, hold=999)
    leaving = Op("release", "X", end, end, key=held.key, hold=999)
    assume(held.back < start < end < release.call)
    intruded = [*ops, intruder, leaving]
    assert not linearizable(intruded, SharedLockModel()).ok
    # A model that knows holds by their owner takes an earlier call of the same owner, that nobody knows the end of, for
    # a loss and a second grant.
    if not any(op.owner == held.owner and not op.certain and op.call < release.call for op in ops):
        for model in AWARE:
            assert not linearizable(intruded, model).ok


@pytest.mark.parametrize("model", [Mutex(), ReentrantFencedMutex()])
def test_thousands_of_operations_are_searched_in_reasonable_time(model: Model) -> None:
    """As many as a soak has on one key, with a crowd that waits and hundreds that may have been."""
    ops = operations(Simulation(1, holds=1200, owners=12).events, reentrant=model != Mutex())
    assert len(ops) > 2500
    assert linearizable(ops, model).ok
