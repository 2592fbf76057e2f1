"""Any process can read the present leader, and the candidates behind it."""

import contextlib
import os
import socket
import threading
from datetime import UTC, datetime

from support.faults import BackgroundCall
from support.zoo import eventually

from django_zklock import zk_leader
from django_zklock.inspection import look_at


def test_the_leader_is_shown_while_it_leads(zoo):
    assert look_at("lead") is None
    began = datetime.now(UTC)
    with zk_leader("lead", what="the work") as hold:
        (leading,) = look_at("lead").holders
        assert (leading.what, leading.host, leading.pid) == ("the work", socket.gethostname(), os.getpid())
        assert (leading.token, leading.path) == (hold.token, hold.path)
        assert (leading.client, leading.operator) == ("zklock", None)
        assert abs((leading.came - began).total_seconds()) < 60
        assert str(leading) == f"'the work' on {socket.gethostname()}, process {os.getpid()}"
    eventually(lambda: look_at("lead") is None)


def test_the_candidates_are_the_leader_and_those_who_wait(zoo):
    with zk_leader("lead"), zoo.hold_elsewhere("lead") as foreign:
        (second,) = look_at("lead").waiters
        assert (second.path, second.pid, second.client, second.what) == (foreign, 0, "Curator", "foreign")
        assert str(second) == f"'foreign', a client of Curator, {foreign.rpartition('/')[2]}"


def test_a_queue_that_leaders_leave_one_by_one_is_never_shown_as_empty(zoo):
    """A leader may leave after its znode was listed and before it is read."""
    ended = threading.Event()

    def follow_each_other():
        with contextlib.ExitStack() as last:
            last.enter_context(zoo.hold_elsewhere("lead"))
            while not ended.is_set():
                following = contextlib.ExitStack()
                following.enter_context(zoo.hold_elsewhere("lead"))
                last.close()
                last.push(following)

    with zoo.hold_elsewhere("lead"):
        leaders = BackgroundCall(follow_each_other)
        zoo.wait_contenders("lead", 2)
    try:
        assert all(look_at("lead") for _ in range(100))
    finally:
        ended.set()
        leaders.result()
