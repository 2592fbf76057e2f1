"""The order of a queue, the verdicts over it, and the holders and waits that an onlooker sees."""

import itertools
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.core.queue.deadlock import WaitsFor, blockers
from django_zklock.core.queue.markers import LimitRecord
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Kind, Mark, Payload, new_guid, prefix
from django_zklock.core.queue.order import (
    LAST_SEQUENCE,
    Absent,
    Granted,
    Queue,
    WaitFor,
    ordered,
    verdict,
    waiters_ahead,
)
from django_zklock.core.queue.release_request import release_request, requested, with_request
from django_zklock.core.queue.untrusted import LARGEST
from django_zklock.exceptions import UnreadableQueue
from django_zklock.locks import holders

PLAIN = st.just(Kind.LOCK)
KINDS = st.sampled_from(Kind)
LIMITS = st.integers(1, 5)


def queue_of(kinds, *, start=0, mark=Mark.OWN):
    names = (f"{prefix(new_guid(mark), kind)}{start + index:010d}" for index, kind in enumerate(kinds))
    return ordered(names)


def queues(kinds):
    return st.builds(
        lambda kinds, start: queue_of(kinds, start=start),
        st.lists(kinds, min_size=1, max_size=12),
        st.sampled_from([0, 7, LAST_SEQUENCE - 40]),
    )


def told(queue, child, limit):
    return verdict(queue, child.name, child.kind, limit)


def conflict(first, other):
    return first.kind is not other.kind or first.kind not in (Kind.READ, Kind.PERMIT)


@given(queues(PLAIN))
def test_each_other_plain_contender_waits_for_the_one_just_ahead(queue):
    """So a release wakes one contender, not all of them."""
    for ahead, child in itertools.pairwise(queue):
        assert told(queue, child, 1) == WaitFor((ahead.name,), is_last=ahead is queue[0])


@given(queues(PLAIN), LIMITS)
def test_a_semaphore_with_one_permit_is_a_lock(queue, limit):
    leases = queue_of([Kind.PERMIT] * len(queue))
    for index, child in enumerate(leases):
        said = told(leases, child, 1)
        if isinstance(said, WaitFor):
            assert said == WaitFor((leases[index - 1].name,), is_last=index == 1, depends_on_limit=True)
        else:
            assert (said, index) == (Granted(), 0)


@given(queues(KINDS), LIMITS)
def test_holders_are_the_first_in_the_queue_that_can_share(queue, limit):
    granted = [told(queue, child, limit) == Granted() for child in queue]
    many = sum(granted)
    assert granted == [True] * many + [False] * (len(queue) - many)
    assert not any(conflict(*pair) for pair in itertools.combinations(queue[:many], 2))
    assert 0 < many <= (limit if queue[0].kind is Kind.PERMIT else len(queue))
    if many < len(queue):
        assert conflict(queue[many - 1], queue[many]) or (queue[0].kind is Kind.PERMIT and many == limit)


@given(queues(KINDS), LIMITS, st.data())
def test_a_waiter_is_woken_before_it_could_be_granted(queue, limit, data):
    for child in queue:
        verdict = told(queue, child, limit)
        if isinstance(verdict, WaitFor):
            ahead = [child_ahead.name for child_ahead in queue[: queue.index_of(child.name)]]
            assert set(verdict.children) <= set(ahead)
            others = [name for name in ahead if name not in verdict.children]
            gone = data.draw(st.sets(st.sampled_from(others))) if others else set()
            assert told(queue.without(gone), child, limit) != Granted()


@given(queues(KINDS), LIMITS, st.lists(KINDS, max_size=4))
def test_the_end_of_the_last_predecessor_is_a_grant(queue, limit, newcomers):
    later = queue_of(newcomers, start=queue[-1].sequence + 1)
    for child in queue:
        verdict = told(queue, child, limit)
        if isinstance(verdict, WaitFor) and verdict.is_last:
            for name in verdict.children:
                now = Queue((*queue.without([name]), *later))
                assert told(now, child, limit) == Granted()


@given(st.lists(KINDS, min_size=2, max_size=6), LIMITS)
def test_the_end_of_a_minimum_hold_grants_nothing_by_itself(kinds, limit):
    """Another node may have taken its place, so the queue has to be looked at."""
    queue = queue_of(kinds, mark=Mark.REPLACEABLE)
    for child in queue:
        verdict = told(queue, child, limit)
        assert not isinstance(verdict, WaitFor) or not verdict.is_last


