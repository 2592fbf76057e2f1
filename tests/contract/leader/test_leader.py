"""One candidate leads at a time. A leader that loses the leadership is told, is aborted, and queues again."""

import asyncio
import contextlib
import math
import random
import threading
import time
from functools import partial

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from support.faults import BackgroundCall, acquire_once, expire, proxied, within
from support.signalled import signalled
from support.work import assert_refused, in_each_thread, lose
from support.zoo import eventually

from django_zklock import current_hold, zk_leader, zk_lock
from django_zklock.conf.arguments import LeaderArguments
from django_zklock.exceptions import (
    LockBusy,
    LockLost,
    LockLostInterrupt,
    LockNotAcquired,
    StaleToken,
    ZooKeeperUnavailable,
)
from django_zklock.locks import election
from django_zklock.locks.hold import held_of

TIMEOUT = 4.0  # seconds, of a session


class Terms:
    """A function for leaders: it notes each hold, and runs until `end` is set."""

    def __init__(self):
        self.holds = []
        self.ended = []
        self.end = threading.Event()

    def __call__(self, hold):
        self.holds.append(hold)
        try:
            while not self.end.wait(0.01):
                pass
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        return len(self.holds)

    async def arun(self, hold):
        self.holds.append(hold)
        try:
            while not self.end.is_set():
                await asyncio.sleep(0.01)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        return len(self.holds)

    def wait(self, count):
        eventually(lambda: len(self.holds) >= count, 15, f"no {count} leads")
        return self.holds[-1]


def test_candidates_lead_one_at_a_time_in_the_order_of_the_queue(zoo):
    inside = []
    order = []

    def work(number, hold):
        inside.append(number)
        assert inside == [number]
        order.append(hold.token)
        hold.check()
        inside.remove(number)
        return number

    with zk_leader("lead") as hold:
        assert current_hold() == hold
        others = []
        for number in range(4):
            others.append(BackgroundCall(partial(zk_leader("lead").run, partial(work, number))))
            zoo.wait_contenders("lead", number + 2)
        before = hold.token
    with within(2):
        assert [other.result() for other in others] == [0, 1, 2, 3]
    assert order == sorted(order)
    assert order[0] > before


def test_run_returns_the_result_and_releases_the_leadership(zoo):
    every = {"fields": {"shard": 7}, "what": "the work", "about": {}, "abort_on": "lost", "grace": 0}
    every |= {"compat": None, "max_hold": None, "warn_after": None}
    assert every.keys() == LeaderArguments.__annotations__.keys()
    leader = zk_leader("lead/{shard}", **every)
    assert leader.key == "lead/7"
    assert not leader.is_leader

    def work(hold):
        assert leader.is_leader
        (payload,) = zoo.payloads("lead/7")
        assert payload.what == "the work"
        return "done"

    assert leader.run(work) == "done"
    assert not leader.is_leader
    assert zoo.children("lead/7") == []
    assert leader.run(lambda hold: 5) == 5


def test_an_error_of_the_function_ends_run(zoo):
    errors = [ValueError("no"), LockLost(lock="other"), ZooKeeperUnavailable(), LockBusy(), StaleToken(), SystemExit(3)]
    errors.append(LockNotAcquired())  # of another lock, after `stop`
    leader = zk_leader("lead")
    for error in errors:

        def fail(hold, error=error):
            if error is errors[-1]:
                leader.stop(grace=9)
            raise error

        async def afail(hold, error=error):
            raise error

        with pytest.raises(type(error)) as raised:
            leader.run(fail)
        assert raised.value is error
        if isinstance(error, Exception) and not leader.stopping:
            with pytest.raises(type(error)):
                asyncio.run(leader.arun(afail))
        assert zoo.children("lead") == []


@in_each_thread
def test_a_leader_that_loses_the_leadership_is_aborted_and_leads_again(zoo, run):
    leader = zk_leader("lead")
    terms = Terms()

    def strike():
        terms.wait(1)
        expire(zoo)
        zoo.client.delete(terms.wait(2).path)
        terms.wait(3)
        terms.end.set()

    striking = BackgroundCall(strike)
    assert run(lambda: leader.run(terms)) == 3
    striking.result()
    tokens = [hold.token for hold in terms.holds]
    assert tokens == sorted(set(tokens))
    assert terms.ended == ["LockLostInterrupt"] * 2


