"""Any process can read the present leader, and the candidates behind it."""

import contextlib
import os
import socket
import threading
from datetime import UTC, datetime

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from support.faults import BackgroundCall

from django_zklock import zk_leader


def test_the_leader_is_shown_while_it_leads(zoo):
    outsider = zk_leader("lead")
    assert outsider.current_leader() is None
    assert outsider.candidates() == ()
    began = datetime.now(UTC)
    with zk_leader("lead", what="the work") as hold:
        leading = outsider.current_leader()
        assert (leading.what, leading.host, leading.pid) == ("the work", socket.gethostname(), os.getpid())
        assert (leading.token, leading.path) == (hold.token, hold.path)
        assert (leading.client, leading.operator) == ("zklock", None)
        assert abs((leading.came - began).total_seconds()) < 60
        assert str(leading) == f"'the work' on {socket.gethostname()}, process {os.getpid()}"
    assert outsider.current_leader() is None


def test_the_candidates_are_the_leader_and_those_who_wait(zoo):
    outsider = zk_leader("lead")
    with zk_leader("lead"), zoo.hold_elsewhere("lead") as foreign:
        first, second = outsider.candidates()
        assert first == outsider.current_leader()
        assert (second.path, second.pid, second.client, second.what) == (foreign, 0, "Curator", "foreign")
        assert str(second) == f"'foreign', a client of Curator, {foreign.rpartition('/')[2]}"


async def test_the_async_methods_show_the_same_candidates(zoo):
    outsider = zk_leader("lead")
    assert await outsider.acurrent_leader() is None
    async with zk_leader("lead") as hold:
        leader = await outsider.acurrent_leader()
        assert leader is not None
        assert leader.token == hold.token
        assert await outsider.acandidates() == (leader,)
        for blocking in (outsider.current_leader, outsider.candidates):
            name = blocking.__name__
            with pytest.raises(SynchronousOnlyOperation, match=rf"^{name}\(\) .* await leader\.a{name}\(\)"):
                blocking()


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
        outsider = zk_leader("lead")
        zoo.wait_contenders("lead", 2)
    try:
        assert all(outsider.current_leader() for _ in range(100))
    finally:
        ended.set()
        leaders.result()
