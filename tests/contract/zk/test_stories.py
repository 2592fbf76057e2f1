"""A story asks ZooKeeper step by step. One driver goes on with each reply, and begins again after a reconnect."""

from functools import partial

import pytest
from support.faults import connected, session
from support.proxy import GET_DATA, NO_AUTH, with_error
from support.zoo import eventually

from django_zklock.core.log import flush
from django_zklock.core.protocol.story import StoryRun
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing, RequestRefused
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable


class Reading:
    """A story that reads a znode, and then the one that its data names; its runs are counted."""

    def __init__(self, zoo):
        self.runs = 0
        self.outcomes = []
        self._base = zoo.base
        zoo.client.create(f"{zoo.base}/first", b"second", makepath=True)
        zoo.client.create(f"{zoo.base}/second", b"end")

    def story(self):
        self.runs += 1
        data = b"first"
        for _ in range(2):
            data = yield from self._data_of(data.decode())
        return data

    def _data_of(self, name):
        node = yield partial(session().gateway.read, f"{self._base}/{name}")
        data = node.data
        return data

    def run(self):
        run = StoryRun(session(), self.story, self.outcomes.append)
        run.start()
        return run

    def outcome(self):
        eventually(lambda: self.outcomes)
        assert flush(5)
        (outcome,) = self.outcomes
        return outcome


def test_a_story_gets_one_reply_after_the_other(zoo, proxy):
    reading = Reading(zoo)
    run = reading.run()
    assert (reading.outcome(), reading.runs) == (b"end", 1)
    assert run not in session().observers


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_a_story_begins_again_when_the_connection_breaks(zoo, proxy, strike):
    reading = Reading(zoo)
    connected()
    getattr(proxy, strike)(GET_DATA)
    reading.run()
    assert (reading.outcome(), reading.runs) == (b"end", 2)


def test_an_error_of_zookeeper_is_raised_in_the_story_and_ends_it(zoo, proxy):
    reading = Reading(zoo)
    zoo.client.delete(f"{zoo.base}/second")
    reading.run()
    assert isinstance(reading.outcome(), NodeMissing)
    proxy.alter_reply(GET_DATA, with_error(NO_AUTH))
    reading.outcomes.clear()
    reading.run()
    assert isinstance(reading.outcome(), RequestRefused)


def test_a_story_that_is_stopped_has_no_outcome(zoo, proxy):
    """Also if its reply arrives later."""
    reading = Reading(zoo)
    connected()
    proxy.hang = True
    run = reading.run()
    eventually(lambda: reading.runs)
    run.stop()
    eventually(lambda: run not in session().observers)
    proxy.hang = False
    later = []
    StoryRun(session(), reading.story, later.append).start()
    eventually(lambda: later)  # its replies come after that of the first one
    assert not reading.outcomes


def test_a_story_of_a_session_that_is_closed_is_told_so(zoo, proxy):
    reading = Reading(zoo)
    ended = connected()
    proxy.hang = True
    run = reading.run()
    eventually(lambda: run in ended.observers)
    process.reset(0)
    outcome = reading.outcome()
    assert isinstance(outcome, ZooKeeperUnavailable)
    assert "was closed" in str(outcome)


def test_a_defect_ends_the_story_and_is_logged(zoo, proxy, caplog):
    outcomes = []

    def story():
        yield partial(session().gateway.children, "/")
        raise KeyError("the test says so")

    StoryRun(session(), story, outcomes.append).start()
    (outcome,) = eventually(lambda: outcomes)
    assert isinstance(outcome, ZkLockError)
    assert "the test says so" in str(outcome)
    assert flush(5)
    assert "the test says so" in caplog.text