def test_a_leader_that_loses_the_leadership_queues_at_the_end(zoo):
    first, second = zk_leader("lead"), zk_leader("lead")
    first_terms, second_terms = Terms(), Terms()
    running = BackgroundCall(lambda: first.run(first_terms))
    first_terms.wait(1)
    standing_by = BackgroundCall(lambda: second.run(second_terms))
    zoo.wait_contenders("lead", 2)
    zoo.client.delete(first_terms.wait(1).path)
    second_terms.wait(1)
    zoo.wait_contenders("lead", 2)
    assert not first.is_leader
    assert second.is_leader
    second_terms.end.set()
    assert standing_by.result() == 1
    assert first_terms.wait(2).token > second_terms.holds[0].token
    first_terms.end.set()
    assert running.result() == 2


def test_a_function_that_returns_after_a_loss_does_not_end_run(zoo):
    for abort_on in ("never", "lost"):
        leader = zk_leader("lead", abort_on=abort_on)
        leads = []

        def work(hold, leads=leads):
            leads.append(hold.token)
            if len(leads) == 3:
                return "done"
            lose(hold)
            while not hold.wait_lost(0.05):
                pass
            if len(leads) == 2:
                hold.check()
            return "not to be trusted"

        assert leader.run(work) == "done"
        assert len(leads) == 3


def test_a_leader_that_has_released_its_leadership_is_not_called_again(zoo):
    """It has lost nothing, even if the session ends after that."""
    calls = []
    leader = zk_leader("lead")

    def work(hold):
        calls.append(hold)
        hold.release()
        assert not leader.is_leader
        zk_leader("lead").run(lambda other: other.check())
        expire(zoo)
        eventually(lambda: hold.lost)
        return "done"

    assert leader.run(work) == "done"
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["run", "arun", "with"])
def test_stop_works_at_any_moment_and_leaves_nothing(zoo, way):
    draw = random.Random(8)
    for _ in range(12):
        leader = zk_leader("lead")
        terms = Terms()

        def campaign(leader=leader, terms=terms):
            if way == "run":
                return leader.run(terms)
            if way == "arun":
                return asyncio.run(leader.arun(terms.arun))
            with contextlib.suppress(LockNotAcquired, LockLost), leader as hold:
                terms(hold)
            return None

        with zk_lock("lead") if draw.random() < 0.5 else contextlib.nullcontext():
            running = BackgroundCall(campaign)
            time.sleep(draw.uniform(0.0, 0.02))
            leader.stop()
            assert running.result(30) is None
        leader.stop()
        zoo.wait_contenders("lead", 0)
        assert not leader.is_leader
        assert leader.run(terms) is None


def test_stop_ends_a_pause(zoo, monkeypatch, caplog):
    def distrust(hold):
        raise LockLost(lock="lead")

    monkeypatch.setattr(election, "FIRST_PAUSE", 120.0)
    leader = zk_leader("lead")
    running = BackgroundCall(lambda: leader.run(distrust))
    eventually(lambda: "queues again: it could not be trusted any more" in caplog.text)
    leader.stop()
    assert running.result() is None


def test_stop_of_a_waiting_candidate_is_no_failure(zoo):
    """It sends no signal about an acquisition that failed, which would raise an alarm at each deployment."""
    with signalled("lock_failed") as sent, zk_lock("lead"):
        leader = zk_leader("lead")
        running = BackgroundCall(lambda: leader.run(lambda hold: None))
        zoo.wait_contenders("lead", 2)
        leader.stop()
        assert running.result() is None
        BackgroundCall(lambda: zk_lock("lead").acquire(timeout=0)).result()  # a failure, and the only one
        eventually(lambda: "lock_failed" in sent.names)
    assert sent.names == ["lock_failed"]


def test_stop_lets_the_function_end_by_itself_within_the_grace(zoo):
    leader = zk_leader("lead")
    steps = []

    def patient(hold):
        leader.stop(grace=10)
        assert leader.stopping
        steps.append("finished")
        return "by itself"

    assert leader.run(patient) == "by itself"
    assert zoo.children("lead") == []  # by a client that is connected before the abort, which strikes again soon
    leader = zk_leader("lead")

    def stubborn(hold):
        with contextlib.suppress(LockLostInterrupt):
            leader.stop(grace=0.2)
            threading.Event().wait(10)
        steps.append("interrupted")  # first: the abort may strike again while the rest runs
        assert held_of(hold).grant.lost_reason == election.STOPPED
        assert len(zoo.children("lead")) == 1

    with within(3):
        assert leader.run(stubborn) is None
    assert steps == ["finished", "interrupted"]


def test_a_leader_cannot_lead_twice(zoo):
    """A candidate whose owner leads already would wait for itself. It is refused at once."""
    leader = zk_leader("lead")
    with leader:
        with pytest.raises(LockBusy):
            zk_leader("lead").run(lambda hold: None)
        acquire_once("lead")  # the work may take the lock that it is under
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(leader).token