@given(queues(KINDS), LIMITS, st.data())
def test_a_contender_outside_the_queue_has_no_grant(queue, limit, data):
    gone = data.draw(st.sampled_from(queue))
    assert told(queue.without([gone.name]), gone, limit) == Absent()
    assert told(Queue(), gone, limit) == Absent()


def test_a_reader_waits_for_the_last_writer_ahead_and_for_none_behind():
    """A later contender blocks no earlier one (kazoo issue 649)."""
    queue = queue_of([Kind.WRITE, Kind.READ, Kind.WRITE, Kind.READ, Kind.READ, Kind.WRITE])
    assert told(queue, queue[1], 1) == WaitFor((queue[0].name,), is_last=True)
    assert told(queue, queue[4], 1) == WaitFor((queue[2].name,), is_last=False)
    assert told(queue.without([queue[0].name]), queue[1], 1) == Granted()


@given(queues(st.just(Kind.PERMIT)), LIMITS, LIMITS)
def test_a_limit_that_is_set_wins_over_the_limit_in_code(queue, own, limit):
    limited = Queue(queue.children, limit)
    assert waiters_ahead(limited, queue[-1].name, own) == max(0, len(queue) - 1 - limit)
    assert sum(told(limited, child, own) == Granted() for child in limited) == min(limit, len(queue))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=30))
def test_holders_are_within_the_limit_that_the_last_of_them_read(events):
    limit, children, saw = 1, [], dict[str, int]()
    for number, (what, value) in enumerate(events):
        if what < 3:
            children.append(queue_of([Kind.PERMIT], start=number)[0])
        elif what < 5:
            limit = value
        elif what < 6 and children:
            saw.pop(children.pop(value % len(children)).name, None)
        elif children:
            child = children[value * what % len(children)]
            if told(Queue(tuple(children), limit), child, 1) == Granted():
                saw.setdefault(child.name, limit)
        holders = [child.name for child in children if child.name in saw]
        assert not holders or len(holders) <= saw[holders[-1]]


# --- order ------------------------------------------------------------------------------------------------------------


PREFIXES = st.builds(lambda kind: prefix(new_guid(Mark.OWN), kind), st.sampled_from(Kind)) | st.builds(
    lambda guid, word: f"{guid.hex}__{word}__", st.uuids(), st.sampled_from(["lock", "rlock"])
)
QUEUES = st.dictionaries(st.integers(0, LAST_SEQUENCE), PREFIXES, max_size=12)


def name(sequence):
    return prefix(str(uuid.uuid4())) + "%010d" % sequence  # noqa: UP031 - as the server writes it


@given(QUEUES, st.randoms(use_true_random=False))
def test_contenders_are_in_the_order_of_their_numbers(queue, random):
    names = [f"{start}{sequence:010d}" for sequence, start in queue.items()]
    random.shuffle(names)
    assert [child.sequence for child in ordered(names)] == sorted(queue)


def test_directories_of_nested_keys_are_passed_over():
    mine = name(3)
    assert [child.name for child in ordered(["nested", mine, "123456789%30"])] == [mine]
    assert not ordered(["nested"])
    assert not ordered([])


def test_a_limit_for_all_processes_is_read_with_the_queue():
    mine = name(3)
    assert ordered([mine, "!limit:5:"]).limit == 5
    two = ordered(["!limit:5:", mine, "!limit:2:", "!limit:0:"])
    assert (two.limit, two.limit_marker) == (2, "!limit:2:")
    assert ordered([mine, "!limit:0:", "!limit:five:", "!other"]).limit is None


def test_the_marker_of_a_cleared_limit_is_stale_once_one_contender_is_left():
    assert ordered([name(3), "!limit:0:"]).stale_marker == "!limit:0:"
    assert ordered([name(3), name(4), "!limit:0:"]).stale_marker == ""
    assert ordered([name(3), "!limit:2:"]).stale_marker == ""
    assert ordered([name(3)]).stale_marker == ""


CURATORS = {
    kind: prefix(str(uuid.UUID(int=number, version=4)), kind)
    for number, kind in enumerate([Kind.LOCK, Kind.READ, Kind.WRITE])
}


