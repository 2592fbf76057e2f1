"""A key whose counter is used up is named between its callers, and no other is."""

import json

import pytest
from support.chaos import wrap
from support.locking import ending

from django_zklock import inspection
from django_zklock.core.queue.order import LAST_SEQUENCE
from django_zklock.management.exit_codes import ExitCode

CHROOT = "/worn"

WORN = {"called": wrap.LARGEST - 1, "stuck": wrap.LARGEST, "last": LAST_SEQUENCE + 1, "negative": -5}
GOOD = {"many": wrap.LARGEST - 1, "many/1": 7, "half": LAST_SEQUENCE // 2, "long": LAST_SEQUENCE}
"""A directory above other keys is no lock by itself."""


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    with wrap.serving(tmp_path_factory.mktemp("worn"), f"{CHROOT}/zklock", WORN | GOOD) as ensemble:
        yield ensemble


@pytest.fixture
def arena(ensemble):
    with wrap.kept_arena(ensemble, CHROOT) as zoo:
        yield zoo


def test_a_key_that_refuses_its_callers_is_named_while_nobody_calls(arena):
    with arena.configured():
        status, printed, _ = ending("status", "--json")
    named = {key: incident["cause"] for incident in json.loads(printed)["incidents"] for key in incident["keys"]}
    assert (status, named) == (ExitCode.INCIDENT, dict.fromkeys(WORN, "counter"))


def test_it_is_read_before_locks_that_are_held(pool):
    (caller,) = pool.start("A")
    caller.must_acquire("half")
    with pool.zoo.configured():
        few = inspection.snapshot(max_age=0, max_locks=len(WORN))
    caller.release("half").result()
    assert {lock.key for lock in few.locks} == WORN.keys()
    assert few.total == len(WORN) + 1
