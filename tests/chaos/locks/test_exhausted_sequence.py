"""A key whose sequence numbers run out is closed before it could be granted twice."""

import pytest
from support.chaos import wrap
from support.zoo import eventually

from django_zklock.core.queue.order import LAST_SEQUENCE

CHROOT = "/worn"

WORN = {
    "negative": -5,  # three contenders of nine digits
    "far-below": -1_000_000_001,  # of ten digits, which are ordered backwards as strings
    "below": wrap.SMALLEST,
    "across": -1,  # the next one is good again, once the first has left
    "stuck": wrap.LARGEST,  # the server gives this number to all
    "last": wrap.LARGEST - 1,
}
CONVICTING = ("negative", "across", "stuck")  # with these numbers kazoo grants its lock to several
FRESH = {"still-good": LAST_SEQUENCE - 2}


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    with wrap.serving(tmp_path_factory.mktemp("worn"), f"{CHROOT}/zklock", WORN | FRESH) as ensemble:
        yield ensemble


@pytest.fixture
def arena(ensemble):
    with wrap.kept_arena(ensemble, CHROOT) as zoo:
        yield zoo


@pytest.fixture
def keys():
    return (*WORN, *FRESH)


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[pytest.mark.convicts_kazoo] * (key in CONVICTING)) for key in WORN]
)
def test_a_key_with_exhausted_sequence_numbers_grants_nothing(pool, key):
    workers = pool.start("A", "B", "C")
    calls = [worker.acquire(key, timeout=3) for worker in workers]
    answers = [call.result(20) for call in calls]
    holders = [worker for worker, answer in zip(workers, answers, strict=True) if answer["granted"]]
    checks = [worker.check(key) for worker in holders]
    assert sum(checks) <= 1, f"{sum(checks)} of 3 processes hold the lock"
    if pool.lock == "zklock":
        unreadable = [answer.get("error") for answer in answers].count("UnreadableQueue")
        assert unreadable == 3 or (unreadable and key == "across"), f"told by {unreadable} of 3: {answers}"
    for worker in holders:
        worker.release(key).result()
    eventually(lambda: not pool.zoo.children(key), 2, "a contender is left behind")
    pool.assert_kept()


def test_a_key_works_up_to_its_last_number_and_can_be_reset(pool):
    a, b = pool.start("A", "B")
    [key] = FRESH
    tokens = [a.use(key) for _ in range(3)]
    assert b.acquire(key).result()["error"] == "UnreadableQueue"
    pool.zoo.client.delete(f"{pool.zoo.base}/{key}")
    tokens.append(b.must_acquire(key)["token"])
    assert [int(name[-10:]) for name in pool.zoo.children(key)] == [0]
    assert tokens == sorted(tokens)
    b.release(key).result()  # or it would be there in the next test, until the session of the killed process is over
    pool.assert_kept()