@pytest.mark.parametrize("ours", Kind)
@pytest.mark.parametrize("theirs", CURATORS)
def test_a_contender_of_curators_that_would_pass_ours_closes_the_lock(ours, theirs):
    """Each recipe of Curator's sees its own nodes only; ours see all, so ours may be mixed."""
    sides = {Kind.READ, Kind.WRITE}
    names = [f"{prefix(new_guid(Mark.OWN), ours)}0000000001", f"{CURATORS[theirs]}0000000002"]
    if ours is theirs or {ours, theirs} == sides:
        assert len(ordered(names)) == 2
    else:
        with pytest.raises(UnreadableQueue, match="Curator does not see it"):
            ordered(names)
    assert len(ordered([names[0], f"{prefix(new_guid(Mark.OWN), theirs)}0000000002"])) == 2


@pytest.mark.parametrize("theirs", CURATORS)
@pytest.mark.parametrize("kazoos", ["0" * 32 + "__lock__", "0c1a911f60108291a573b6c7724b3a14__rlock__"])
def test_a_contender_of_curator_next_to_kazoos_grammar_closes_the_lock(kazoos, theirs):
    """Be it kazoo's or ours in its grammar, no recipe of Curator's sees it; our own grammar goes with kazoo's."""
    with pytest.raises(UnreadableQueue, match="in kazoo's grammar"):
        ordered([f"{kazoos}0000000001", f"{CURATORS[theirs]}0000000002"])
    assert len(ordered([f"{kazoos}0000000001", f"{prefix(new_guid(Mark.OWN), theirs)}0000000002"])) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([name(1), name(-1)], "delete the directory"),
        ([name(1), name(-5)], "delete the directory"),
        ([name(1), name(-(2**31))], "delete the directory"),
        ([name(1), name(LAST_SEQUENCE + 1)], "delete the directory"),
        ([name(1), name(2**31 - 1)], "delete the directory"),
        ([name(4), name(2), name(4)], "same sequence number"),
        ([name(1), "lock-0000000009"], "lock-0000000009"),
    ],
)
def test_a_number_that_orders_nothing_closes_the_lock(names, said):
    """ZooKeeper's numbers say nothing past the end, two contenders would be first, or one would be passed over."""
    assert ordered([name(LAST_SEQUENCE)])[0].sequence == LAST_SEQUENCE
    with pytest.raises(UnreadableQueue, match=said):
        ordered(names)


# --- what an onlooker sees --------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from([*Kind, Kind.PERMIT, Kind.PERMIT]), st.integers(1, 4))),
    st.none() | st.integers(1, 4),
)
def test_the_shown_holders_and_waits_are_those_of_the_rule(came, limit):
    children = replace(queue_of([kind for kind, _ in came]), limit=limit)
    own = {child.name: limit for child, (_, limit) in zip(children, came, strict=True)}
    verdicts = [told(children, child, own[child.name]) for child in children]
    granted = [index for index, verdict in enumerate(verdicts) if verdict == Granted()]
    limits = {} if limit else own  # a limit that was set is the one of all
    assert holders.holder_indexes(children, limits) == tuple(granted)
    assert holders.end_of_holders(children, limits) == max((index + 1 for index in granted), default=0)
    for index, said in enumerate(verdicts):
        awaited = said.children[-1] if isinstance(said, WaitFor) else ""
        assert holders.waits_for(children, index, granted) == awaited


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
def test_contenders_from_before_a_change_hold_by_the_highest_limit(many, own, limit, before, older):
    children = replace(queue_of([Kind.PERMIT] * many + [Kind.LOCK] * 2), limit=limit)
    data = Payload(guid="g", host="h", pid=1, thread="", what="", since="", template="", limit=own).encode()
    change = LimitRecord(by="", reason="", before=before).encode()
    limits = {
        child.name: holders.permit_limit(children, data, change if index < older else None)
        for index, child in enumerate(children)
    }
    expected = [index for index in range(many) if index < (max(own, limit, before) if index < older else limit)]
    assert holders.holder_indexes(children, limits) == tuple(expected)
    assert min(limits.values()) >= limit


