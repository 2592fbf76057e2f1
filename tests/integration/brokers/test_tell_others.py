"""The next task of a canvas finds the lock of the one before it free, although its release is late."""

import time

import pytest
from celery import chain, chord
from support.brokers import Redis
from support.proxy import DELETE, Proxy
from support.worker import Worker
from support.zoo import Zoo

LATER = 0.4  # seconds until ZooKeeper gets a release


@pytest.fixture(scope="module")
def late(single, tmp_path_factory):
    """A worker whose releases are late."""
    home = tmp_path_factory.mktemp("late")
    with (
        Zoo(single.hosts, single) as zoo,
        Proxy(zoo.address) as proxy,
        Redis() as redis,
        Worker(zoo, home, conf=redis.conf, hosts=proxy.address) as worker,
    ):
        proxy.delay_op(DELETE, LATER)
        yield worker
        proxy.heal()


def then_skipped(worker, key):
    """Return a task whose result is "done", unless its lock is busy."""
    signature = worker.app.signature("policy.value", args=[key], immutable=True)
    return signature


@pytest.mark.parametrize("first", ["policy.wait", "helped"])
def test_the_next_task_of_a_chain_is_not_skipped(late, first):
    """The lock of the first one is the main process's, or that of the pool process."""
    result = chain(late.app.signature(first, args=[first]), then_skipped(late, first)).apply_async()
    assert late.get(result) == "done"


def test_the_body_of_a_chord_is_not_skipped_if_another_part_is_the_last(late):
    locked, last = late.gate(), late.gate()
    parts = [
        late.app.signature(name, args=["chord", "linger", str(gate)])
        for name, gate in (("policy.wait", locked), ("without_lock", last))
    ]
    result = chord(parts, app=late.app)(then_skipped(late, "chord"))
    locked.wait_at_work()
    last.wait_at_work()
    locked.open()
    time.sleep(LATER / 4)  # without a wait, that part has ended
    last.open()
    assert late.get(result) == "done"