def test_a_forked_child_is_a_candidate_of_its_own(zoo):
    script = """
import os, sys
from django_zklock import zk_leader
from django_zklock.inspection import look_at
leader = zk_leader("lead")
with leader:
    pid = os.fork()
    if not pid:
        assert not leader.is_leader
        print(leader.run(lambda hold: "child"), flush=True)
        os._exit(0)
    while True:
        if look_at("lead").waiters:
            break
    print("parent", flush=True)
os.waitpid(pid, 0)
"""
    assert zoo.output(script) == ["parent", "child"]


def test_a_function_of_the_wrong_kind_does_not_lead(zoo):
    """`run` would not await a coroutine."""
    with pytest.raises(TypeError, match="arun"):
        zk_leader("lead").run(Terms().arun)
    zoo.assert_empty()


def test_run_retries_during_an_outage(zoo, caplog, monkeypatch):
    with proxied(zoo, TIMEOUT, CONNECT_TIMEOUT=0.1) as proxy:
        proxy.refuse = True
        leader = zk_leader("lead")
        assert_refused(leader, ZooKeeperUnavailable)
        with pytest.raises(ZooKeeperUnavailable):
            leader.locked()
        terms = Terms()
        with signalled("lock_failed") as sent:
            running = BackgroundCall(lambda: leader.run(terms))
            eventually(lambda: len(sent) >= 3)
        assert {failure["error"] for _, failure in sent} == {ZooKeeperUnavailable}
        messages = [record.message for record in caplog.records if record.name == "django_zklock.leader"]
        assert len(messages) == 1
        assert "cannot join the election for 'lead', retrying" in messages[0]
        proxy.heal()
        terms.wait(1)
        proxy.go_away()
        eventually(lambda: caplog.text.count("cannot join the election") == 2, message="a new outage is not logged")
        monkeypatch.setattr(election, "LOG_AGAIN", 0.5)
        eventually(lambda: caplog.text.count("cannot join the election") > 2, message="no second record of an outage")
        assert caplog.text.count("no longer leads") == 1
        proxy.heal()
        terms.end.set()
        assert running.result()


async def test_a_coroutine_leads_and_is_cancelled_at_a_loss(zoo, caplog):
    leader = zk_leader("lead")
    terms = Terms()
    async with zk_leader("lead") as first:
        await asyncio.to_thread(zoo.wait_contenders, "lead", 1)
        threads = set(threading.enumerate())
        running = asyncio.create_task(leader.arun(terms.arun))
        await asyncio.to_thread(zoo.wait_contenders, "lead", 2)
        assert all(thread.name.startswith("asyncio") for thread in set(threading.enumerate()) - threads)
        assert not leader.is_leader
    for count in (1, 2):
        hold = await asyncio.to_thread(terms.wait, count)
        assert hold.token > first.token
        lose(hold)
    await asyncio.to_thread(terms.wait, 3)
    terms.end.set()
    assert await running == 3
    assert terms.ended == ["CancelledError"] * 2
    assert caplog.text.count("no longer leads 'lead', and queues again: the test took it away") == 2
    assert held_of(terms.holds[2]).grant.since - held_of(terms.holds[1]).grant.since > 0.1, "the second pause"


async def test_a_cancelled_candidate_leaves_nothing_behind(zoo):
    terms = Terms()
    leading = asyncio.create_task(zk_leader("lead").arun(terms.arun))
    await asyncio.to_thread(terms.wait, 1)
    waiting = asyncio.create_task(zk_leader("lead").arun(terms.arun))
    await asyncio.to_thread(zoo.wait_contenders, "lead", 2)
    for task, left in ((waiting, 1), (leading, 0)):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(zoo.wait_contenders, "lead", left)


@pytest.mark.parametrize("grace", [-1, math.nan, math.inf, "5", None, True])
def test_a_wrong_grace_is_refused(grace):
    """It would stop the timers of the process, or leave the work without an end."""
    leader = zk_leader("lead")
    with pytest.raises((TypeError, ValueError), match="grace is a number of seconds from 0"):
        leader.stop(grace=grace)
    assert not leader.stopping


async def test_a_leader_blocks_no_event_loop(zoo):
    """Not even one that was stopped, which would return at once."""
    leader = zk_leader("loop")
    leader.stop()
    with pytest.raises(SynchronousOnlyOperation, match=r"^run\(\) .* await leader.arun\(\)"):
        leader.run(lambda hold: None)