def test_a_queue_with_readers_or_writers_is_recognized():
    assert holders.kind_of_queue(queue_of([Kind.LOCK, Kind.LOCK])) == "lock"
    assert holders.kind_of_queue(queue_of([Kind.LOCK, Kind.READ])) == "read-write"
    assert holders.kind_of_queue(queue_of([Kind.LOCK, Kind.PERMIT])) == "semaphore"
    assert holders.kind_of_queue(replace(queue_of([]), limit=2)) == "semaphore"


# --- whom a waiter waits for ------------------------------------------------------------------------------------------


LETTERS = {"L": Kind.LOCK, "R": Kind.READ, "W": Kind.WRITE, "P": Kind.PERMIT}


def letters(kinds):
    """Return the names and guids of a queue."""
    guids = [new_guid(Mark.OWN) for _ in kinds]
    names = [
        f"{prefix(guid, LETTERS[kind])}{index:010d}"
        for index, (kind, guid) in enumerate(zip(kinds, guids, strict=True))
    ]
    return names, guids


@pytest.mark.parametrize(
    ("kinds", "waiter", "holders", "between"),
    [
        ("LL", 1, [0], None),
        ("LLL", 2, [0], None),
        ("WR", 1, [0], None),
        ("RRW", 2, [0, 1], None),
        ("RRWR", 3, [0, 1], 2),
        ("WRWR", 3, [0], None),
        ("RL", 1, [0], None),
        ("LP", 1, [0], None),
        ("L", 0, None, None),
        ("RR", 1, None, None),
        ("PP", 1, None, None),
        ("PL", 1, None, None),
    ],
)
def test_a_waiter_waits_for_all_holders(kinds, waiter, holders, between):
    names, guids = letters(kinds)
    blocked = blockers(ordered(names), guids[waiter])
    if holders is None:
        assert blocked is None
        return
    assert blocked is not None
    waiters = [waiter] if between is None else [waiter, between]
    assert [[child.guid for child in children] for children in blocked] == [
        [guids[index] for index in indexes] for indexes in (holders, waiters)
    ]


def test_a_contender_that_is_not_in_the_queue_waits_for_none():
    for kinds in ("", "LL", "RW"):
        assert blockers(ordered(letters(kinds)[0]), new_guid(Mark.OWN)) is None


@given(st.text("LRWP", min_size=1, max_size=6), st.data())
def test_a_waiter_is_not_granted_the_lock_while_a_holder_is_there(kinds, data):
    names, guids = letters(kinds)
    waiter = data.draw(st.integers(0, len(kinds) - 1))
    queue = ordered(names)
    blocked = blockers(queue, guids[waiter])
    if blocked is None:
        return
    stays = {child.name for child in (*blocked.waiters, data.draw(st.sampled_from(blocked.holders)))}
    remaining = queue.without(data.draw(st.sets(st.sampled_from(names))) - stays)
    limit = data.draw(st.integers(1, 3))
    assert not isinstance(told(remaining, blocked.waiters[0], limit), Granted)


def test_a_wait_in_a_payload_is_read_as_it_was_written():
    payload = Payload(guid="g", host="", pid=1, thread="", what="", since="", template="")
    for more in ((), (1_793_000_000_000,), (0, 1)):
        wait = WaitsFor("stock/7", new_guid(Mark.OWN), 2**40, *more)
        assert WaitsFor.decode(replace(payload, waits_for=wait.fields()).encode()) == wait
    assert WaitsFor.decode(b"10.0.0.1") is None


def test_long_texts_cut_neither_a_wait_nor_the_identity_of_a_task():
    """A part of a key would be the key of another lock. By the identity, a task knows its own run before."""
    identity = {"id": "\U0001f512" * 255}
    about = {"task": "é" * 1000, **identity, **{f"item {number}": "é" * 1000 for number in range(12)}}
    texts = dict.fromkeys(("host", "thread", "what", "since", "template"), "é" * 1000)
    request = release_request(by="é" * 99, reason="é" * 999, at="2026-11-30T00:30:28.123+00:00")
    wait = WaitsFor("\U0001f512" * 1000, new_guid(Mark.OWN), LARGEST, LARGEST, 1)
    payload = Payload(guid="g", pid=1, **texts, about=about, waits_for=wait.fields())
    data = with_request(payload.encode(), request)
    read = Payload.decode(data)
    assert WaitsFor.of(read) == wait
    assert {name: read.about[name] for name in identity} == identity
    assert requested(data) == request
    assert len(data) <= MAX_PAYLOAD
